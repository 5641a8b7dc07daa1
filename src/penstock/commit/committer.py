"""Group commit: requests that arrive while a commit is in flight share the next one.

A caller submits a `CommitRequest`, not a unit: a function that builds the unit from the newest known record of its run.
Attempts of one run that end at the same time are built on top of each other and share one write. When another process
changed the run first, the request is built again from the record that the store returns.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

import msgspec

from ..core.errors import BlobUnavailable, BrokenQueue, StoreError, StoreUnavailable
from ..core.gc_tuning import reduce_collections
from ..core.outage_retry import OutageLog
from ..core.payload import lift_limits_here
from ..ports.blobs import LoadsClaims
from ..ports.store import WorkQueue
from ..ports.unit import (
    BROKEN_QUEUE,
    UNSTORED,
    UPLOADING,
    ClaimBatch,
    ClaimRequest,
    CommitReply,
    Committed,
    Conflict,
    Fenced,
    Receipt,
    Refused,
    Unit,
)
from ..telemetry.instrumentation import Instrumentation
from .attached_events import ATTACHED, AttachedEvents
from .rate_counter import RateCounter

MAX_BATCH = 500
MIN_CONCURRENT_BATCH = 8  # fewer requests wait for the commit in flight instead of starting another one
MANY_PENDING = 200  # the garbage collector would look at all that wait for a commit again and again
MAX_COMMAND_TRIES = 4
MAX_RETRY_PAUSE_S = 1.0
REMEMBERED_RUNS = 2048

# Reasons to refuse a unit that pass by themselves, with the error of a command that does not wait for it.
_HELD: Mapping[str, type[StoreError]] = {
    BROKEN_QUEUE: BrokenQueue,
    UNSTORED: BlobUnavailable,
    UPLOADING: BlobUnavailable,
}

Build = Callable[[int, bytes | None], Unit | Receipt]
# A run's version and record, and the id of the unit that writes them if that unit is not committed yet.
_Head = tuple[int, bytes | None, str | None]


class ClaimSource(Protocol):
    """The worker, as the committer sees it: every commit also claims jobs for it."""

    @property
    def active(self) -> int:
        """Return how many attempts the worker holds."""
        ...

    def note_jobs(self, units: Sequence[Unit]) -> None:
        """Take note of the jobs that the next commit adds."""
        ...

    def request_claims(self, finishing: Counter[str]) -> ClaimRequest | None:
        """Return what the worker can take, and reserve the slots until `take_claims` is called.

        `finishing` counts, for each queue, the slots that this commit frees.
        """
        ...

    def take_claims(self, request: ClaimRequest, finishing: Counter[str], claimed: ClaimBatch | None) -> None:
        """Take the answer to a request; None when the store did not answer."""
        ...

    def release_slots(self, ended: Counter[str], request: ClaimRequest | None) -> None:
        """Free the slots of ended attempts. `request` is what the same commit asked for."""
        ...


class CommitRequest:
    """A unit to commit, built as late as possible from the newest known record of its run."""

    __slots__ = (
        "build", "future", "has_freed_slot", "outlasts_outage", "record", "run", "sent_id", "slot_queue", "tries",
        "unit", "version",
    )  # fmt: skip

    def __init__(
        self,
        build: Build,
        *,
        run: str | None = None,
        version: int = 0,
        record: bytes | None = None,
        slot_queue: str | None = None,
        outlasts_outage: bool = False,
    ) -> None:
        self.build = build
        self.run = run
        self.version = version
        self.record = record
        self.slot_queue = slot_queue  # the queue of the slot that this commit frees; None: it finishes no attempt
        self.has_freed_slot = False  # the worker already counts this slot as free
        self.outlasts_outage = outlasts_outage  # a running attempt waits for the store; a command gives up soon
        self.tries = 0
        self.unit: Unit | None = None
        self.sent_id: str | None = None  # the id under which an earlier build of the unit was sent
        self.future: asyncio.Future[Receipt]  # created by `submit`

    def rebuild(self) -> None:
        """Drop the unit, so that it is built again under the same id: the store may have applied the old one."""
        if self.unit is not None:
            self.sent_id, self.unit = self.unit.id, None

    def fail(self, problem: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(problem)

    def settle(self, receipt: Receipt) -> None:
        if not self.future.done():
            self.future.set_result(receipt)


class Committer:
    """Batches requests into commits. `StoreProfile` limits how many commits are in flight.

    With several in flight, the store writes while handlers run. Two commits in flight never contain the same run: the
    second would be built on a record that is about to change. On a store that keeps no order between concurrent
    commits, only commits that finish attempts overlap.
    """

    is_deferred = False

    def __init__(self, store: WorkQueue, instrumentation: Instrumentation | None = None) -> None:
        self.worker: ClaimSource | None = None
        self.rates: RateCounter | None = None
        self.outages = OutageLog()  # of the store; the worker shares it
        self._store = store
        self._instrumentation = instrumentation
        self._loop = asyncio.get_running_loop()
        self._pending: list[CommitRequest] = []
        self._known: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        profile = store.profile
        self._may_rewind = profile.may_rewind
        self._lifts_limits = isinstance(store, LoadsClaims) and store.lifts_limits
        self._rewind_epoch = 0
        self._no_slots: Counter[str] = Counter()  # making one for each command takes as long as building its unit
        self._max_in_flight = max(profile.max_commits_in_flight, profile.max_unordered_finishes)
        self._only_finishes_overlap = profile.max_unordered_finishes > profile.max_commits_in_flight
        self._flush_tasks: set[asyncio.Task[None]] = set()
        self._flushing = 0  # flush loops; a finished one may stay in `_flush_tasks` until the event loop turns
        self._in_flight = 0
        self._runs_in_flight: set[str] = set()
        self._commands_in_flight = 0  # commits that do more than finish attempts
        self._closing = False
        self._many = ExitStack()  # open while many requests are pending
        self._held: dict[
            CommitRequest, tuple[asyncio.TimerHandle, StoreError]
        ] = {}  # results that cannot be written now

    async def submit(self, request: CommitRequest) -> Receipt:
        """Commit the request and return its receipt; a Conflict only if the request's own `build` returned one."""
        attached = ATTACHED.get()
        if attached is not None and not attached.is_taken:
            return await self._submit_with(attached, request)
        request.future = self._loop.create_future()
        self._pending.append(request)
        if len(self._pending) == MANY_PENDING:
            self._many.close()
            self._many.enter_context(reduce_collections(young_only=True))
        if not self._flushing or len(self._pending) == MIN_CONCURRENT_BATCH:
            self._start_flush()
        return await request.future

    async def _submit_with(self, attached: AttachedEvents, request: CommitRequest) -> Receipt:
        request.build = attached.attach(request.build)
        receipt = await self.submit(request)
        attached.is_committed = isinstance(receipt, Committed)
        return receipt

    async def close(self) -> None:
        """Wait until every request has an answer. An unavailable store is no longer waited for."""
        self._closing = True
        for request, (timer, problem) in self._held.items():
            timer.cancel()
            request.fail(problem)
        self._held.clear()
        while running := [task for task in self._flush_tasks if not task.done()]:
            await asyncio.wait(running)
        if self.rates is not None:
            await self.rates.close()

    def _start_flush(self) -> None:
        if self._flushing < self._max_in_flight:
            self._flushing += 1
            task = self._loop.create_task(self._flush(), name="penstock-commit")
            self._flush_tasks.add(task)
            task.add_done_callback(self._end_flush)

    def _end_flush(self, task: asyncio.Task[None]) -> None:
        self._flush_tasks.discard(task)
        # A task that was cancelled before its first step never ran its `finally`.
        self._flushing = min(self._flushing, len(self._flush_tasks))
        if not self._flush_tasks:
            self._many.close()

    async def _flush(self) -> None:
        if self._lifts_limits:
            lift_limits_here()
        try:
            while self._pending:
                if self._expects_more():
                    await asyncio.sleep(0)
                batch = self._next_batch()
                if not batch:
                    return  # the commit that blocks these requests takes them when it is done
                await self._send(self._build(batch))
        finally:
            self._flushing -= 1

    async def _send(self, batch: list[CommitRequest]) -> None:
        runs = {request.unit.run.id for request in batch if request.unit is not None and request.unit.run is not None}
        is_command = not _only_finish(batch)
        self._runs_in_flight |= runs
        self._in_flight += 1
        self._commands_in_flight += is_command
        try:
            await self._commit(batch)
        finally:
            self._in_flight -= 1
            self._commands_in_flight -= is_command
            self._runs_in_flight -= runs

    def _next_batch(self) -> list[CommitRequest]:
        """Take what may be sent now: all of it, or the first half if the rest can be sent concurrently."""
        may_overlap = self._may_overlap()
        if self._in_flight and (not may_overlap or len(self._pending) < MIN_CONCURRENT_BATCH):
            return []
        flying = self._runs_in_flight
        ready = [request for request in self._pending if request.run not in flying] if flying else self._pending
        blocked = [request for request in self._pending if request.run in flying] if flying else []
        batch, rest = ready[:MAX_BATCH], ready[MAX_BATCH:]
        if may_overlap and self._in_flight + 1 < self._max_in_flight and len(ready) >= 2 * MIN_CONCURRENT_BATCH:
            batch, rest = _split_between_runs(ready, min(MAX_BATCH, self._half(len(ready))))
        self._pending = blocked + rest
        if len(self._pending) >= MIN_CONCURRENT_BATCH:
            self._start_flush()
        return batch

    def _half(self, ready: int) -> int:
        """Return half of the worker's attempts. The other half is pending here, or still runs in handlers."""
        attempts = ready if self.worker is None else max(self.worker.active, ready)
        return (attempts + 1) // 2

    def _may_overlap(self) -> bool:
        """Return whether pending requests may overtake the commits in flight. Commands keep the order of `submit`."""
        return not self._only_finishes_overlap or (not self._commands_in_flight and _only_finish(self._pending))

    def _expects_more(self) -> bool:
        """Return whether to wait one turn of the event loop: attempts that end at the same time share a commit."""
        return self.worker is None or len(self._pending) < self.worker.active

    def _build(self, batch: list[CommitRequest]) -> list[CommitRequest]:
        """Build each request from the newest known record of its run; return those that have a unit to commit."""
        self._forget_after_rewind()
        heads: dict[str, _Head] = {}
        ready: list[CommitRequest] = []
        later: list[CommitRequest] = []
        for request in batch:
            if request.unit is not None or self._build_one(request, heads, later):
                ready.append(request)
        self._pending[:0] = later
        return ready

    def _forget_after_rewind(self) -> None:
        """Drop the cached records if the server may have lost acknowledged writes."""
        if self._may_rewind and self._store.rewind_epoch != self._rewind_epoch:
            self._rewind_epoch = self._store.rewind_epoch
            self._known.clear()

    def _build_one(self, request: CommitRequest, heads: dict[str, _Head], later: list[CommitRequest]) -> bool:
        """Build one request and return whether it has a unit.

        A result without a run write has no version check. It is not accepted if it was built on a unit that is not
        committed yet: the request goes to `later` and is built again once that unit is settled.
        """
        version, record, after = request.version, request.record, None
        # Only the store knows whether a new run exists: the cached record may be uncommitted, or removed by retention.
        if request.run is not None and version:
            version, record, after = self._newest(request.run, heads, (version, record, None))
        try:
            built = request.build(version, record)
        except BaseException as problem:
            if after is None:
                request.fail(problem)
            else:
                later.append(request)
            return False
        if after is not None and (not isinstance(built, Unit) or built.run is None):
            later.append(request)
            return False
        if not isinstance(built, Unit):
            request.settle(built)
            return False
        if request.sent_id is not None:
            built.id = request.sent_id
        request.unit = built
        if built.run is not None:
            if after is not None:
                built.run = msgspec.structs.replace(built.run, after=after)
            heads[built.run.id] = (built.run.expect + 1, built.run.record, built.id)
        return True

    def _newest(self, run: str, heads: dict[str, _Head], own: _Head) -> _Head:
        known = self._known.get(run)
        committed = own if known is None or known[0] <= own[0] else (*known, None)
        head = heads.get(run)
        return committed if head is None or head[0] <= committed[0] else head

    async def _commit(self, batch: list[CommitRequest]) -> None:
        if not batch:
            return
        units = [request.unit for request in batch if request.unit is not None]
        try:
            reply = await self._commit_and_claim(batch, units)
        except StoreUnavailable as problem:
            await self._wait_and_repeat(batch, problem)
            return
        except Exception as problem:
            await self._isolate(batch, problem)
            return
        if self.outages.since is not None:
            self.outages.report_answer()
        again: list[CommitRequest] = []
        for request, receipt in zip(batch, reply.receipts, strict=True):
            self._settle(request, receipt, again)
        self._pending[:0] = again

    async def _commit_and_claim(self, batch: list[CommitRequest], units: list[Unit]) -> CommitReply:
        """Commit and claim in one call. The worker always gets an answer to its claim request, even after a failure."""
        worker = self.worker
        slots = [one.slot_queue for one in batch if one.slot_queue is not None and not one.has_freed_slot]
        finishing = Counter(slots) if slots else self._no_slots
        claim_request = None
        if worker is not None:
            worker.note_jobs(units)
            claim_request = worker.request_claims(finishing)
        claimed: ClaimBatch | None = None
        instrumentation = self._instrumentation
        started = time.perf_counter() if instrumentation is not None else 0.0
        try:
            reply = await self._store.commit(units, claim_request)
            claimed = reply.claimed
            if self.rates is not None:
                self.rates.count(units, reply)
            if instrumentation is not None:
                instrumentation.report_commit(units, reply, time.perf_counter() - started)
            if worker is not None and finishing:
                worker.release_slots(_free_slots(batch, reply.receipts), claim_request)
        finally:
            if worker is not None and claim_request is not None:
                worker.take_claims(claim_request, finishing, claimed)
        return reply

    def _settle(self, request: CommitRequest, receipt: Receipt, again: list[CommitRequest]) -> None:
        unit = request.unit
        if isinstance(receipt, Conflict) and unit is not None and unit.run is not None:
            request.unit = None
            request.version, request.record = receipt.version, receipt.record
            self._known.pop(unit.run.id, None)
            again.append(request)
            return
        if isinstance(receipt, Committed) and not receipt.repeated and unit is not None and unit.run is not None:
            self._remember(unit.run.id, unit.run.expect + 1, unit.run.record)
        if isinstance(receipt, Refused) and receipt.why in _HELD:
            self._hold(request, _HELD[receipt.why](receipt.key), may_wait=receipt.why == UPLOADING)
            return
        request.settle(receipt)

    def _hold(self, request: CommitRequest, problem: StoreError, *, may_wait: bool = False) -> None:
        """Commit the result of an attempt later: it is not lost, and its slot is free. A command fails at once, unless
        it is known that it may wait."""
        if (request.slot_queue is None and not may_wait) or self._closing:
            request.fail(problem)
            return
        request.tries += 1
        request.rebuild()
        pause = min(0.02 * 2 ** min(request.tries, 8), MAX_RETRY_PAUSE_S)
        self._held[request] = (self._loop.call_later(pause, self._retry_held, request), problem)

    def _retry_held(self, request: CommitRequest) -> None:
        del self._held[request]
        if not request.future.done():
            self._pending.append(request)
            self._start_flush()

    def _remember(self, run: str, version: int, record: bytes) -> None:
        self._known[run] = (version, record)
        self._known.move_to_end(run)
        if len(self._known) > REMEMBERED_RUNS:
            self._known.popitem(last=False)

    async def _wait_and_repeat(self, batch: list[CommitRequest], problem: StoreUnavailable) -> None:
        """Send the same units again after a pause. The write may have happened; their ids make the repeat safe."""
        waiting = [request for request in batch if not request.future.done()]  # other callers were cancelled
        for request in waiting:
            request.tries += 1
            if self._may_rewind and _finishes_without_version(request):
                request.rebuild()
        # A command fails soon when the store is down, so that its caller can react.
        tries = max((request.tries for request in waiting), default=0)
        kept: list[CommitRequest] = []
        for request in waiting:
            if (request.outlasts_outage and not self._closing) or tries < MAX_COMMAND_TRIES:
                kept.append(request)
            else:
                request.fail(problem)
        self.outages.report_failure("the store is unavailable, retrying", problem)
        await asyncio.sleep(min(0.02 * 2 ** min(tries, 8), MAX_RETRY_PAUSE_S))
        self._pending[:0] = kept

    async def _isolate(self, batch: list[CommitRequest], problem: Exception) -> None:
        """Commit each unit alone, so that only the unit that the store cannot write fails."""
        if len(batch) == 1:
            batch[0].fail(problem)
            return
        for request in batch:
            await self._commit([request])


