"""`app.workers`: the worker of this process and the services that run beside it."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..commit.runtime import Runtime
from ..core.argument_checks import check_arguments, check_count
from ..core.errors import ConfigError, StoreError, UnknownQueue
from ..core.gc_tuning import reduce_collections
from ..core.ids import check_id, check_name
from ..flows.start_on import StartOnWaits
from ..handlers.registry import Registry
from ..ports.bridge import Bridge
from ..ports.runner import Runner
from ..ports.store import Retention
from ..ports.unit import DELIVERIES, Claim, ClaimFilter
from ..runners.by_name import RunnersByName
from ..runners.inprocess import InProcessRunner
from ..settings import Settings
from ..worker.capacity import QueueLimits
from ..worker.outcomes import Work
from ..worker.presence import PresenceReporter, WorkerFacts
from ..worker.run_scope import WorkScope
from ..worker.worker import Worker
from .arguments import check_list
from .idleness import IdleDetector, IdleReport
from .inspections import Inspections
from .queue_limits import FOLLOW_INTERVAL_S, LimitOverride, LimitOverrides, apply_overrides, declared_limits
from .schedule_service import ScheduleService
from .store_urls import is_read_only
from .views import WorkerView, worker_view

if TYPE_CHECKING:
    from ..stores.offload import ValueSweeper
    from .alert_service import ServiceFactory

log = logging.getLogger("penstock.worker")
FIRST_RESTART_PAUSE_S, MAX_RESTART_PAUSE_S = 1.0, 60.0


async def run_restarting(run: Callable[[], Coroutine[Any, Any, None]], service: str) -> None:
    """Run a service until it is cancelled or done, and restart it if it fails."""
    pause = FIRST_RESTART_PAUSE_S
    while True:
        try:
            return await run()
        except Exception:
            log.exception("%s failed, restarting in %.0f s", service, pause)
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_RESTART_PAUSE_S)


def start_service(run: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
    """Start a service as a task that restarts it. No caller awaits it, so it must not end silently."""
    return asyncio.create_task(run_restarting(run, name.removeprefix("penstock-")), name=name)


SWEEP_INTERVAL_S = 60.0
SWEEP_REST_FACTOR = 4  # the sweep takes at most a fifth of the store's time
KEEP_DELIVERIES = 100  # finished delivery jobs; every event that a step waits for makes one


RunnerFactory = Callable[[int], Runner]
"""Makes a runner from the number of handlers it may run at once. Called on the event loop."""
ClaimOpener = Callable[[Claim], Coroutine[Any, Any, Work]]


class _ClaimEngine:
    """The worker's engine: the App opens its claims."""

    def __init__(self, open_claim: ClaimOpener) -> None:
        self.open = open_claim


async def _register_nothing() -> None:
    """Stand for an App without definitions in files."""


