"""`SyncApp`: the same App for code without an event loop. A thread of its own runs the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from ..core.clock import Clock
from ..core.durations import Duration
from ..core.events import Event
from ..flows.reducer import FlowView
from ..ports.store import RunRow, ScheduleRow, Store
from ..settings import SettingOptions
from .app import App
from .options import EnqueueManyOptions, EnqueueOptions, NoInput, ScheduleOptions, StartOptions, WorkerOptions

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741


class SyncApp:
    """Every call waits for its answer. Takes the arguments of App; used with `with`.

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
        **settings: Unpack[SettingOptions],
    ) -> None:
        self._make: Callable[[], App] = lambda: App(url, dir, handlers=handlers, clock=clock, store=store, **settings)

    def __enter__(self) -> Self:
        self.app = self._make()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-loop", daemon=True)
        self._thread.start()
        try:
            self._call(self.app.open())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call(self.app.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._call(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

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
        return self._call(self.app.start(flow, input, **options))

    def wait(self, id: str, *, timeout: Duration | None = None) -> RunRow:
        return self._call(self.app.wait(id, timeout=timeout))

    def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        return self._call(self.app.result(id, timeout=timeout))

    def run(self, id: str) -> FlowView:
        return self._call(self.app.run(id))

    def cancel(self, id: str, reason: str = "cancelled by request") -> bool:
        return self._call(self.app.cancel(id, reason))

    def emit(self, kind: str, data: Any = None, *, run: str | None = None, key: str | None = None) -> None:
        self._call(self.app.emit(kind, data, run=run, key=key))

    def enqueue(self, queue: str, payload: Any = None, **options: Unpack[EnqueueOptions]) -> str:
        return self._call(self.app.enqueue(queue, payload, **options))

    def enqueue_many(self, queue: str, payloads: Sequence[Any], **options: Unpack[EnqueueManyOptions]) -> list[str]:
        return self._call(self.app.enqueue_many(queue, payloads, **options))

    def job_result(self, id: str, *, timeout: Duration | None = None) -> Any:
        return self._call(self.app.job_result(id, timeout=timeout))

    def schedule(self, id: str, **options: Unpack[ScheduleOptions]) -> ScheduleRow:
        return self._call(self.app.schedule(id, **options))

    def start_worker(self, **options: Unpack[WorkerOptions]) -> None:
        """Runs a worker in the background until the `with` ends."""
        self._call(self._begin(options))

    async def _begin(self, options: WorkerOptions) -> None:
        worker = asyncio.create_task(self.app.run_worker(**options))
        await asyncio.sleep(0)
        if worker.done():  # it could not even begin: whoever asked is told why
            worker.result()
        self._worker = worker

    def follow(self, id: str) -> Iterator[Event]:
        """A run's events, then live."""
        events = self.app.follow(id)
        while True:
            yield self._call(_next(events))


async def _next(events: AsyncIterator[Event]) -> Event:
    return await anext(events)
