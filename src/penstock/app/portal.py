"""The way from a thread without an event loop to an App on another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from ..commit.command_sink import TransactionSink
from ..core.errors import UnknownConnection
from ..ports.store import DatabaseIdentity, Enlists
from ..transactions.connections.connection import run_blocking, wrap_connection
from ..transactions.enlist import TransactionWriter
from .app import App

P = ParamSpec("P")
T = TypeVar("T")


class Portal:
    """Runs an event loop on a thread of its own and passes calls to it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._executor = ShutdownSafeExecutor()
        self._loop.set_default_executor(self._executor)
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-loop", daemon=True)
        self._thread.start()
        self.app: App | None = None  # set once it is open

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()  # Ctrl-C while waiting; does nothing if the work had ended
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Iterate over an async iterator, and close it when the caller stops."""
        try:
            while (found := self.call(_next(items))) is not None:
                yield found[0]
        finally:
            if isinstance(items, AsyncGenerator):
                self.call(items.aclose())

    @contextmanager
    def transaction(self, tx: Any) -> Iterator[Any]:
        """Yield what a facet takes as `tx`.

        Units are built on the App's thread and written on the caller's, which owns the connection.
        """
        if tx is None:
            yield None
            return
        check_blocking(tx)
        app = self.app
        assert app is not None
        sink = TransactionSink()
        yield sink

        async def identify(fresh: bool) -> DatabaseIdentity:
            assert isinstance(app.store, Enlists)
            return self.call(app.store.database_identity(fresh=fresh))

        run_blocking(TransactionWriter(app.store, app.settings.namespace, identify).write(tx, sink.units))

    def close(self) -> None:
        """Stop the loop and its threads."""
        self.call(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._executor.stop()
        self._loop.close()


def check_blocking(connection: Any) -> None:
    """Raise for an async connection: it belongs to a loop, and the caller has none."""
    if wrap_connection(connection).is_async:
        raise UnknownConnection(
            f"tx is an async {type(connection).__name__}, which cannot be used with SyncApp; use App, or pass a "
            "sync connection"
        )


async def _next(items: AsyncIterator[T]) -> tuple[T] | None:
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None


class ShutdownSafeExecutor(ThreadPoolExecutor):
    """A thread pool that still works while the interpreter exits.

    When `atexit` handlers run, a pool accepts nothing any more, and from Python 3.12 on no thread can be started.
    Closing a store needs one, so one is kept ready.
    """

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="penstock-sync")
        self._late: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run_late, name="penstock-exit", daemon=True).start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            future: Future[T] = Future()
            self._late.put(lambda: _run(future, fn, *args, **kwargs))
            return future

    def stop(self) -> None:
        """End every thread."""
        self._late.put(None)
        self.shutdown(wait=False)

    def _run_late(self) -> None:
        while (work := self._late.get()) is not None:
            work()


def _run(future: Future[Any], fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as problem:
            future.set_exception(problem)