@check_arguments
class Workers:
    """The worker inside this process. An App runs one at a time; more need more processes, or more Apps."""

    def __init__(
        self,
        runtime: Runtime,
        open_claim: ClaimOpener,
        schedules: ScheduleService,
        start_on: StartOnWaits,
        settings: Settings,
        bridges: Sequence[Bridge] = (),
        file_bridges: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        make_runner: RunnerFactory | None = None,
        runner_factories: Mapping[str, Callable[[], Runner]] | None = None,
        register_dags: Callable[[], Awaitable[None]] | None = None,
        make_alert_service: ServiceFactory = lambda: None,
        value_sweeper: ValueSweeper | None = None,
        is_closed: bool = False,
    ) -> None:
        self._make_alert_service = make_alert_service
        self._value_sweeper = value_sweeper
        self._register_dags = register_dags or _register_nothing
        self._runtime = runtime
        self._store = runtime.store
        self._outages = runtime.committer.outages
        self._engine = _ClaimEngine(open_claim)
        self._schedules = schedules
        self._start_on = start_on
        self._clock = runtime.clock
        self._settings = settings
        self._registry = runtime.registry
        self._bridges = bridges
        self._file_bridges = file_bridges
        self._make_runner = make_runner or InProcessRunner
        self._runner_factories: dict[str, Callable[[], Runner]] = {
            "process": partial(_make_process_runner, settings),
            **(runner_factories or {}),
        }
        self._worker: Worker | None = None
        self._idle_detector: IdleDetector | None = None
        self._overrides = LimitOverrides(runtime)
        self._changed: dict[str, LimitOverride] = {}
        self.inspections = Inspections(runtime, lambda: self._worker)
        self._presence: PresenceReporter | None = None
        self._requested: tuple[Sequence[str], int] = ((), 1)
        self._ended = asyncio.Event()
        self._ended.set()
        self._closed = is_closed

    @property
    def is_running(self) -> bool:
        """Whether a worker runs in this process."""
        return self._worker is not None

    async def run(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        name: str | None = None,
        runs: Sequence[str] | None = None,
    ) -> None:
        """Run a worker until it is cancelled or `stop` is called. Work in hand is finished or released first.

        Args:
            queues: Queues to work on. Default: those of the loaded handlers.
            concurrency: Maximum number of handlers at once.
            name: Name of the worker in events and logs.
            runs: Work only on these runs, and on what their handlers start from now on; fire no schedules. Default:
                all jobs of the queues.
        """
        await self._run(queues, concurrency, _worker_name(name), runs)

    async def run_until_idle(
        self, queues: Sequence[str] | None = None, *, concurrency: int | None = None, name: str | None = None
    ) -> IdleReport:
        """Run a worker until nothing is due, and return when to run one again.

        It fires schedules, too. It does not wait for delayed jobs, waits, jobs of other workers and paused queues.

        Args:
            queues: Queues to work on. Default: those of the loaded handlers.
            concurrency: Maximum number of handlers at once.
            name: Name of the worker in events and logs.
        """
        running = asyncio.create_task(self._run(queues, concurrency, _worker_name(name), None), name="penstock-worker")
        await asyncio.sleep(0)
        detector = self._idle_detector
        if running.done() or detector is None:
            await running
            return IdleReport(False)
        idle = asyncio.create_task(detector.wait(self._clock.now_ms), name="penstock-idle")
        try:
            await asyncio.wait((running, idle), return_when=asyncio.FIRST_COMPLETED)
            report = idle.result() if idle.done() else IdleReport(False)
        finally:
            idle.cancel()
            self.stop()
            await running
        return report

    async def _run(
        self, queues: Sequence[str] | None, concurrency: int | None, name: str, runs: Sequence[str] | None
    ) -> None:
        if self._closed:  # closed before its task ran: on a closed store it would wait for ever
            return
        if self._worker is not None:
            raise ConfigError("this App already runs a worker; create another App for another worker")
        settings = self._settings
        if is_read_only(settings.url):
            raise ConfigError(f"a worker cannot use {settings.url}, which is read-only; remove ?mode=ro from the URL")
        if queues is not None:
            queues = [check_name(queue, "queue name") for queue in check_list(queues, "queues")]
        concurrency = check_count(concurrency, "concurrency") if concurrency is not None else None
        scope = WorkScope([check_id(run, "run id") for run in check_list(runs, "runs")]) if runs is not None else None
        await self._run_scoped(queues, scope, concurrency, name)

    async def _run_scoped(
        self,
        queues: Sequence[str] | None,
        scope: WorkScope | None,
        concurrency: int | None = None,
        name: str | None = None,
    ) -> None:
        settings = self._settings
        self._requested = queues or settings.queues, concurrency or settings.concurrency
        runner = self._open_runners(max(settings.threads, concurrency or settings.concurrency))
        worker = Worker(
            name=name or _worker_name(None),
            runtime=self._runtime,
            engine=self._engine,
            runner=runner,
            queues=self._limits(*self._requested),
            concurrency=concurrency or settings.concurrency,
            lease_ms=settings.lease,
            grace=settings.grace / 1000,
            max_crashes=settings.max_crashes,
            max_calls=settings.call_concurrency,
            scope=scope,
        )
        self._worker = worker
        is_prepared = asyncio.Event()
        self._idle_detector = IdleDetector(worker, self._schedules.scheduler, self._store, settings.lease, is_prepared)
        self._ended.clear()
        presence = PresenceReporter(self._store, self._outages, self._facts_collector(worker))
        self._presence = presence
        background = [
            start_service(partial(self._register_start_on, is_prepared), "penstock-start-on"),
            start_service(presence.run, "penstock-presence"),
            start_service(self.inspections.serve, "penstock-inspections"),
            start_service(self._follow_limits, "penstock-limits"),
        ]
        if scope is None:
            background += [
                start_service(self._schedules.scheduler.run, "penstock-scheduler"),
                start_service(self._sweep, "penstock-sweep"),
                *(start_service(bridge.run, "penstock-bridge") for bridge in self._bridges),
            ]
            if (alerts := self._make_alert_service()) is not None:
                background.append(start_service(alerts.run, "penstock-alerts"))
        try:
            async with self._file_bridges() if scope is None else nullcontext():
                if await self._read_changed_limits():  # before the first claim
                    self._refresh_limits()
                with reduce_collections():
                    await self._until_stopped(worker)
        finally:
            self._presence = None
            try:
                for task in background:
                    task.cancel()
                await asyncio.wait(background)
                await presence.remove()
            finally:  # a caller that is cancelled here must not leave `close` waiting for ever
                self._worker = self._idle_detector = None
                self._ended.set()
                await runner.close()

    def _open_checking_runners(self, node: Callable[[], Runner]) -> RunnersByName:
        """Return runners that replay handlers beside the worker's own; the caller closes them."""
        return RunnersByName(self._make_runner(1), {**self._runner_factories, "node": node})

    def _open_runners(self, threads: int) -> RunnersByName:
        return RunnersByName(self._make_runner(threads), self._runner_factories)

    async def list(self) -> Sequence[WorkerView]:
        """Return the workers that are alive, of all processes on this store.

        A worker reports itself every 5 seconds. It leaves the list when it stops, and 30 seconds after its last report
        if it was killed.
        """
        if self._presence is not None:
            await self._presence.report()
        return sorted(map(worker_view, await self._store.workers()), key=lambda worker: (worker.name, worker.id))

    def _facts_collector(self, worker: Worker) -> Callable[[], WorkerFacts]:
        host, slots, started = socket.gethostname(), self._requested[1], self._clock.now_ms()

        def collect() -> WorkerFacts:
            registry = self._registry()
            return WorkerFacts(
                name=worker.name,
                host=host,
                pid=os.getpid(),
                version=__version__,
                fingerprint=registry.fingerprint,
                queues=tuple(queue for queue in worker.queues if queue != DELIVERIES),
                slots=slots,
                busy=min(worker.active, slots),
                started=started,
                handlers=dict(registry.handler_fingerprints),
                is_scoped=worker.scope is not None,
            )

        return collect

    @property
    def active(self) -> int:
        """Number of attempts that are running."""
        return self._worker.active if self._worker is not None else 0

    @property
    def requested(self) -> int:
        """Number of jobs that may arrive: their claim is not answered yet."""
        return self._worker.reserved if self._worker is not None else 0

    @property
    def next_due(self) -> int | None:
        """When more work is due, in milliseconds, as far as the worker knows."""
        return self._worker.next_due if self._worker is not None else None

    @property
    def launched(self) -> ClaimFilter:
        """The runs and jobs that handlers of a worker with `runs=` have started."""
        scope = self._worker.scope if self._worker is not None else None
        return scope.launched if scope is not None else ClaimFilter()

    def stop(self) -> None:
        """Stop the worker: it takes no more work, and `run` returns when work in hand is finished or released."""
        if self._worker is not None:
            self._worker.stop()

    def refresh(self) -> None:
        """Give the running worker the queues and limits of the present registry."""
        if self._worker is None:
            return
        self._refresh_limits()
        self._store.signals.notify_all()  # the services for declared schedules and start_on read the registry again

    def _refresh_limits(self) -> None:
        if self._worker is None:
            return
        queues, concurrency = self._requested
        known = self._registry().queues()
        wanted = [queue for queue in queues or known if queue in known]
        self._worker.change_queues(self._limits(wanted, concurrency) if wanted else {})

    async def close(self) -> None:
        """Stop the worker and wait for its end. `App.close` does it."""
        self._closed = True
        self.stop()
        await self._ended.wait()

    @asynccontextmanager
    async def background(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        name: str | None = None,
        runs: Sequence[str] | None = None,
    ) -> AsyncIterator[None]:
        """Run a worker in the background: `async with app.workers.background():`.

        Args:
            queues: Queues to work on. Default: those of the loaded handlers.
            concurrency: Maximum number of handlers at once.
            name: Name of the worker in events and logs.
            runs: Work only on these runs, and on what their handlers start from now on; fire no schedules. Default:
                all jobs of the queues.
        """
        running = self._run(queues, concurrency, _worker_name(name), runs)
        task = asyncio.create_task(running, name="penstock-worker")
        try:
            await asyncio.sleep(0)
            if not task.done():  # else it could not start, and `await task` raises why
                yield
        finally:
            if not task.done():
                self.stop()
            await task

    async def _until_stopped(self, worker: Worker) -> None:
        """Run the worker; when cancelled, stop it properly first."""
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
        known = sorted({handler.queue_name for handler in handlers})
        for queue in queues:
            if queue not in known:
                raise UnknownQueue(
                    f"no handler for queue {queue!r} in this process; known queues: {', '.join(known) or 'none'}"
                )
        limits: dict[str, QueueLimits] = {}
        for queue in queues or known:
            own, rate, max_active = declared_limits(handlers, queue)
            limits[queue] = QueueLimits(own or concurrency, rate, max_active)
        # Every worker delivers events, whatever queues it works on.
        limits[DELIVERIES] = QueueLimits(concurrency)
        return apply_overrides(limits, self._changed)

    async def _read_changed_limits(self) -> bool:
        """Read the limits that were changed while workers run. Return whether they differ from those in use."""
        try:
            changed = await self._overrides.read()
        except StoreError as problem:
            self._outages.report_failure("cannot read the changed limits of queues, retrying", problem)
            return False
        if changed == self._changed:
            return False
        self._changed = changed
        return True

    async def _follow_limits(self) -> None:
        with self._store.signals.listen("limits") as listener:
            while True:
                await listener.wait(FOLLOW_INTERVAL_S)
                if await self._read_changed_limits():
                    self._refresh_limits()

    async def _register_start_on(self, is_prepared: asyncio.Event) -> None:
        """Register the waits by which events start flows, and the dags in files, again after each reload."""
        kept: Registry | None = None
        with self._store.signals.listen("registry") as listener:
            while True:
                try:
                    if kept is not (registry := self._registry()):
                        await self._start_on.register(registry.flows)
                        await self._register_dags()
                        kept = registry
                        is_prepared.set()
                except StoreError as problem:
                    self._outages.report_failure("cannot register which events start flows, retrying", problem)
                await listener.wait(5.0 if kept is None else None)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            try:
                await self._sweep_all()
            except StoreError as problem:
                self._outages.report_failure("cannot apply retention, retrying later", problem)

    async def _sweep_all(self) -> None:
        """Sweep in small batches. After each, rest several times as long as it took: work goes first."""
        loop, removed = asyncio.get_running_loop(), {"runs": 1}
        while any(removed.values()):
            began = loop.time()
            removed = await self._store.sweep(self._retention())
            await asyncio.sleep(SWEEP_REST_FACTOR * (loop.time() - began))
        if self._value_sweeper is not None:
            await self._value_sweeper.sweep()

    def _retention(self) -> Retention:
        now, settings = self._clock.now_ms(), self._settings

        def before(age: int | None) -> int | None:
            return None if age is None else now - age

        return Retention(
            runs_before=before(settings.retain_runs),
            jobs_before=before(settings.retain_jobs),
            events_before=before(settings.retain_events),
            entity_events_before=before(settings.retain_entity_events),
            keep_runs=settings.keep_runs,
            keep_jobs=settings.keep_jobs,
            keep_events=settings.keep_events,
            keep_entity_events=settings.keep_entity_events,
            keep_deliveries=KEEP_DELIVERIES,
        )


def _make_process_runner(settings: Settings) -> Runner:
    from ..runners.process.options import ProcessOptions  # most workers have no handlers in child processes
    from ..runners.process.runner import ProcessRunner

    return ProcessRunner(ProcessOptions.read(settings))


def _worker_name(name: str | None) -> str:
    if name is not None:
        return check_name(name, "worker name")
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname())
    return f"{host[:50]}-{os.getpid()}-{random.randrange(16**4):04x}"
