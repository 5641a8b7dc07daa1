"""The worker: claims in batches, runs attempts side by side, commits them together, stops in good order."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable

from ..commit.committer import Committer, Intent
from ..core.clock import Clock
from ..core.durations import show_ms
from ..core.errors import ChildrenPending, StoreError
from ..durable.session import OUTDATED
from ..ports.runner import Runner
from ..ports.store import Listener, Store
from ..ports.unit import Claim, ClaimBatch, ClaimRequest, Refused
from .attempt import LEASE_LOST, SHUTDOWN, Attempt
from .capacity import PATIENCE, Asking, QueueLimits, ReadAhead
from .leases import LeaseKeeper
from .outcomes import Ending, Engine, Failure, Limited, Stopped, Success, Waiting, Work, unrecorded
from .quarantine import Quarantine

log = logging.getLogger("penstock.worker")

MAX_IDLE = 5.0  # seconds between looks at the store when nothing is heard
GIVING_BACK = 2.0  # seconds an interrupted handler has to come to its end


class Worker:
    """Works on some queues until told to stop."""

    def __init__(
        self,
        *,
        name: str,
        store: Store,
        committer: Committer,
        engine: Engine,
        runner: Runner,
        clock: Clock,
        queues: dict[str, QueueLimits],
        concurrency: int,
        lease_ms: int,
        grace: float,
        max_crashes: int,
        unit_id: Callable[[], str],
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self._store = store
        self._committer = committer
        self._engine = engine
        self._runner = runner
        self._clock = clock
        self._queues = queues
        self._concurrency = concurrency
        self._grace = grace
        self._max_crashes = max_crashes
        self._unit_id = unit_id
        self._rng = rng or random.Random()
        self._active: dict[str, tuple[Claim, Attempt | None]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._listener: Listener | None = None
        self._next_due: int | None = None
        self._next_look = 0  # when the store is looked at next, whatever is heard
        self._loop = asyncio.get_running_loop()
        self._ahead = ReadAhead(concurrency, time.monotonic, together=store.profile.prefetch)
        self._asking = Asking(name, concurrency, lease_ms, self._ahead)
        self._look: asyncio.TimerHandle | None = None  # whether what was read ahead still waits
        self._quarantine = Quarantine(max_crashes, lease_ms / 1000)
        self._keeper = LeaseKeeper(store, lease_ms, self._claims, self._report_lost)

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def asked_for(self) -> int:
        """How many jobs may be on their way here: the store may have handed them out already."""
        return self._asking.promised

    @property
    def next_due(self) -> int | None:
        """When there is more to claim, as the store last said."""
        return self._next_due

    async def run(self) -> None:
        """Works until `stop`; then finishes or gives back what is in hand."""
        self._committer.worker = self
        self._keeper.start()
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch_cancellations())
                await self._serve()
                watch.cancel()
        finally:
            await self._finish()
            self._committer.worker = None
            await asyncio.to_thread(self._keeper.stop)

    def stop(self) -> None:
        """Takes no more work; `run` returns once what is in hand is finished or given back."""
        self._stopping.set()
        self._nudge()
        self._quarantine.wake()

    def work_on(self, queues: dict[str, QueueLimits]) -> None:
        """Takes other queues, or other limits, from now on; what is in hand goes on."""
        self._queues = queues
        self._nudge()

    # Claiming

    async def _serve(self) -> None:
        while not self._stopping.is_set():
            queues = self._queues
            with self._store.signals.listen(*(f"queue:{queue}" for queue in queues)) as self._listener:
                while await self._turns(self._listener, queues):
                    pass

    async def _turns(self, listener: Listener, queues: dict[str, QueueLimits]) -> bool:
        """Claims once, then waits for news; False when there are other queues to listen to, or it is time to stop."""
        self._asking.look()
        ask = self.ask(Counter())
        if ask is not None:
            await self._claim(ask)
        if self._stopping.is_set() or self._queues is not queues:
            return False
        patience = self._patience()
        self._next_look = self._clock.now_ms() + int(patience * 1000)
        await listener.wait(patience)
        return True

    def _nudge(self) -> None:
        """Has the store looked at again, before anything is heard of it."""
        if self._listener is not None:
            self._listener.notify()

    async def _claim(self, ask: ClaimRequest) -> None:
        work: ClaimBatch | None = None
        try:
            work = await self._store.claim(ask)
        except StoreError as problem:
            log.warning("cannot claim work, trying again: %s", problem)
        finally:
            self.take(ask, Counter(), work)

    def _patience(self) -> float:
        """How long nothing can be due: an unheard signal costs at most MAX_IDLE."""
        if self._next_due is None:
            return MAX_IDLE
        return min(max((self._next_due - self._clock.now_ms()) / 1000, 0.001), MAX_IDLE)

    def ask(self, finishing: Counter[str]) -> ClaimRequest | None:
        """What this worker can take, counting the slots that the commit on its way sets free."""
        if self._stopping.is_set() or self._quarantine.busy:
            return None
        return self._asking.ask(self._queues, finishing)

    def take(self, ask: ClaimRequest, finishing: Counter[str], work: ClaimBatch | None) -> None:
        if work is None:
            work = ClaimBatch(next_due=self._clock.now_ms() + 500)  # no answer: ask again soon
        if self._asking.answered(ask, finishing, work.claims):
            self._nudge()
        self._next_due = self._soonest(ask, work.next_due)
        if work.next_due is not None and work.next_due < self._next_look:
            self._nudge()  # a commit brought news of work that is due before the next look at the store
        for claim in work.claims:
            self._active[claim.token] = (claim, None)
            if self._ahead.has_slot(claim.queue, self._slots_of(claim.queue)):
                self._begin(claim)
            else:
                self._hold(claim)

    def free(self, ended: Counter[str], ask: ClaimRequest | None) -> None:
        if self._asking.left(ended, ask):
            self._nudge()  # a slot is free, and no commit asked for work to fill it

    def _soonest(self, ask: ClaimRequest, due: int | None) -> int | None:
        """When there is more to claim. An answer says nothing of queues that were not asked for, because they had no
        slot free just then: what was said of them before still holds."""
        known = self._next_due
        if known is None or known <= self._clock.now_ms() or len(ask.queues) == len(self._queues):
            return due
        return known if due is None else min(known, due)

    def _slots_of(self, queue: str) -> int:
        limits = self._queues.get(queue)
        return self._concurrency if limits is None else limits.concurrency

    # Reading ahead

    def _begin(self, claim: Claim) -> None:
        self._ahead.enter(claim)
        self._start(claim)

    def _start(self, claim: Claim, stopped: str | None = None) -> None:
        """Has the claim worked on; `stopped`, its handler is not called."""
        name = f"penstock {claim.job}"
        self._tasks[claim.token] = self._loop.create_task(self._work(claim, stopped), name=name)

    def _hold(self, claim: Claim) -> None:
        if self._stopping.is_set():  # it was asked for before
            self._start(claim, SHUTDOWN)
            return
        self._ahead.hold(claim)
        if self._look is None:
            self._look = self._loop.call_later(PATIENCE, self._look_at_ready)

    def _leave(self, claim: Claim) -> None:
        """The handler has ended, its slot is free: what is ready begins while the end is recorded."""
        self._ahead.ended(claim)
        while (ready := self._ahead.next(self._slots_of)) is not None:
            self._begin(ready)

    def _look_at_ready(self) -> None:
        self._look = None
        if self._ahead.overdue():
            self._give_back(self._ahead.clear())
        elif self._ahead.ready:
            self._look = self._loop.call_later(PATIENCE, self._look_at_ready)

    def _give_back(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            self._start(claim, SHUTDOWN)

    # Working

    async def _work(self, claim: Claim, stopped: str | None = None) -> None:
        recorded, left, attempt = False, False, None
        self._ahead.began(claim)
        try:
            work = await self._engine.open(claim)
            attempt = Attempt(
                work,
                committer=self._committer,
                state=self._store,
                runner=self._runner,
                clock=self._clock,
                rng=self._rng,
                unit_id=self._unit_id,
                max_crashes=self._max_crashes,
                loop=self._loop,
                jobs=self._store,
            )
            self._active[claim.token] = (claim, attempt)
            if stopped is not None:
                attempt.interrupt(stopped)
            elif (claim.crashes or self._stopping.is_set()) and not await self._may_run(claim):
                attempt.interrupt(SHUTDOWN)
            ending = await attempt.run()
            if isinstance(ending, Limited):  # nothing more of its queue is to begin
                self._give_back(self._ahead.remove(lambda ready: ready.queue == claim.queue))
            left = True
            self._leave(claim)
            recorded = await self._settle(attempt, ending)
        except asyncio.CancelledError:
            raise
        except Exception:
            # Nothing was recorded: the lease runs out and the job comes again.
            log.exception("attempt %d of %s could not be recorded", claim.attempt, claim.job)
        finally:
            if attempt is not None:
                attempt.let_go()
            if not left:
                self._leave(claim)
            del self._active[claim.token], self._tasks[claim.token]
            if not recorded:
                self.free(Counter((claim.queue,)), None)
            elif self._quarantine.concerns(claim):
                self._nudge()
            self._quarantine.left(claim)

    async def _may_run(self, claim: Claim) -> bool:
        """Whether its handler is to be called, or the job to go back to its queue."""
        if self._quarantine.concerns(claim):
            return await self._quarantine.enter(claim, lambda: len(self._active), self._stopping.is_set)
        return not self._stopping.is_set() or self._grace > 0

    async def _settle(self, attempt: Attempt, ending: Ending) -> bool:
        """Records how it ended; whether it did. What cannot be recorded is a failure of the attempt, and recorded as
        one: left alone it would come again when its lease has run out, and end the same way."""
        try:
            return await self._record(attempt, ending)
        except StoreError:
            raise
        except Exception as problem:
            # What a decision calls of the user's own raised, or what the handler gave cannot be written.
            if not isinstance(ending, Failure):
                return await self._settle(attempt, await attempt.failure(problem))
            if ending.bare:
                raise
            log.warning("the failure of %s cannot be recorded whole", attempt.work.claim.job, exc_info=problem)
            error = unrecorded(ending.error, problem, attempt.work.recorder)
            return await self._settle(attempt, attempt.bare_failure(error, ending.retry_in_ms is None))

    async def _record(self, attempt: Attempt, ending: Ending) -> bool:
        work = attempt.work
        if isinstance(ending, Stopped) and ending.reason == LEASE_LOST:
            said = "attempt %d of %s lost its lease; what it did is not recorded"
            log.warning(said, work.claim.attempt, work.claim.job)
            return False
        intent = _intent(work, ending)
        if isinstance(ending, Failure):
            _tell(work, ending)
        intent.frees = work.claim.queue
        receipt = await self._committer.submit(intent)
        if isinstance(receipt, Refused) and receipt.why == "children":
            pending = ChildrenPending(
                f"{receipt.key!r} returned while children of it were still waited for, or after one had failed it: "
                "await ctx.remove_children() in its handler, or let them end first"
            )
            return await self._settle(attempt, await attempt.failure(pending))
        if isinstance(receipt, Refused):
            # A gate was opened while the handler went to sleep before it: it is run again with what came.
            return await self._settle(attempt, Stopped(ending.spoken, OUTDATED))
        return intent.ended

    # Leases and cancellation

    def _claims(self) -> Iterable[Claim]:
        return [claim for claim, _ in list(self._active.values())]

    def _report_lost(self, lost: list[Claim]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._interrupt, lost)
        except RuntimeError:  # the loop closed before the keeper stopped
            pass

    def _interrupt(self, lost: list[Claim]) -> None:
        tokens = {claim.token for claim in lost}
        for claim in self._ahead.remove(lambda ready: ready.token in tokens):
            self._start(claim, _why_lost(claim))
        for claim in lost:
            _, attempt = self._active.get(claim.token, (None, None))
            if attempt is not None:
                attempt.interrupt(_why_lost(claim))

    async def _watch_cancellations(self) -> None:
        with self._store.signals.listen("cancelled") as listener:
            while True:
                await listener.wait()
                if self._active:
                    self._keeper.poke()
                await asyncio.sleep(0.1)

    # Stopping

    async def _finish(self) -> None:
        """Lets attempts end within the grace period, gives back the rest; a commit in flight may still bring some."""
        self._stopping.set()
        self._give_back(self._ahead.clear())
        await self._drain(self._grace)
        for _, attempt in list(self._active.values()):
            if attempt is not None:
                attempt.interrupt(SHUTDOWN)
        await self._drain(max(self._grace, GIVING_BACK))
        for _, attempt in list(self._active.values()):
            if attempt is not None:
                attempt.abandoned = True
        for task in self._tasks.values():
            task.cancel()
        if left := await self._drain(1.0):
            log.warning("%d handlers do not stop when cancelled; they are left behind", left)

    async def _drain(self, seconds: float | None) -> int:
        """Waits for what is in hand; gives how much of it has not ended in time."""
        left = self._under_way()
        try:
            async with asyncio.timeout(seconds):
                while left:
                    await asyncio.wait(left)
                    left = self._under_way()
        except TimeoutError:
            pass
        return len(self._under_way())

    def _under_way(self) -> list[asyncio.Task[None]]:
        # A task that was cancelled before it began has not taken itself off the list.
        return [task for task in self._tasks.values() if not task.done()]


def _intent(work: Work, ending: Ending) -> Intent:
    match ending:
        case Success():
            return work.succeeded(ending)
        case Failure():
            return work.failed(ending)
        case Waiting():
            return work.suspended(ending)
        case Limited():
            return work.limited(ending)
        case Stopped():
            return work.stopped(ending)


def _why_lost(claim: Claim) -> str:
    """The store says only that it is over; the attempt's own commit will be told whether by cancel or loss."""
    return "cancelled" if claim.run is not None else LEASE_LOST


def _tell(work: Work, ending: Failure) -> None:
    """Failures are told where workers are watched; what they mean for a run is in its events."""
    name = f"step {work.step} of run {work.run_id}" if work.run_id is not None else f"job {work.claim.job}"
    fields = {
        "run": work.run_id,
        "step": work.step,
        "job": work.claim.job,
        "attempt": work.claim.attempt,
        "queue": work.claim.queue,
    }
    if ending.retry_in_ms is None:
        log.info("%s failed for good: %s: %s", name, ending.error.name, ending.error.error, extra=fields)
    else:
        wait = show_ms(ending.retry_in_ms)
        log.info("%s failed, next try in %s: %s: %s", name, wait, ending.error.name, ending.error.error, extra=fields)
