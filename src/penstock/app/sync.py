"""`SyncApp`: App for code without an event loop. Every call waits for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from ..context.context import Log
from ..core.clock import Clock
from ..core.durations import Duration
from ..core.errors import ConfigError
from ..handlers.registry import Registry
from ..ports.bridge import Bridge
from ..ports.store import Store
from ..settings import SettingOptions, Settings
from ..telemetry.instrumentation import InstrumentationListener
from ..transactions.connections.connection import run_blocking
from ..transactions.outbox_database import Connect
from ..transactions.relay import FailedRow
from .app import App, EngineFactory, NotOpen
from .idleness import IdleReport
from .outbox import Outbox
from .portal import Portal, check_blocking
from .sync_facets import (
    SyncAlerts,
    SyncAppState,
    SyncBlobs,
    SyncDags,
    SyncDeadLetters,
    SyncEntities,
    SyncEvents,
    SyncFlows,
    SyncJobs,
    SyncQueues,
    SyncRuns,
    SyncSchedules,
    SyncShortcuts,
    SyncTokens,
    SyncWaits,
    SyncWebhooks,
)
from .views import WorkerView
from .workers import RunnerFactory, Workers


class SyncApp(SyncShortcuts):
    """Penstock in one object, for code without an event loop.

        with SyncApp(dir="workers") as app:
            run = app.start("shop", {"order": 7})
            print(app.result(run))

    It has the facets of App. Use it with `with`, or call `open` and `close`; `close` is safe in `atexit`.

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
        settings: Any setting by name; see the settings reference.
    """

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
        **settings: Unpack[SettingOptions],
    ) -> None:
        self._make: Callable[[], App] = lambda: App(
            url,
            dir,
            handlers=handlers,
            clock=clock,
            store=store,
            bridges=bridges,
            listeners=listeners,
            runner=runner,
            engines=engines,
            **settings,
        )
        self._open_portal: Portal | None = None

    def open(self, *, connect_timeout: Duration | None = None) -> None:
        """Start the thread and open the store. `with` does it.

        Args:
            connect_timeout: Retry for this long if the server cannot be reached. Default: raise at once.
        """
        if self._open_portal is not None:
            raise ConfigError("this SyncApp is already open")
        app, portal = self._make(), Portal()
        try:
            portal.call(app.open(connect_timeout=connect_timeout))
        except BaseException:
            portal.close()
            raise
        portal.app = app
        self._open_portal = portal
        self._workers = SyncWorkers(portal, app.workers)

    def close(self) -> None:
        """Stop the worker, write what is in hand and close the store. A second call does nothing."""
        portal, self._open_portal = self._open_portal, None
        if portal is None or portal.app is None:
            return
        try:
            portal.call(portal.app.close())
        finally:
            portal.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def app(self) -> App:
        """The App behind it, which lives on another thread."""
        app = self._portal.app
        assert app is not None
        return app

    @property
    def _portal(self) -> Portal:
        if self._open_portal is None:
            raise NotOpen("this SyncApp is not open; use `with SyncApp(…) as app:` or call `app.open()` first")
        return self._open_portal

    @property
    def settings(self) -> Settings:
        return self.app.settings

    @property
    def registry(self) -> Registry:
        return self.app.registry

    @property
    def log(self) -> Log:
        """Log lines outside of handlers, with the methods of `ctx.log`."""
        return self.app.log

    @property
    def flows(self) -> SyncFlows:
        return SyncFlows(self._portal, self.app.flows)

    @property
    def runs(self) -> SyncRuns:
        return SyncRuns(self._portal, self.app.runs)

    @property
    def jobs(self) -> SyncJobs:
        return SyncJobs(self._portal, self.app.jobs)

    @property
    def queues(self) -> SyncQueues:
        return SyncQueues(self._portal, self.app.queues)

    @property
    def dags(self) -> SyncDags:
        return SyncDags(self._portal, self.app.dags)

    @property
    def entities(self) -> SyncEntities:
        return SyncEntities(self._portal, self.app.entities)

    @property
    def dead_letters(self) -> SyncDeadLetters:
        return SyncDeadLetters(self._portal, self.app.dead_letters)

    @property
    def schedules(self) -> SyncSchedules:
        return SyncSchedules(self._portal, self.app.schedules)

    @property
    def waits(self) -> SyncWaits:
        return SyncWaits(self._portal, self.app.waits)

    @property
    def alerts(self) -> SyncAlerts:
        return SyncAlerts(self._portal, self.app.alerts)

    @property
    def webhooks(self) -> SyncWebhooks:
        return SyncWebhooks(self._portal, self.app.webhooks)

    @property
    def events(self) -> SyncEvents:
        return SyncEvents(self._portal, self.app.events)

    @property
    def state(self) -> SyncAppState:
        return SyncAppState(self._portal, self.app.state)

    @property
    def tokens(self) -> SyncTokens:
        return SyncTokens(self._portal, self.app.tokens)

    @property
    def blobs(self) -> SyncBlobs:
        return SyncBlobs(self._portal, self.app.blobs)

    @property
    def workers(self) -> SyncWorkers:
        _ = self._portal  # raises if it is not open
        return self._workers

    @property
    def outbox(self) -> SyncOutbox:
        return SyncOutbox(self._portal, self.app.outbox)

    def reload(self) -> Registry:
        """Load the worker files again; see App.reload."""

        async def reload() -> Registry:
            return self.app.reload()

        return self._portal.call(reload())

    def register(self, path: str | Path) -> Registry:
        """Load one more worker file; see App.register.

        Args:
            path: The worker file.
        """

        async def register() -> Registry:
            return self.app.register(path)

        return self._portal.call(register())

    def describe(self) -> dict[str, Any]:
        """Return everything that was found in the worker files as JSON-safe data."""
        return self.app.describe()


class SyncWorkers:
    """The worker of this process, on the App's own thread."""

    def __init__(self, portal: Portal, workers: Workers) -> None:
        self._portal = portal
        self._workers = workers
        self._task: asyncio.Task[None] | None = None

    def start(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        name: str | None = None,
        runs: Sequence[str] | None = None,
    ) -> None:
        """Run a worker in the background until `stop`, or until the App is closed.

        Args:
            queues: Queues to work on. Default: those of the loaded handlers.
            concurrency: Maximum number of handlers at once.
            name: Name of the worker in events and logs.
            runs: Work only on these runs, and on what their handlers start from now on; fire no schedules. Default:
                all jobs of the queues.
        """

        async def start() -> None:
            task = asyncio.create_task(self._workers.run(queues, concurrency=concurrency, name=name, runs=runs))
            await asyncio.sleep(0)
            if task.done():  # it could not start: raise why
                task.result()
            self._task = task

        self._portal.call(start())

    def list(self) -> Sequence[WorkerView]:
        """Return the workers that are alive, of all processes on this store.

        A worker reports itself every 5 seconds. It leaves the list when it stops, and 30 seconds after its last report
        if it was killed.
        """
        return self._portal.call(self._workers.list())

    def stop(self) -> None:
        """Stop the worker and wait until work in hand is finished or released."""

        async def stop() -> None:
            task, self._task = self._task, None
            self._workers.stop()
            if task is not None:
                await task

        self._portal.call(stop())

    @contextmanager
    def background(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        name: str | None = None,
        runs: Sequence[str] | None = None,
    ) -> Iterator[None]:
        """Run a worker in the background: `with app.workers.background():`.

        Args:
            queues: Queues to work on. Default: those of the loaded handlers.
            concurrency: Maximum number of handlers at once.
            name: Name of the worker in events and logs.
            runs: Work only on these runs, and on what their handlers start from now on; fire no schedules. Default:
                all jobs of the queues.
        """
        self.start(queues, concurrency=concurrency, name=name, runs=runs)
        try:
            yield
        finally:
            self.stop()

    def run(
        self,
        queues: Sequence[str] | None = None,
        *,
        concurrency: int | None = None,
        name: str | None = None,
        runs: Sequence[str] | None = None,
    ) -> None:
        """Run a worker until Ctrl-C, or until another thread calls `stop`.

        Args:
            queues: Queues to work on. Default: those of the loaded handlers.
            concurrency: Maximum number of handlers at once.
            name: Name of the worker in events and logs.
            runs: Work only on these runs, and on what their handlers start from now on; fire no schedules. Default:
                all jobs of the queues.
        """
        try:
            self._portal.call(self._workers.run(queues, concurrency=concurrency, name=name, runs=runs))
        except KeyboardInterrupt:
            self.stop()
            raise

    def run_until_idle(
        self, queues: Sequence[str] | None = None, *, concurrency: int | None = None, name: str | None = None
    ) -> IdleReport:
        """Run a worker until nothing is due, and return when to run one again.

        It fires schedules, too. It does not wait for delayed jobs, waits, jobs of other workers and paused queues.

        Args:
            queues: Queues to work on. Default: those of the loaded handlers.
            concurrency: Maximum number of handlers at once.
            name: Name of the worker in events and logs.
        """
        try:
            return self._portal.call(self._workers.run_until_idle(queues, concurrency=concurrency, name=name))
        except KeyboardInterrupt:
            self.stop()
            raise


