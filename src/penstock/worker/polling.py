"""Claiming: polls the store for jobs, and claims with every commit."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Sized

from ..core.clock import Clock
from ..core.errors import StoreError
from ..core.outage_retry import OutageLog
from ..ports.store import Listener, Store
from ..ports.unit import Claim, ClaimBatch, ClaimRequest, Unit
from ..telemetry.instrumentation import Instrumentation
from .asked_queues import AskedQueues
from .capacity import CapacityTracker, QueueLimits

MAX_IDLE_S = 5.0  # between two polls when no signal comes
CLAIM_RETRY_MS = 500
SAME_MOMENT_S = 0.002  # one due time, converted twice, may differ by this


class ClaimPoller:
    """Claims jobs for one worker. The committer uses it as its `ClaimSource`.

    `held` are the worker's claims, `may_claim` says whether it takes more, and `accept` gets each new claim.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        capacity: CapacityTracker,
        queues: dict[str, QueueLimits],
        *,
        worker: str,
        outages: OutageLog,
        instrumentation: Instrumentation | None,
        held: Sized,
        may_claim: Callable[[], bool],
        accept: Callable[[Claim], None],
    ) -> None:
        self._asked_queues = AskedQueues(queues)
        self.next_due: int | None = None  # when the store has more to claim, by its last answer
        self._store = store
        self._clock = clock
        self._capacity = capacity
        self._worker = worker
        self._outages = outages
        self._instrumentation = instrumentation
        self._held = held
        self._may_claim = may_claim
        self._accept = accept
        self._listener: Listener | None = None
        self._loop = asyncio.get_running_loop()
        self._failures = 0  # unexpected errors in a row
        self._wakes_at = 0.0  # by the loop's time, which no clock can set; a signal may come earlier
        self._asked: asyncio.Future[bool] | None = None  # see `poll_once`

    @property
    def queues(self) -> Mapping[str, QueueLimits]:
        """The queues that the worker claims from."""
        return self._asked_queues.all

    async def run(self, stopping: asyncio.Event) -> None:
        """Poll until stopped: at once after a signal, and whenever a job is due."""
        while not stopping.is_set():
            queues = self.queues
            with self._store.signals.listen(*(f"queue:{queue}" for queue in queues)) as self._listener:
                while not stopping.is_set() and self.queues is queues:
                    await self._poll(stopping)
                    if stopping.is_set() or self.queues is not queues:
                        break
                    idle = self._idle_s(self.next_due)
                    self._wakes_at = self._loop.time() + idle
                    await self._listener.wait(idle)

    def change_queues(self, queues: dict[str, QueueLimits]) -> None:
        """Claim from other queues, or with other limits, from now on."""
        self._asked_queues = AskedQueues(queues)
        self.poll_soon()

    def poll_soon(self) -> None:
        """Wake the poll loop."""
        if self._listener is not None:
            self._listener.notify()

    async def poll_once(self) -> bool:
        """Poll from now on. Return whether all queues were asked and none has a job for this worker."""
        self._asked = self._loop.create_future()
        self.poll_soon()
        return await self._asked

    async def _poll(self, stopping: asyncio.Event) -> None:
        asked, self._asked = self._asked, None
        self._capacity.note_poll()
        if asked is not None:
            self._asked_queues.ask_all()
        request = self.request_claims(Counter())
        if request is None:
            _answer(asked, False)
            return
        claimed: ClaimBatch | None = None
        try:
            claimed = await self._store.claim(request)
            self._outages.report_answer()
        except StoreError as problem:
            self._outages.report_failure("cannot claim jobs, retrying", problem)
        except Exception as problem:  # a bug, or data that no store should answer with: the worker lives on
            self._outages.report_failure("cannot claim jobs because of an unexpected error, retrying", problem)
            self._failures += 1
        else:
            self._failures = 0
        finally:
            self.take_claims(request, Counter(), claimed)
        if claimed is None:
            self._asked = self._asked or asked  # the next poll answers
            if self._failures:
                await self._pause(stopping)
        else:
            _answer(asked, not claimed.claims and len(request.queues) == len(self.queues))

    async def _pause(self, stopping: asyncio.Event) -> None:
        """Wait longer after each unexpected error in a row. No signal ends the pause: it may come often."""
        pause = min(CLAIM_RETRY_MS / 1000 * 2 ** min(self._failures - 1, 8), MAX_IDLE_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), pause)

    def _idle_s(self, due: int | None) -> float:
        """Return how long to wait for a due time; a missed signal costs at most MAX_IDLE_S."""
        if due is None:
            return MAX_IDLE_S
        return min(max((due - self._clock.now_ms()) / 1000, 0.001), MAX_IDLE_S)

    # For the committer, see ClaimSource

    @property
    def active(self) -> int:
        return len(self._held)

    def note_jobs(self, units: Sequence[Unit]) -> None:
        if not self._asked_queues.are_few:
            self._asked_queues.note_signals(f"queue:{job.queue}" for unit in units for job in unit.jobs)

    def request_claims(self, finishing: Counter[str]) -> ClaimRequest | None:
        if not self._may_claim():
            return None
        self._note_signals()
        is_due = self.next_due is not None and self.next_due <= self._clock.now_ms()
        if is_due and not self._asked_queues.are_few:
            self.next_due = None  # all queues are asked now, some at a time: their answers tell the next one
        queues = self._asked_queues.choose(self._loop.time(), is_due)
        request = self._capacity.request(queues, finishing)
        if request is not None:
            self._asked_queues.note_request(request, queues)
        return request

    def _note_signals(self) -> None:
        if self._listener is not None and (topics := self._listener.take_topics()):
            self._asked_queues.note_signals(topics)

    def take_claims(self, request: ClaimRequest, finishing: Counter[str], claimed: ClaimBatch | None) -> None:
        if claimed is None:
            claimed = ClaimBatch(next_due=self._clock.now_ms() + CLAIM_RETRY_MS)
        if self._capacity.settle(request, finishing, claimed.claims):
            self.poll_soon()
        self._note_signals()
        is_full = len(claimed.claims) >= (request.limit or 0)
        self._asked_queues.note_answer(request, claimed.drained, is_full=is_full)
        if self._asked_queues.has_unasked and not is_full:
            self.poll_soon()
        self.next_due = self._earliest_due(request, claimed.next_due)
        if self._loop.time() + self._idle_s(claimed.next_due) < self._wakes_at - SAME_MOMENT_S:
            self.poll_soon()  # a commit's answer named a job that is due before the next poll
        if self._instrumentation is not None:
            self._instrumentation.report_claims(claimed.claims, self._worker)
        for claim in claimed.claims:
            self._accept(claim)

    def release_slots(self, ended: Counter[str], request: ClaimRequest | None) -> None:
        asked = self._asked_queues
        asked.note_room(ended, request)
        is_missing = self._capacity.release(ended, request)
        if is_missing and (asked.are_few or request is None or asked.has_unasked):
            self.poll_soon()  # a slot is free, and no commit requested a job for it

    def _earliest_due(self, request: ClaimRequest, due: int | None) -> int | None:
        """Return when there is more to claim. An answer covers only the queues of its request, and a queue without a
        free slot is in none: what is known of the others stays valid."""
        known = self.next_due
        if known is None or len(request.queues) == len(self.queues):
            return due
        if known <= self._clock.now_ms() and self._asked_queues.are_few:
            return due
        return known if due is None else min(known, due)


def _answer(asked: asyncio.Future[bool] | None, found_nothing: bool) -> None:
    if asked is not None and not asked.done():
        asked.set_result(found_nothing)
