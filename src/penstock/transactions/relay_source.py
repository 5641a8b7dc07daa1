"""Where a relay finds the outbox: a URL, or a function that connects. What blocks is done in one thread of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from ..core.errors import BadArgument, NoOutbox, SettingError, UnknownConnection
from .connections.connection import Line, line_of

T = TypeVar("T")
Connect = str | Callable[[], Any]
BUSY_SECONDS = 10.0
FORMS = "sqlite:///file.db, sqlite:////absolute/file.db or postgresql://user@host/database"


class Place:
    """Connects, and runs what is to be run on the connection: drivers that wait on the loop, others in a thread."""

    def __init__(self, connect: Connect) -> None:
        self._connect = _opener(connect) if isinstance(connect, str) else connect
        if not callable(self._connect):
            raise BadArgument(f"connect={connect!r}: give a URL ({FORMS}) or a function that gives a connection")
        self._thread: ThreadPoolExecutor | None = None
        self._line: Line | None = None

    async def open(self) -> Line:
        """The line to it; the same one until it is closed."""
        if self._line is None:
            self._line = line_of(await self._connected())
        return self._line

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        line = await self.open()
        return await self._do(line, lambda: line.run(statement, *values))

    async def finish(self) -> None:
        line = await self.open()
        await self._do(line, line.finish)

    async def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            try:
                await self._do(line, line.close)
            except Exception:  # noqa: S110
                pass  # it was lost before
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    async def _connected(self) -> Any:
        if inspect.iscoroutinefunction(self._connect):
            return await self._connect()
        # In the thread that will use it: SQLite's connections keep to the one that made them.
        found = await self._in_thread(self._connect)
        return await found if inspect.isawaitable(found) else found

    async def _do(self, line: Line, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if line.waits:
            return await work()
        return await self._in_thread(lambda: now(work()))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "penstock-outbox")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def now(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives that never waits, as those of blocking drivers do, without an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise UnknownConnection("an async connection belongs to an event loop: use it with App, not with SyncApp")


def _opener(url: str) -> Callable[[], Any]:
    scheme = url.partition(":")[0].lower()
    if scheme in ("postgresql", "postgres"):
        return lambda: _postgres(url)
    path, options = unquote(urlsplit(url).path)[1:], urlsplit(url).query
    if scheme == "sqlite" and options:
        raise SettingError(f"the URL of an outbox's SQLite file has no options, such as {options}: leave them out")
    if scheme == "sqlite" and path and path != ":memory:":
        return lambda: _sqlite(path)
    raise SettingError(f"{url.partition('@')[2] or url!r} is no database that has an outbox: write {FORMS}")


async def _postgres(url: str) -> Any:
    try:
        import asyncpg
    except ModuleNotFoundError:
        raise SettingError("an outbox in Postgres needs asyncpg: pip install 'penstock[postgres]'") from None
    try:
        return await asyncpg.connect(url)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
        raise _unreachable(url, problem) from problem


def _sqlite(path: str) -> Any:
    # Python's own, as most applications use: two copies of SQLite with one file in one process undo each other's locks.
    import sqlite3

    try:
        return sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=BUSY_SECONDS)
    except sqlite3.Error as problem:
        raise _unreachable(path, problem) from problem


def _unreachable(where: str, problem: Exception) -> NoOutbox:
    place = where.rpartition("@")[2].partition("?")[0]  # no password, no options
    return NoOutbox(f"cannot open the database {place} to look for an outbox ({problem}): check the URL")