class SyncOutbox:
    """The outbox, for blocking connections."""

    def __init__(self, portal: Portal, outbox: Outbox) -> None:
        self._portal = portal
        self._outbox = outbox

    def sql(self, dialect: str = "postgresql") -> str:
        """Return the statement that creates the table, for a migration.

        Args:
            dialect: "postgresql" or "sqlite".
        """
        return self._outbox.sql(dialect)

    def create(self, connection: Any) -> None:
        """Create the table if it does not exist. The caller commits.

        Args:
            connection: An open blocking connection or session of your database.
        """
        check_blocking(connection)
        run_blocking(self._outbox.create(connection))

    def drain(self, connect: Connect) -> int:
        """Deliver all rows that are in the outbox now and return how many there were, without unreadable ones.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
        """
        return self._portal.call(self._outbox.drain(connect))

    def failed(self, connect: Connect, *, after: int = 0, limit: int = 100) -> list[FailedRow]:
        """Return rows that cannot be delivered and were set aside, each with its number, summary and error.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
            after: Number (`seq`) of the last row of the page before.
            limit: Maximum number of rows.
        """
        return self._portal.call(self._outbox.failed(connect, after=after, limit=limit))

    def retry(self, connect: Connect, seqs: Sequence[int] | None = None) -> None:
        """Let the relay deliver rows again that were set aside.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
            seqs: Numbers of the rows. Default: all that were set aside.
        """
        self._portal.call(self._outbox.retry(connect, seqs))

    def count_waiting(self, connect: Connect) -> int:
        """Return how many rows wait to be delivered.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
        """
        return self._portal.call(self._outbox.count_waiting(connect))

    def relay(self, connect: Connect, *, every: Duration = "200ms") -> None:
        """Deliver rows in order until Ctrl-C.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
            every: Interval at which to look for new rows.
        """
        self._portal.call(self._outbox.relay(connect, every=every))

    @contextmanager
    def background(self, connect: Connect, *, every: Duration = "200ms") -> Iterator[None]:
        """Run a relay in the background: `with app.outbox.background(url):`.

        Args:
            connect: URL of the database with the outbox, or a function that returns a connection.
            every: Interval at which to look for new rows.
        """
        background = self._outbox.background(connect, every=every)
        self._portal.call(background.__aenter__())
        try:
            yield
        finally:
            self._portal.call(background.__aexit__(None, None, None))
