"""What goes on beside a worker. Nobody looks at these tasks: if one failed, what it does would just not happen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from ..commit.runtime import Runtime
from ..core.errors import ConfigError, StoreError, UnknownQueue
from ..flows.start_on import Starters
from ..handlers.registry import Registry
from ..ports.bridge import Bridge
from ..ports.store import Retention
from ..ports.unit import DELIVERIES, Claim
from ..runners.inprocess import InProcessRunner
from ..settings import Settings
from ..worker.capacity import QueueLimits
from ..worker.outcomes import Work
from ..worker.worker import Worker
from .arguments import count, several
from .gc_tuning import fewer_collections
from .schedules import Scheduling
from .store_urls import reads_only

log = logging.getLogger("penstock.worker")
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds; what fails for good is not to fill the log


async def kept_up(run: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
    """Runs until it is cancelled or done, and again if it fails."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await run()
        except Exception:
            log.exception("%s failed and is begun anew", what)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)


def in_background(run: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
    """A task that is kept up, by its name."""
    return asyncio.create_task(kept_up(run, name.removeprefix("penstock-")), name=name)


SWEEP_EVERY = 60.0  # seconds
KEEP_DELIVERIES = 100  # enough to see what the last ones were; every event that is waited for makes one


class _Dispatch:
    """The worker's engine: whatever the App says of a claim."""

    def __init__(self, open_claim: Callable[[Claim], Coroutine[Any, Any, Work]]) -> None:
        self._open = open_claim

    def open(self, claim: Claim) -> Coroutine[Any, Any, Work]:
        return self._open(claim)


class Working:
    """At most one worker of an App at a time."""

    def __init__(
        self,
        runtime: Runtime,
        open_claim: Callable[[Claim], Coroutine[Any, Any, Work]],
        scheduling: Scheduling,
        starters: Starters,
        settings: Settings,
        bridges: Sequence[Bridge] = (),
        moving: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> None:
        self._store = runtime.store
        self._committer = runtime.committer
        self._engine = _Dispatch(open_claim)
        self._scheduling = scheduling
        self._starters = starters
        self._clock = runtime.clock
        self._unit_id = runtime.new_unit_id
        self._settings = settings
        self._registry = runtime.registry
        self._bridges = bridges
        self._moving = moving  # what else goes on as long as a worker runs
        self._worker: Worker | None = None
        self._asked: tuple[Sequence[str], int] = ((), 1)
        self._ended = asyncio.Event()
        self._ended.set()
        self._closed = False

    async def run(self, queues: Sequence[str] | None, concurrency: int | None, name: str) -> None:
        if self._closed:  # before its task came to run: on a closed store it would wait for ever
            return
        if self._worker is not None:
            raise ConfigError("this App runs a worker already: make another App for another worker")
        settings = self._settings
        if reads_only(settings.url):
            raise ConfigError(f"a worker writes, and {settings.url} is only read: take ?mode=ro off the URL")
        queues = several(queues, "queues") if queues is not None else None
        concurrency = count(concurrency, "concurrency") if concurrency is not None else None
        self._asked = queues or settings.queues, concurrency or settings.concurrency
        runner = InProcessRunner(max(settings.threads, concurrency or settings.concurrency))
        worker = Worker(
            name=name,
            store=self._store,
            committer=self._committer,
            engine=self._engine,
            runner=runner,
            clock=self._clock,
            queues=self._limits(*self._asked),
            concurrency=concurrency or settings.concurrency,
            lease_ms=settings.lease,
            grace=settings.grace / 1000,
            max_crashes=settings.max_crashes,
            unit_id=self._unit_id,
        )
        self._worker = worker
        self._ended.clear()
        background = [
            in_background(self._scheduling.scheduler.run, "penstock-scheduler"),
            in_background(self._sweep, "penstock-sweep"),
            in_background(self._keep_starters, "penstock-starters"),
            *(in_background(bridge.run, "penstock-bridge") for bridge in self._bridges),
        ]
        try:
            async with self._moving():
                with fewer_collections():
                    await self._until_stopped(worker)
        finally:
            for task in background:
                task.cancel()
            await asyncio.wait(background)
            await runner.close()
            self._worker = None
            self._ended.set()

    @property
    def in_hand(self) -> int:
        """How many attempts are under way."""
        return self._worker.active if self._worker is not None else 0

    @property
    def asked_for(self) -> int:
        """How many more there may be soon: their claim is not answered yet."""
        return self._worker.asked_for if self._worker is not None else 0

    @property
    def next_due(self) -> int | None:
        """When there is more to work on, as far as is known."""
        return self._worker.next_due if self._worker is not None else None

    def stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()

    def refresh(self) -> None:
        """The running worker takes the queues and limits of the registry as it is now."""
        if self._worker is None:
            return
        queues, concurrency = self._asked
        known = self._registry().queues()
        wanted = [queue for queue in queues or known if queue in known]
        self._worker.work_on(self._limits(wanted, concurrency) if wanted else {})
        self._store.signals.notify_all()  # whoever keeps what the code asks for (schedules, starters) looks again

    async def close(self) -> None:
        self._closed = True
        self.stop()
        await self._ended.wait()

    @asynccontextmanager
    async def background(
        self, name: str, queues: Sequence[str] | None = None, concurrency: int | None = None
    ) -> AsyncIterator[None]:
        task = asyncio.create_task(self.run(queues, concurrency, name), name="penstock-worker")
        try:
            await asyncio.sleep(0)
            if not task.done():  # else it could not begin, and `await task` says why
                yield
        finally:
            if not task.done():
                self.stop()
            await task

    async def _until_stopped(self, worker: Worker) -> None:
        """A cancelled worker stops in good order, and only then is cancelled."""
        work = asyncio.create_task(worker.run(), name="penstock-work")
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            worker.stop()
            await asyncio.wait((work,))
            raise
        finally:
            if work.done() and not work.cancelled():
                work.result()

    def _limits(self, queues: Sequence[str], concurrency: int) -> dict[str, QueueLimits]:
        handlers = self._registry().handlers()
        known = sorted({handler.home for handler in handlers})
        for queue in queues:
            if queue not in known:
                raise UnknownQueue(f"no handler here works on queue {queue!r}: known are {', '.join(known) or 'none'}")
        limits: dict[str, QueueLimits] = {}
        for queue in queues or known:
            mine = [handler for handler in handlers if handler.home == queue]
            own = [handler.concurrency for handler in mine if handler.concurrency is not None]
            most = [handler.max_active for handler in mine if handler.max_active is not None]
            rate = next((handler.rate for handler in mine if handler.rate is not None), None)
            limits[queue] = QueueLimits(min(own, default=concurrency), rate, min(most, default=None))
        # Events are delivered by whoever works, whatever it works on.
        limits[DELIVERIES] = QueueLimits(concurrency)
        return limits

    async def _keep_starters(self) -> None:
        """Opens the gates by which events start the flows of this code; again when it was reloaded."""
        kept: Registry | None = None
        with self._store.signals.listen("registry") as listener:
            while True:
                try:
                    if kept is not (registry := self._registry()):
                        await self._starters.keep(registry.flows)
                        kept = registry
                except StoreError as problem:
                    log.warning("cannot say which events start flows, trying again: %s", problem)
                await listener.wait(5.0 if kept is None else None)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            try:
                await self._sweep_all()
            except StoreError as problem:
                log.warning("cannot remove what is old, trying again later: %s", problem)

    async def _sweep_all(self) -> None:
        """Small batches with room between them: work goes first."""
        gone = {"runs": 1}
        while any(gone.values()):
            gone = await self._store.sweep(self._retention())
            await asyncio.sleep(0.1)

    def _retention(self) -> Retention:
        now, settings = self._clock.now_ms(), self._settings

        def before(age: int | None) -> int | None:
            return None if age is None else now - age

        return Retention(
            runs_before=before(settings.retain_runs),
            jobs_before=before(settings.retain_jobs),
            events_before=before(settings.retain_events),
            keep_runs=settings.keep_runs,
            keep_jobs=settings.keep_jobs,
            keep_events=settings.keep_events,
            keep_deliveries=KEEP_DELIVERIES,
        )