def _free_slots(batch: list[CommitRequest], receipts: list[Receipt]) -> Counter[str]:
    """Count the slots of finished attempts by queue, and mark their requests. A refused unit frees nothing yet,
    except a result that cannot be written now, which waits.

    The worker learns of free slots here, before anyone claims. The attempts' own tasks run later, and a claim in
    between would find no room.
    """
    free: Counter[str] = Counter()
    for request, receipt in zip(batch, receipts, strict=True):
        is_settled = isinstance(receipt, Committed | Fenced) or (isinstance(receipt, Refused) and receipt.why in _HELD)
        if request.slot_queue is not None and not request.has_freed_slot and is_settled:
            request.has_freed_slot = True
            free[request.slot_queue] += 1
    return free


def _split_between_runs(ready: list[CommitRequest], size: int) -> tuple[list[CommitRequest], list[CommitRequest]]:
    """Return the first `size` requests, and the rest. Those of one run stay together: they could not overlap."""
    if not _only_finish(ready):
        return ready[:size], ready[size:]
    counts = Counter(request.run or request for request in ready)
    first, total = set[object](), 0
    for key, count in counts.items():  # in the order of the requests
        if total < size:
            first.add(key)
            total += count
    batch = [request for request in ready if (request.run or request) in first]
    rest = [request for request in ready if (request.run or request) not in first]
    return batch[:MAX_BATCH], batch[MAX_BATCH:] + rest


def _only_finish(requests: list[CommitRequest]) -> bool:
    return None not in [request.slot_queue for request in requests]


def _finishes_without_version(request: CommitRequest) -> bool:
    """Return whether the unit finishes an attempt of a run with no version check. After a rewind, the reason for it
    (the run was closed) may be lost too, so it is built again."""
    unit = request.unit
    return request.run is not None and unit is not None and unit.run is None and unit.outcome is not None
