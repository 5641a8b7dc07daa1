"""`App`: settings to store to engines. Everything that starts here also stops here."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack, cast, overload

from .. import __version__
from ..commit.committer import Committer
from ..commit.rate_counter import RateCounter
from ..commit.runtime import Runtime
from ..context.blob_urls import BlobUrls
from ..context.blobs import BlobView
from ..core.clock import Clock, SystemClock, to_iso
from ..core.durations import Duration
from ..core.errors import ConfigError
from ..core.events import EventBodies
from ..core.outage_retry import open_with_retry
from ..core.redaction import Redactor
from ..core.retry import RetryOption
from ..core.text import shorten
from ..handlers.discovery import (
    DiscoveredHandler,
    LoadProblem,
    Scripts,
    discover,
    discover_file,
    find_bridges,
    read_functions,
)
from ..handlers.options import KeepOption
from ..handlers.registry import Registry, build_registry
from ..ports.blobs import ObjectStore
from ..ports.bridge import Bridge
from ..ports.store import Store
from ..ports.unit import Claim
from ..settings import SettingOptions, Settings
from ..telemetry.instrumentation import Instrumentation, InstrumentationListener
from ..telemetry.logging import configure
from ..telemetry.tracing import Tracer
from .app_log import make_app_log
from .arguments import NoInput, StartOptions, check_list, check_path
from .assembly import PARTS, WITH_LARGE_VALUES
from .store_urls import open_store
from .trace_setup import make_tracer

if TYPE_CHECKING:
    from ..dags.engine import DagEngine
    from ..entities.engine import EntityEngine
    from ..flows.delivery_preview import DeliveryPreview
    from ..flows.engine import FlowEngine
    from ..flows.start_on import StartOnWaits
    from ..jobs.launcher import Launcher
    from ..runners.node.runner import NodeFiles
    from ..telemetry.tracing import Tracer
    from ..worker.child_runs import ChildRuns
    from ..worker.engines import Engine, Engines, RunDefinition
    from ..worker.outcomes import Work
    from .advice import Advice
    from .alerts import Alerts
    from .blobs import Blobs
    from .bridges import BridgeView
    from .dags import Dags
    from .dead_letters import DeadLetters
    from .diagnosis import Check
    from .entities import Entities
    from .events import Events
    from .executions import ExecutionFrame
    from .flows import Flows
    from .jobs import Jobs
    from .outbox import Outbox
    from .queues import Queues
    from .run_handle import R, Run
    from .run_reader import RunReader
    from .runs import Runs
    from .schedule_service import ScheduleService
    from .schedules import Schedules
    from .shared_connections import SharedConnections
    from .snapshots import Snapshots
    from .state import AppState
    from .tokens import Tokens
    from .transactions import Transactions
    from .waits import Waits
    from .webhooks import Webhooks
    from .workers import RunnerFactory, Workers

log = logging.getLogger("penstock")
I = TypeVar("I")  # noqa: E741
"""The input of a flow."""

EngineFactory: TypeAlias = "Callable[[Runtime, Launcher], Engine]"
"""Makes an engine for another kind of run, from what the App's own engines share. Its work has the launcher if its
handlers may start jobs and runs."""


_OPENED = ("store", "_runtime", "_committer")


class NotOpen(ConfigError, AttributeError):
    """An App was used before it was opened."""

    code = "not_open"


class App:
    """Penstock in one object: start flows, enqueue jobs, look at them, work on them.

        async with App(dir="workers") as app:
            run = await app.start("shop", {"order": 7})
            print(await app.result(run))

    Everything else is in a facet: `app.flows`, `app.dags`, `app.entities`, `app.runs`, `app.jobs`, `app.queues`,
    `app.dead_letters`, `app.schedules`, `app.waits`, `app.events`, `app.state`, `app.blobs`, `app.workers`,
    `app.outbox` and `app.tokens`.

    Args:
        url: The store: "sqlite:///file.db", "redis://host:6379/0" or "postgresql://user@host/database". Default:
            `PENSTOCK_URL`, else a SQLite file under `.penstock/`.
        dir: Folder of the worker files. Default: `workers`, if it exists.
        handlers: Decorated functions, instead of a folder.
        clock: Where time comes from; tests pass a FakeClock.
        store: A store to use instead of opening `url`.
        bridges: Connections to the queues of other systems, such as pg-boss.
        listeners: Functions that get instrumentation events, for metrics and traces.
        runner: A function that makes the worker's runner from the number of handlers at once. Default: handlers run
            in this process.
        engines: Functions that make engines for further kinds of runs.
        connections: Connections that Apps of several namespaces share.
        blobs: A blob store to use instead of opening `blob_url`.
        settings: Any setting by name; see the settings reference.
    """

    # Made when first used; see `assembly`.
    runs: Runs
    jobs: Jobs
    queues: Queues
    dead_letters: DeadLetters
    schedules: Schedules
    waits: Waits
    events: Events
    state: AppState
    webhooks: Webhooks
    dags: Dags
    entities: Entities
    outbox: Outbox
    tokens: Tokens
    blobs: Blobs
    alerts: Alerts
    workers: Workers
    _advice: Advice
    _children: ChildRuns
    _launcher: Launcher
    _engines: Engines
    _engine: FlowEngine
    _dag_engine: DagEngine
    _entity_engine: EntityEngine
    _delivery_preview: DeliveryPreview
    _transactions: Transactions
    _snapshots: Snapshots
    _run_reader: RunReader
    _schedule_service: ScheduleService
    _start_on: StartOnWaits

    def __init__(
        self,
        url: str | None = None,
        dir: str | Path | None = None,
        *,
        handlers: Iterable[Callable[..., Any]] | None = None,
        clock: Clock | None = None,
        store: Store | None = None,
        bridges: Iterable[Bridge] = (),
        listeners: Iterable[InstrumentationListener] = (),
        runner: RunnerFactory | None = None,
        engines: Iterable[EngineFactory] = (),
        connections: SharedConnections | None = None,
        blobs: ObjectStore | None = None,
        **settings: Unpack[SettingOptions],
    ) -> None:
        values = {**settings, "url": url, "dir": str(dir) if isinstance(dir, Path) else dir}
        self.settings = Settings.load(values)
        redactor = Redactor(self.settings.redact)
        if settings.get("log") is not None or settings.get("log_format") is not None:
            configure(self.settings.log, self.settings.log_format, redactor=redactor)
        self._machine_clock = clock or SystemClock()
        self.clock: Clock = self._machine_clock  # the store's, once it is open
        self._found: list[DiscoveredHandler] = []  # in files
        self._load_problems: list[LoadProblem] = []
        self.registry = self._load(handlers, dir is not None or (handlers is None and "PENSTOCK_DIR" in os.environ))
        self._bodies = EventBodies(self.settings.namespace, redactor, records_state=self.settings.state_events == "on")
        self._bodies.add_types(self.settings.stream_types)
        self.log = make_app_log(self._bodies)
        self._store = store
        self._bridges = tuple(check_list(bridges, "bridges"))
        own = [make_tracer()] if self.settings.opentelemetry == "on" else []
        self._instrumentation = Instrumentation.of([*own, *check_list(listeners, "listeners")])
        self._make_runner = runner
        self._engine_factories = tuple(check_list(engines, "engines"))
        self._unit_ids = map(f"{os.urandom(6).hex()}-{{}}".format, itertools.count(1))
        self._shared_connections = connections
        self._objects = blobs
        self._is_open = False
        self._making = threading.RLock()

    @cached_property
    def flows(self) -> Flows:
        from .flows import Flows

        return Flows(self)

    def listen(self, listener: InstrumentationListener) -> None:
        """Add a listener of instrumentation events. Call it before the App is open.

        Args:
            listener: A function that gets each event, on the event loop's thread. It must not block.
        """
        if self._is_open:
            raise ConfigError(
                "listeners cannot be added to an App that is open; add them before, or pass listeners= to App"
            )
        before = self._instrumentation.listeners if self._instrumentation is not None else ()
        self._instrumentation = Instrumentation([*before, listener])

    @property
    def _tracer(self) -> Tracer | None:
        return self._instrumentation.tracer if self._instrumentation is not None else None

    # Opening and closing

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Make a part of an open App when it is first used."""
            if name in PARTS and vars(self).get("_has_parts"):
                return self._make_part(name)
            if name in PARTS or name in _OPENED:
                raise NotOpen("this App is not open; use `async with App(…) as app:` or call `await app.open()` first")
            raise AttributeError(f"App has no attribute {name!r}")

    def __dir__(self) -> Iterable[str]:
        return {*super().__dir__(), *PARTS}

    async def open(self, *, connect_timeout: Duration | None = None) -> None:
        """Open the store. `async with` does it.

        Args:
            connect_timeout: Retry for this long if the server cannot be reached. Default: raise at once.
        """
        if self._is_open:
            raise ConfigError("this App is already open")
        store = self._store or open_store(
            self.settings.url,
            clock=self._machine_clock,
            namespace=self.settings.namespace,
            shared=self._shared_connections,
        )
        # A local file that cannot be opened now will not open later either.
        timeout = connect_timeout if store.profile.is_remote else None
        await open_with_retry("the store is not open yet", store.open, timeout)
        self._build(store)
        self._is_open = True
        try:
            for bridge in self._bridges:
                from .bridges import AppBridgeHost

                open_bridge = partial(bridge.open, AppBridgeHost(self))
                await open_with_retry("the bridge is not open yet", open_bridge, connect_timeout)
        except BaseException:
            await self.close()
            raise

    def _build(self, store: Store) -> None:
        for name in PARTS:  # those of an earlier opening
            vars(self).pop(name, None)
        self.clock = store.clock
        objects = self._opened_objects = self._open_objects(store)
        self.store = store = self._keep_values(store, objects)
        self._committer = Committer(store, self._instrumentation)
        self._committer.rates = RateCounter(store, self._committer.outages)
        self._blob_view = self._open_blobs(objects, store)
        self._runtime = Runtime(
            store,
            self._committer,
            self._bodies,
            store.clock,
            partial(next, self._unit_ids),
            partial(getattr, self, "registry"),
            self._instrumentation,
            self.settings.public_url,
            self._blob_view,
        )
        self._has_parts = True
        self._bodies.add_types(self._engines.run_kinds)

    def _make_part(self, name: str) -> Any:
        """Make a part of the App, once: a SyncApp asks from several threads."""
        with self._making:
            if (part := vars(self).get(name)) is None:
                part = PARTS[name](self)
                if name in WITH_LARGE_VALUES and self._value_sweeper is not None and self.settings.blob_threshold:
                    from .lifted_limits import lift_limits

                    lift_limits(part)
                setattr(self, name, part)
            return part

    async def close(self) -> None:
        """Stop the worker, write what is in hand and close the store."""
        if not self._is_open:
            return
        self._is_open = False
        if (workers := vars(self).get("workers")) is not None:
            await workers.close()
        for bridge in self._bridges:
            await bridge.close()
        if (node := vars(self).get("_node")) is not None:
            await node.close()
        if (events := vars(self).get("events")) is not None:
            await events.close()
        await self._committer.close()
        await self.store.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Shortcuts

    @overload
    async def start(self, flow: str, input: Any = None, **options: Unpack[StartOptions]) -> Run[Any]: ...

    @overload
    async def start(
        self, flow: NoInput[Coroutine[Any, Any, R]], input: None = None, **options: Unpack[StartOptions]
    ) -> Run[R]: ...

    @overload
    async def start(
        self, flow: Callable[[I, Any], Coroutine[Any, Any, R]], input: I, **options: Unpack[StartOptions]
    ) -> Run[R]: ...

    @overload
    async def start(
        self, flow: Callable[[I], Coroutine[Any, Any, R]], input: I, **options: Unpack[StartOptions]
    ) -> Run[R]: ...

    @overload
    async def start(self, flow: NoInput[R], input: None = None, **options: Unpack[StartOptions]) -> Run[R]: ...

    @overload
    async def start(self, flow: Callable[[I, Any], R], input: I, **options: Unpack[StartOptions]) -> Run[R]: ...

    @overload
    async def start(self, flow: Callable[[I], R], input: I, **options: Unpack[StartOptions]) -> Run[R]: ...

    @overload
    async def start(
        self, flow: str | Callable[..., Any], input: Any = None, *, result: type[R], **options: Unpack[StartOptions]
    ) -> Run[R]: ...

    async def start(
        self,
        flow: str | Callable[..., Any],
        input: Any = None,
        *,
        key: str | None = None,
        correlation_id: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        tags: Mapping[str, str] | None = None,
        result: Any = None,
        tx: Any = None,
    ) -> Run[Any]:
        """Start a run of a flow and return its handle: its id, with methods. Short for `app.runs.start`.

        Args:
            flow: A flow's name, or the function marked with `@flow`.
            input: What the first step receives: any JSON value, dataclass, msgspec or pydantic model.
            key: Idempotency key. It becomes the run's id; a key that exists starts nothing, and the handle's `existing`
                is True. Its `differs` is True if the run of the key has another input.
            correlation_id: Stored with every event of the run. Default: the run's id.
            priority: Of the run's steps; lower runs first.
            delay: How long to wait before the first step is due, such as "10m".
            at: When the first step is due, a datetime with a time zone. Instead of `delay`.
            tags: Names and values to find the run by: `app.runs.list(tags=...)`.
            result: Type of the run's result, for `run.result()`. Default: what the function returns, if it is the
                flow's only step.
            tx: A connection or session of your own; the run starts when its transaction commits.
        """
        return await self.runs._start(flow, input, key, correlation_id, priority, delay, at, tags, result, tx)

    async def emit(
        self,
        kind: str,
        data: Any = None,
        *,
        run: str | None = None,
        key: str | None = None,
        tags: Collection[str] | None = None,
        tx: Any = None,
    ) -> bool | None:
        """Emit an event, globally or to one run. Short for `app.events.emit`.

        Return False if its key was used before: then nothing is emitted. With `tx`, return None.

        Args:
            kind: Kind of the event: dotted words such as "order.paid".
            data: Any JSON value.
            run: Id of the run that receives it. Default: every run that waits for it, and flows with `start_on`.
            key: Idempotency key; an event with a key that was used before is not emitted.
            tags: Words to filter events by, such as ["audit", "eu"].
            tx: A connection or session of your own; the event is emitted when its transaction commits.
        """
        return cast("bool | None", await self.events.emit(kind, data, run=run, key=key, tags=tags, tx=tx))

    def execute(
        self,
        queue: str | Callable[..., Any],
        input: Any = None,
        *,
        name: str | None = None,
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> AsyncIterator[ExecutionFrame]:
        """Run one handler now, recorded as a plain job, and yield its frames; see `app.jobs.execute`.

        Args:
            queue: A queue's name, or a function marked with `@job`.
            input: What the handler receives.
            name: Name of the job, if several handlers share the queue.
            key: Idempotency key.
            timeout: Raise WaitTimeout if the job has not ended after this long.
        """
        return self.jobs.execute(queue, input, name=name, key=key, timeout=timeout)

    async def enqueue(
        self,
        queue: str | Callable[..., Any],
        input: Any = None,
        *,
        key: str | None = None,
        name: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        retry: RetryOption | None = None,
        correlation_id: str | None = None,
        dedupe: str | None = None,
        dedupe_ttl: Duration | None = None,
        keep_completed: KeepOption | None = None,
        keep_failed: KeepOption | None = None,
        order_key: str | None = None,
        tx: Any = None,
    ) -> str:
        """Enqueue a job and return its id. Short for `app.jobs.enqueue`.

        Args:
            queue: A queue's name, or a function marked with `@job`.
            input: What the handler receives: any JSON value, dataclass, msgspec or pydantic model.
            key: Idempotency key. It becomes the job's id; a key that exists adds nothing.
            name: Name of the job, if several handlers share the queue.
            delay: How long to wait before the job is due, such as "10m".
            at: When the job is due, a datetime with a time zone. Instead of `delay`.
            priority: Lower runs first. Default 0, or what the handler declares.
            retry: Retry policy of this job instead of the handler's: a number of attempts, a mapping or a RetryPolicy.
            correlation_id: Stored with the job and its events, to find what belongs together.
            dedupe: A key within the queue. While another job holds it, nothing is added and that job's id is returned.
            dedupe_ttl: How long the dedupe key is held. Default: until the job has ended.
            keep_completed: What stays of the job when it completes: True, False, a number of jobs or an age.
            keep_failed: The same for a job that failed.
            order_key: Jobs of the queue with the same key run one at a time, in the order in which they were committed.
            tx: A connection or session of your own; the job is added when its transaction commits.
        """
        return await self.jobs.enqueue(
            queue,
            input,
            key=key,
            name=name,
            delay=delay,
            at=at,
            priority=priority,
            retry=retry,
            correlation_id=correlation_id,
            dedupe=dedupe,
            dedupe_ttl=dedupe_ttl,
            keep_completed=keep_completed,
            keep_failed=keep_failed,
            order_key=order_key,
            tx=tx,
        )

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait for a run to end and return its result. Short for `app.runs.result`.

        Args:
            id: The run's id.
            timeout: Raise WaitTimeout after this long.
        """
        return await self.runs.result(id, timeout=timeout)

    # The loaded code

    def reload(self) -> Registry:
        """Load the worker files again. A file that cannot be loaded keeps its version.

        Running attempts go on with the code they started with; a running worker takes the new queues and limits.
        """
        from ..handlers.reload import rediscover, rediscover_file

        found: list[DiscoveredHandler] = []
        problems: list[LoadProblem] = []
        options = (self.settings.queue_names, self.settings.import_mode, self.registry, self._scripts)
        if self._has_dir:
            found, problems = rediscover(self.settings.dir, *options)
        for path in self._files:
            more, failed = rediscover_file(path, *options)
            found, problems = [*found, *more], [*problems, *failed]
        if self._has_dir or self._files:
            self.registry = self._register(found, problems)
        if self._is_open:
            self.workers.refresh()
        return self.registry

    def register(self, path: str | Path) -> Registry:
        """Load one more worker file, inside the folder of the worker files or outside. `reload` loads it again.

        A running worker takes its queues. Raise ConfigError if the file cannot be loaded; then nothing changes.

        Args:
            path: The worker file.
        """
        file = check_path(path, "path").resolve()
        found, problems = discover_file(file, self.settings.queue_names, self.settings.import_mode, self._scripts)
        if problems:
            raise ConfigError(f"cannot register {shorten(str(path))}: {problems[0]}")
        all_found = [*(item for item in self._found if item.file != str(file)), *found]
        others = [problem for problem in self._load_problems if problem.file != str(file)]
        registry = self._build_registry(all_found, others)
        for problem in registry.problems:
            if problem.file == str(file):
                raise ConfigError(f"cannot register {shorten(str(path))}: {problem}")
        self._found, self._load_problems = all_found, others
        if not (self._has_dir and file.is_relative_to(Path(self.settings.dir).resolve())) and file not in self._files:
            self._files.append(file)
        self.registry = registry
        self._loaded_at = self._machine_clock.now_ms()
        if self._is_open:
            self.workers.refresh()
        return registry

    def describe(self) -> dict[str, Any]:
        """Return everything that was found in the worker files, and what is wrong with it, as JSON-safe data.

        `fingerprint` is the same in every process that has loaded the same code: a handler, its options, and the
        project's modules it imports. `compiledAt` is when this process loaded it.
        """
        from ..handlers.manifest import describe

        runner = getattr(self._make_runner, "__name__", "custom") if self._make_runner is not None else "inprocess"
        return describe(
            self.registry,
            compiled_at=to_iso(self._loaded_at),
            version=__version__,
            runner=runner,
            log_level=self.settings.log,
            store=self.settings.url.partition(":")[0] or "memory",
            namespace=self.settings.namespace,
        )

    @property
    def script_sources(self) -> Iterable[Path]:
        """The TypeScript and JavaScript worker files, and the project files that they import."""
        return tuple(self._node.sources) if "_node" in vars(self) else ()

    async def check_bridges(self) -> Sequence[BridgeView]:
        """Return the open bridges of this App, and whether the system of each one answers."""
        from .bridges import check_bridges

        own = (*self._file_bridges, *self._entity_bridges) if self.workers.is_running else ()
        return await check_bridges((*self._bridges, *own))

    async def diagnose(self) -> Sequence[Check]:
        """Check settings, worker files, store, clock, disk, queues and dead letters, as `penstock doctor` does."""
        from .diagnosis import diagnose

        return await diagnose(self)

    # Internals

    def _open_objects(self, store: Store) -> ObjectStore | None:
        """Return the blob store, with what sweeps the values of this store in it."""
        settings, objects = self.settings, self._objects
        self._value_sweeper = None
        if objects is None and settings.blob_url:
            from ..blobs.connect import open_blobs

            objects = open_blobs(settings.blob_url, settings.namespace, store.clock)
        if objects is not None:
            from ..stores.offload import ValueSweeper

            new_id = partial(next, self._unit_ids)
            self._value_sweeper = ValueSweeper(store, objects, store.clock, new_id, settings.blob_grace)
        return objects

    def _keep_values(self, store: Store, objects: ObjectStore | None) -> Store:
        """Return a store that keeps large values in the blob store, if there is one."""
        if objects is None:
            return store
        from ..stores.offload import offload

        return offload(store, objects, self.settings.blob_threshold)

    def _open_blobs(self, objects: ObjectStore | None, store: Store) -> BlobView:
        settings, new_id = self.settings, partial(next, self._unit_ids)
        is_on = settings.blob_signed_urls == "on"
        return BlobView(objects, BlobUrls(store, self._committer, store.clock, new_id, settings.public_url, is_on))

    def open_claim(self, claim: Claim) -> Coroutine[Any, Any, Work]:
        """Open a claim with the engine it belongs to. The worker calls it."""
        return self._engines.open(claim)

    def _find_definition(self, target: Any) -> RunDefinition:
        return self._engines.find_definition(self.registry, target)

    @cached_property
    def _node(self) -> NodeFiles:
        from ..runners.node.program import HostOptions  # most projects have no TypeScript
        from ..runners.node.runner import NodeFiles

        return NodeFiles(HostOptions.read(self.settings), self._node_cache)

    def _load(self, handlers: Iterable[Callable[..., Any]] | None, has_dir: bool) -> Registry:
        self._node_cache = Path(self.settings.dir).resolve().parent / ".penstock" / "node"
        has_scripts = self.settings.typescript == "on"
        describe, evaluate = lambda files: self._node.describe(files), lambda *call: self._node.evaluate(*call)
        self._scripts = Scripts(describe, evaluate) if has_scripts else None
        self._functions = read_functions(check_list(handlers, "handlers")) if handlers is not None else []
        self._has_dir = has_dir or (handlers is None and os.path.isdir(self.settings.dir))
        self._files: list[Path] = []  # registered one by one
        self._file_bridges: list[Bridge] = []
        if not self._has_dir:
            return self._register([], [])
        options = (self.settings.queue_names, self.settings.import_mode, self._scripts)
        registry = self._register(*discover(self.settings.dir, *options))
        self._file_bridges = find_bridges(self.settings.dir)
        return registry

    def _register(self, found: list[DiscoveredHandler], problems: list[LoadProblem]) -> Registry:
        self._found, self._load_problems = found, problems
        registry = self._build_registry(found, problems)
        self._entity_bridges = _make_entity_bridges(registry)
        self._loaded_at = self._machine_clock.now_ms()
        for problem in registry.problems:
            log.warning("%s [%s]", problem, problem.code)
        return registry

    def _build_registry(self, found: list[DiscoveredHandler], problems: list[LoadProblem]) -> Registry:
        return build_registry([*self._functions, *found], problems, self.settings.unknown_fields)


def _make_entity_bridges(registry: Registry) -> list[Bridge]:
    if not any(entity.messaging is not None for entity in registry.entities.values()):
        return []
    from .bridges import make_entity_bridges

    return make_entity_bridges(registry.entities.values())
