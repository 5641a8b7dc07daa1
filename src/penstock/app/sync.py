"""Threads for an event loop that may still be needed when the interpreter ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from ..core.clock import Clock
from ..core.durations import Duration
from ..core.errors import ConfigError
from ..core.events import Event
from ..durable.trigger_commands import Signature
from ..flows.reducer import FlowView
from ..handlers.registry import Registry
from ..jobs.job_trees import JobTree, Node
from ..ports.bridge import Bridge
from ..ports.store import RunRow, ScheduleRow, Store
from ..settings import SettingOptions, Settings
from .app import App, NotOpen
from .options import (
    EnqueueManyOptions,
    EnqueueOptions,
    NoInput,
    RunSearch,
    ScheduleOptions,
    StartOptions,
    WorkerOptions,
)
from .sync_parts import SyncDeadLetters, SyncEvents, SyncQueues, SyncState, each
from .sync_transactions import SyncOutbox, with_sink
from .waits import WaitView

P = ParamSpec("P")
T = TypeVar("T")


class LastThreads(ThreadPoolExecutor):
    """A pool with one thread more for the end: by the time `atexit` calls anyone, a pool takes nothing any more, and
    from Python 3.12 on no thread can be started. Closing a store needs one."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="penstock-sync")
        self._left: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._main, name="penstock-last", daemon=True).start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            future: Future[T] = Future()
            self._left.put(lambda: _run(future, fn, *args, **kwargs))
            return future

    def end(self) -> None:
        """Lets every thread go."""
        self._left.put(None)
        self.shutdown(wait=False)

    def _main(self) -> None:
        while (work := self._left.get()) is not None:
            work()


