"""The worker: claims jobs in batches, runs attempts concurrently, commits them in groups, and shuts down in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Iterable

from ..commit.committer import CommitRequest
from ..commit.runtime import Runtime
from ..context.blobs import BlobView
from ..core.errors import StoreError, StoreUnavailable, UnknownKind
from ..core.outage_retry import OutageRetry
from ..durable.session import DEFAULT_MAX_CALLS
from ..ports.runner import Runner
from ..ports.unit import Claim, Committed, Released, Unit
from .attempt import Attempt
from .capacity import PREFETCH_MAX_WAIT_S, CapacityTracker, Prefetcher, QueueLimits
from .channel import LEASE_LOST, NO_SLOT, QUARANTINED, QUEUE_HELD, SHUTDOWN, AttemptServices
from .claim_values import ClaimValues
from .leases import LeaseRenewer
from .outcomes import ClaimOpener, JobReturn
from .polling import ClaimPoller
from .quarantine import Quarantine, alone_memo
from .recording import record_result, report_end, report_start
from .run_scope import WorkScope
from .unreadable import build_bare_end, is_permanent

log = logging.getLogger("penstock.worker")

INTERRUPT_TIMEOUT_S = 2.0  # how long an interrupted handler has to end
CANCEL_TIMEOUT_S = 1.0
UNKNOWN_KIND_TRIES = 20  # leases in which no worker had the engine of a run; then its job fails
RESUMED_AFTER_S = 0.05  # an attempt of a waiting run that takes longer shows the run as running
IDLE_CHECK_S = 0.01  # between two polls of a worker that waits to be idle
UNLOADED_PAUSE_MS = 5_000  # before a job is claimed again whose values could not be loaded here
CANCELLATION_CHECK_S = 0.1  # at most one look at cancelled runs in this time


class Worker:
    """Works on some queues until `stop`."""

    def __init__(
        self,
        *,
        name: str,
        runtime: Runtime,
        engine: ClaimOpener,
        runner: Runner,
        queues: dict[str, QueueLimits],
        concurrency: int,
        lease_ms: int,
        grace: float,
        max_crashes: int,
        max_calls: int = DEFAULT_MAX_CALLS,
        rng: random.Random | None = None,
        scope: WorkScope | None = None,
    ) -> None:
        self.name = name
        self.scope = scope
        store = runtime.store
        self._runtime = runtime
        self._store = store
        self._committer = runtime.committer
        outages = runtime.committer.outages
        self._instrumentation = runtime.instrumentation
        self._values = ClaimValues(store)
        self._engine = engine
        self._concurrency = concurrency
        self._grace = grace
        self._active: dict[str, tuple[Claim, Attempt | None]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._resumes: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._emptied = asyncio.Event()  # no claim is in hand
        self._loop = asyncio.get_running_loop()
        self._services = AttemptServices(
            store=store,
            committer=runtime.committer,
            clock=runtime.clock,
            new_unit_id=runtime.new_unit_id,
            runner=runner,
            rng=rng or random.Random(),
            max_crashes=max_crashes,
            max_calls=max_calls,
            loop=self._loop,
            reads=OutageRetry("handlers", has_answered=True, outages=outages),
            blobs=runtime.blobs or BlobView(None),
        )
        self._prefetcher = Prefetcher(concurrency, time.monotonic, max_held=store.profile.prefetch)
        self._prefetch_check: asyncio.TimerHandle | None = None
        self._capacity = CapacityTracker(name, concurrency, lease_ms, self._prefetcher, scope)
        self._quarantine = Quarantine(max_crashes, lease_ms / 1000)
        self._leases = LeaseRenewer(store, lease_ms, self._claims, self._report_lost, outages)
        self._poller = ClaimPoller(
            store,
            runtime.clock,
            self._capacity,
            queues,
            worker=name,
            outages=outages,
            instrumentation=runtime.instrumentation,
            held=self._active,
            may_claim=lambda: not self._stopping.is_set() and self._quarantine.suspect is None,
            accept=self._accept,
        )

    @property
    def queues(self) -> list[str]:
        """Return the queues it claims from."""
        return list(self._poller.queues)

    @property
    def active(self) -> int:
        """Return how many claims are in hand."""
        return len(self._active)

    @property
    def reserved(self) -> int:
        """Return how many more claims may arrive: the store may have handed them out already."""
        return self._capacity.reserved

    @property
    def next_due(self) -> int | None:
        """Return when there is more to claim, by the store's last answer."""
        return self._poller.next_due

    async def wait_idle(self) -> None:
        """Wait until no claim is in hand and a poll of all queues finds no job."""
        while True:
            while self._active:
                self._emptied.clear()
                await self._emptied.wait()
            if await self._poller.poll_once() and not self._active and not self.reserved:
                return
            await asyncio.sleep(IDLE_CHECK_S)

    async def run(self) -> None:
        """Work until `stop`, then finish or release the claims in hand."""
        self._committer.worker = self._poller
        self._leases.start()
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch_cancellations())
                await self._poller.run(self._stopping)
                watch.cancel()
        finally:
            await self._shut_down()
            self._committer.worker = None
            await asyncio.to_thread(self._leases.stop)

    def stop(self) -> None:
        """Claim nothing more; `run` returns once the claims in hand are finished or released."""
        self._stopping.set()
        self._poller.poll_soon()
        self._quarantine.wake()

    def change_queues(self, queues: dict[str, QueueLimits]) -> None:
        """Take other queues, or other limits, from now on. Running attempts are not affected."""
        self._poller.change_queues(queues)

    # Slots

    def _accept(self, claim: Claim) -> None:
        """Start a new claim, or hold it as prefetched."""
        self._active[claim.token] = (claim, None)
        if self._quarantine.suspect is not None:  # it was requested before
            self._release((claim,), QUARANTINED)
        elif self._prefetcher.has_slot(claim.queue, self._slots_of(claim.queue)):
            self._start(claim)
        elif self._stopping.is_set():
            self._release((claim,), SHUTDOWN)
        else:
            self._prefetcher.hold(claim)
            if self._prefetch_check is None:
                self._prefetch_check = self._loop.call_later(PREFETCH_MAX_WAIT_S, self._check_prefetched)

    def _slots_of(self, queue: str) -> int:
        limits = self._poller.queues.get(queue)
        return self._concurrency if limits is None else limits.concurrency

    def _start(self, claim: Claim) -> None:
        self._prefetcher.occupy(claim)
        self._create_task(claim)

    def _create_task(self, claim: Claim, interrupt: str | None = None) -> None:
        """Process the claim; with `interrupt`, a reason, its handler is not called."""
        name = f"penstock {claim.job}"
        self._tasks[claim.token] = self._loop.create_task(self._process(claim, interrupt), name=name)

    def _release(self, claims: Iterable[Claim], reason: str) -> None:
        """Return claims to their queues without running them."""
        for claim in claims:
            self._create_task(claim, reason)

    def _vacate(self, claim: Claim) -> None:
        """Free the slot of an ended handler. Prefetched claims start while the end is being recorded."""
        self._prefetcher.vacate(claim)
        while (held := self._prefetcher.next(self._slots_of)) is not None:
            self._start(held)

    def _check_prefetched(self) -> None:
        self._prefetch_check = None
        if self._prefetcher.is_overdue():
            self._release(self._prefetcher.clear(), NO_SLOT)
        elif self._prefetcher.held:
            self._prefetch_check = self._loop.call_later(PREFETCH_MAX_WAIT_S, self._check_prefetched)

    # Attempts

    def find_attempt(self, job: str) -> Attempt | None:
        """Return the attempt of a job that runs here."""
        return next((attempt for claim, attempt in self._active.values() if claim.job == job), None)

    async def _process(self, claim: Claim, interrupt: str | None = None) -> None:
        """Run one attempt of a claim and record how it ended."""
        has_freed_slot, is_vacated, attempt, resuming = False, False, None, None
        self._prefetcher.start(claim)
        try:
            try:
                claim = await self._values.load(claim)
            except StoreUnavailable as problem:
                has_freed_slot = await self._release_unloaded(claim, problem)
                return
            try:
                work = await self._engine.open(claim)
            except StoreUnavailable:
                work = await self._services.reads.call(self._engine.open, claim)
            attempt = Attempt(work, self._services)
            self._active[claim.token] = (claim, attempt)
            if interrupt is not None:
                attempt.interrupt(interrupt)
            elif (claim.crashes or self._stopping.is_set()) and not await self._may_run(claim):
                attempt.interrupt(SHUTDOWN if self._stopping.is_set() else QUARANTINED)
            elif self._instrumentation is not None:
                report_start(self._instrumentation, attempt.work, self.name)
            if claim.memos and (resumed := attempt.work.on_resumed()) is not None:
                resuming = self._loop.call_later(RESUMED_AFTER_S, self._record_resumed, resumed)
            result = await attempt.run()
            if self.scope is not None:
                self.scope.add(attempt.launched, attempt.children)
                self.scope.rename(work.routed)
            if isinstance(result, JobReturn) and result.holds_queue:  # the queue is held: nothing more of it may start
                self._release(self._prefetcher.remove(lambda held: held.queue == claim.queue), QUEUE_HELD)
            is_vacated = True
            self._vacate(claim)
            recorded = await record_result(attempt, result, self._committer)
            has_freed_slot = recorded.has_freed_slot
            if self._instrumentation is not None:
                report_end(self._instrumentation, attempt.work, self.name, recorded)
        except asyncio.CancelledError:
            raise
        except Exception as problem:
            has_freed_slot = await self._end_bare(claim, problem)
        finally:
            if attempt is not None:
                attempt.dispose()
            if resuming is not None:
                resuming.cancel()
            if not is_vacated:
                self._vacate(claim)
            del self._active[claim.token], self._tasks[claim.token]
            if not has_freed_slot:
                self._poller.release_slots(Counter((claim.queue,)), None)
            elif self._quarantine.concerns(claim):
                self._poller.poll_soon()
            self._quarantine.leave(claim)
            if not self._active:
                self._emptied.set()

    async def _release_unloaded(self, claim: Claim, problem: StoreUnavailable) -> bool:
        """Return a job to its queue, for another worker or a later time. Its attempt does not count."""
        log.warning("%s; the job is released [%s]", problem, problem.code)
        due = self._runtime.clock.now_ms() + UNLOADED_PAUSE_MS
        unit = Unit(self._services.new_unit_id(), claim=claim, outcome=Released(due, gives_attempt_back=True))
        request = CommitRequest(lambda _v, _r: unit, slot_queue=claim.queue, outlasts_outage=True)
        await self._committer.submit(request)
        return request.has_freed_slot

    async def _end_bare(self, claim: Claim, problem: Exception) -> bool:
        """End a job whose claim cannot be opened or whose end cannot be recorded. Return whether that is recorded.

        If the reason may pass, nothing is recorded until the job has crashed too often: the lease expires, and the job
        is claimed again."""
        log.error("attempt %d of %s could not be recorded", claim.attempt, claim.job, exc_info=problem)
        tries = UNKNOWN_KIND_TRIES if isinstance(problem, UnknownKind) else max(self._services.max_crashes, 1)
        if isinstance(problem, StoreError) or not (is_permanent(problem) or claim.crashes >= tries):
            return False
        try:
            unit = await build_bare_end(self._runtime, claim, problem)
            request = CommitRequest(lambda _v, _r: unit, slot_queue=claim.queue, outlasts_outage=True)
            await self._committer.submit(request)
            return request.has_freed_slot
        except Exception:
            log.exception("%s could not be ended as failed", claim.job)
            return False

    def _record_resumed(self, request: CommitRequest) -> None:
        """Show a run that waited as running. The commit of its attempt does so too: a short one needs nothing more."""
        task = self._loop.create_task(self._submit_resumed(request), name="penstock resumed")
        self._resumes.add(task)
        task.add_done_callback(self._resumes.discard)

    async def _submit_resumed(self, request: CommitRequest) -> None:
        with contextlib.suppress(StoreError):
            await self._committer.submit(request)

    async def _may_run(self, claim: Claim) -> bool:
        """Return whether to call the handler; otherwise the job is released."""
        if self._quarantine.concerns(claim):
            is_alone = await self._quarantine.enter(claim, lambda: len(self._active), self._stopping.is_set)
            return is_alone and await self._record_alone(claim)
        return not self._stopping.is_set() or self._grace > 0

    async def _record_alone(self, claim: Claim) -> bool:
        """Record that a suspect runs alone now. Return False if its lease is lost."""
        unit = Unit(self._services.new_unit_id(), claim=claim, memos=[alone_memo(claim)])
        receipt = await self._committer.submit(CommitRequest(lambda _v, _r: unit, outlasts_outage=True))
        return isinstance(receipt, Committed)

    # Leases and cancellation

    def _claims(self) -> Iterable[Claim]:
        return [claim for claim, _ in list(self._active.values())]

    def _report_lost(self, lost: list[Claim]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._interrupt, lost)
        except RuntimeError:  # the loop closed before the renewer stopped
            pass

    def _interrupt(self, lost: list[Claim]) -> None:
        if self._instrumentation is not None:
            self._instrumentation.report_lost((one for one in lost if one.token in self._active), self.name)
        tokens = {claim.token for claim in lost}
        for claim in self._prefetcher.remove(lambda held: held.token in tokens):
            self._create_task(claim, _lost_reason(claim))
        for claim in lost:
            _, attempt = self._active.get(claim.token, (None, None))
            if attempt is not None:
                attempt.interrupt(_lost_reason(claim))

    async def _watch_cancellations(self) -> None:
        with self._store.signals.listen("cancelled") as listener:
            while True:
                await listener.wait()
                if self._active:
                    self._leases.renew_soon()
                await asyncio.sleep(CANCELLATION_CHECK_S)

    # Shutdown

    async def _shut_down(self) -> None:
        """Let attempts end within the grace period, then interrupt the rest. A commit in flight may still add some."""
        self._stopping.set()
        self._release(self._prefetcher.clear(), SHUTDOWN)
        await self._drain(self._grace)
        for _, attempt in list(self._active.values()):
            if attempt is not None:
                attempt.interrupt(SHUTDOWN)
        await self._drain(max(self._grace, INTERRUPT_TIMEOUT_S))
        for _, attempt in list(self._active.values()):
            if attempt is not None:
                attempt.is_abandoned = True
        for task in self._tasks.values():
            task.cancel()
        if self._resumes:
            await asyncio.wait(self._resumes, timeout=CANCEL_TIMEOUT_S)
        if left := await self._drain(CANCEL_TIMEOUT_S):
            log.warning("%d handlers ignored cancellation and are left running", left)

    async def _drain(self, seconds: float) -> int:
        """Wait for the claims in hand; return how many are left when the time is up."""
        left = self._unfinished()
        try:
            async with asyncio.timeout(seconds):
                while left:
                    await asyncio.wait(left)
                    left = self._unfinished()
        except TimeoutError:
            pass
        return len(self._unfinished())

    def _unfinished(self) -> list[asyncio.Task[None]]:
        # A task that was cancelled before its first step has not removed itself.
        return [task for task in self._tasks.values() if not task.done()]


def _lost_reason(claim: Claim) -> str:
    """Return why a claim was lost. A step's run may have been cancelled; its commit finds out whether it was."""
    return "cancelled" if claim.run is not None else LEASE_LOST