def _run(future: Future[Any], fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as problem:
            future.set_exception(problem)


I = TypeVar("I")  # noqa: E741


class SyncApp:
    """Every call waits for its answer. Takes the arguments of App; used with `with`, or opened and closed by hand.

    with SyncApp(dir="workers") as app:
        run = app.start("shop", {"order": 7})
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
        **settings: Unpack[SettingOptions],
    ) -> None:
        self._make: Callable[[], App] = lambda: App(
            url, dir, handlers=handlers, clock=clock, store=store, bridges=bridges, **settings
        )
        self._app: App | None = None
        self._worker: asyncio.Task[None] | None = None

    # Life

    def open(self, *, patience: Duration | None = None) -> None:
        """Starts the thread and opens the store; `with` does it. A server that cannot be reached is waited for, as long
        as `patience` says."""
        if self._app is not None:
            raise ConfigError("this SyncApp is open already")
        app = self._make()
        self._loop = asyncio.new_event_loop()
        self._threads = LastThreads()
        self._loop.set_default_executor(self._threads)
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-loop", daemon=True)
        self._thread.start()
        try:
            self._call(app.open(patience=patience))
        except BaseException:
            self._stop()
            raise
        self._app = app

    def close(self) -> None:
        """Stops working, writes what is in hand, closes the store; a second time does nothing. Fit for `atexit`."""
        app, self._app, self._worker = self._app, None, None
        if app is None:
            return
        try:
            self._call(app.close())
        finally:
            self._stop()

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
        if self._app is None:
            raise NotOpen("this SyncApp is not open: write `with SyncApp(…) as app:`, or call app.open() first")
        return self._app

    def _stop(self) -> None:
        self._call(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._threads.end()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()  # Ctrl-C while it was waited for; nothing if it had ended
            raise

    # Runs

    @overload
    def start(self, flow: str, input: Any = None, **options: Unpack[StartOptions]) -> str: ...

    @overload
    def start(self, flow: NoInput, input: None = None, **options: Unpack[StartOptions]) -> str: ...

    @overload
    def start(self, flow: Callable[[I, Any], Any], input: I, **options: Unpack[StartOptions]) -> str: ...

    @overload
    def start(self, flow: Callable[[I], Any], input: I, **options: Unpack[StartOptions]) -> str: ...

    def start(self, flow: Any, input: Any = None, **options: Unpack[StartOptions]) -> str:
        """Starts a run; see App.start."""
        with self._with_sink(options) as given:
            return self._call(self.app.start(flow, input, **given))

    def run(self, id: str) -> FlowView:
        return self._call(self.app.run(id))

    def run_at(self, id: str, event: str) -> FlowView:
        return self._call(self.app.run_at(id, event))

    def runs(self, **which: Unpack[RunSearch]) -> list[RunRow]:
        return self._call(self.app.runs(**which))

    def wait(self, id: str, *, timeout: Duration | None = None) -> RunRow:
        return self._call(self.app.wait(id, timeout=timeout))

    def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        return self._call(self.app.result(id, timeout=timeout))

    def cancel(self, id: str, reason: str = "cancelled by request") -> bool:
        return self._call(self.app.cancel(id, reason))

    def pause(self, id: str, reason: str = "paused by request") -> bool:
        return self._call(self.app.pause(id, reason))

    def resume(self, id: str, reason: str = "resumed by request") -> bool:
        return self._call(self.app.resume(id, reason))

    def fork(self, id: str, event: str, *, key: str | None = None) -> str:
        return self._call(self.app.fork(id, event, key=key))

    def waits(
        self, *, run: str | None = None, kind: str | None = None, after: str | None = None, limit: int = 50
    ) -> list[WaitView]:
        return self._call(self.app.waits(run=run, kind=kind, after=after, limit=limit))

    def emit(
        self, kind: str, data: Any = None, *, run: str | None = None, key: str | None = None, tx: Any = None
    ) -> None:
        with self._with_sink({"tx": tx}) as given:
            self._call(self.app.emit(kind, data, run=run, key=key, **given))

    def fire(self, token: str, payload: Any = None, *, signature: Signature | None = None) -> str:
        return self._call(self.app.fire(token, payload, signature=signature))

    def trigger_token(self, id: str) -> str:
        return self._call(self.app.trigger_token(id))

    def follow(self, id: str, *, after: str | None = None) -> Iterator[Event]:
        """A run's events, then live."""
        return each(self._call, self.app.follow(id, after=after))

    # Jobs and schedules

    def enqueue(self, queue: str | Callable[..., Any], payload: Any = None, **options: Unpack[EnqueueOptions]) -> str:
        with self._with_sink(options) as given:
            return self._call(self.app.enqueue(queue, payload, **given))

    def enqueue_many(
        self, queue: str | Callable[..., Any], payloads: Sequence[Any], **options: Unpack[EnqueueManyOptions]
    ) -> list[str]:
        with self._with_sink(options) as given:
            return self._call(self.app.enqueue_many(queue, payloads, **given))

    def add_flow(self, tree: Node | Mapping[str, Any], *, correlation_id: str | None = None) -> JobTree:
        return self._call(self.app.add_flow(tree, correlation_id=correlation_id))

    def job_result(self, id: str, *, timeout: Duration | None = None) -> Any:
        return self._call(self.app.job_result(id, timeout=timeout))

    def schedule(self, id: str, **options: Unpack[ScheduleOptions]) -> ScheduleRow:
        return self._call(self.app.schedule(id, **options))

    def unschedule(self, id: str) -> bool:
        return self._call(self.app.unschedule(id))

    def schedules(self) -> list[ScheduleRow]:
        return self._call(self.app.schedules())

    def pause_schedule(self, id: str) -> ScheduleRow:
        return self._call(self.app.pause_schedule(id))

    def resume_schedule(self, id: str) -> ScheduleRow:
        return self._call(self.app.resume_schedule(id))

    def run_schedule(self, id: str) -> str:
        return self._call(self.app.run_schedule(id))

    # Working

    def start_worker(self, **options: Unpack[WorkerOptions]) -> None:
        """Runs a worker in the background until `stop_worker`, or until the App is closed."""
        self._call(self._begin(options))

    def stop_worker(self) -> None:
        """Lets the worker finish, or give back, what is in hand, and waits for that."""
        self._call(self._end())

    @contextmanager
    def working(self, **options: Unpack[WorkerOptions]) -> Iterator[None]:
        """`with app.working():` runs a worker in the background."""
        self.start_worker(**options)
        try:
            yield
        finally:
            self.stop_worker()

    def run_worker(
        self, queues: Sequence[str] | None = None, *, concurrency: int | None = None, name: str | None = None
    ) -> None:
        """Works until Ctrl-C, or until another thread calls `stop_worker`."""
        try:
            self._call(self.app.run_worker(queues, concurrency=concurrency, name=name))
        except KeyboardInterrupt:
            self.stop_worker()
            raise

    def reload(self) -> Registry:
        """Loads the worker files anew; see App.reload."""
        return self._call(self._reload())

    def describe(self) -> dict[str, Any]:
        """What was found, as JSON-safe data."""
        return self.app.describe()

    # Parts

    @property
    def settings(self) -> Settings:
        return self.app.settings

    @property
    def registry(self) -> Registry:
        return self.app.registry

    @property
    def queues(self) -> SyncQueues:
        return SyncQueues(self._call, self.app.queues)

    @property
    def dead_letters(self) -> SyncDeadLetters:
        return SyncDeadLetters(self._call, self.app.dead_letters)

    @property
    def state(self) -> SyncState:
        return SyncState(self._call, self.app.state)

    @property
    def events(self) -> SyncEvents:
        return SyncEvents(self._call, self.app.events)

    @property
    def outbox(self) -> SyncOutbox:
        return SyncOutbox(self._call, self.app.outbox)

    def _with_sink(self, options: Any) -> AbstractContextManager[Any]:
        """The options of a call; what `tx` is to carry is made on the App's thread and written on the caller's."""
        return with_sink(self._call, self.app.store, self.app.settings.namespace, options)

    async def _begin(self, options: WorkerOptions) -> None:
        worker = asyncio.create_task(self.app.run_worker(**options))
        await asyncio.sleep(0)
        if worker.done():  # it could not even begin: whoever asked is told why
            worker.result()
        self._worker = worker

    async def _end(self) -> None:
        worker, self._worker = self._worker, None
        self.app.stop_worker()
        if worker is not None:
            await worker

    async def _reload(self) -> Registry:
        return self.app.reload()
