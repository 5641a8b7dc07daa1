"""The database a relay reads its outbox from: a URL, or a function that connects. Blocking drivers get one thread."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from ..core.errors import BadArgument, NoOutbox, SettingError
from ..core.text import check_text, shorten
from .connections.connection import UserConnection, run_blocking, wrap_connection

T = TypeVar("T")
Connect = str | Callable[[], Any]
SQLITE_BUSY_TIMEOUT_S = 10.0
URL_FORMS = "sqlite:///file.db, sqlite:////absolute/file.db or postgresql://user@host/database"


class RelaySource:
    """Connects and executes statements: with async drivers on the event loop, with others in a thread."""

    def __init__(self, connect: Connect) -> None:
        self._connect = _connect_function(connect) if isinstance(connect, str) else connect
        if not callable(self._connect):
            raise BadArgument(
                f"connect must be a URL ({URL_FORMS}) or a function that returns a connection, got {shorten(connect)}"
            )
        self._thread: ThreadPoolExecutor | None = None
        self._connection: UserConnection | None = None

    async def open(self) -> UserConnection:
        """Return the connection; the same one until it is closed."""
        if self._connection is None:
            self._connection = wrap_connection(await self._new_connection())
        return self._connection

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = await self.open()
        return await self._run(connection, lambda: connection.execute(statement, *values))

    async def commit(self) -> None:
        connection = await self.open()
        await self._run(connection, connection.commit)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await self._run(connection, connection.close)
            except Exception:  # noqa: S110
                pass  # the connection was lost before
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    async def _new_connection(self) -> Any:
        if inspect.iscoroutinefunction(self._connect):
            return await self._connect()
        # In the thread that will use it: a SQLite connection belongs to the thread that made it.
        found = await self._in_thread(self._connect)
        return await found if inspect.isawaitable(found) else found

    async def _run(self, connection: UserConnection, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if connection.is_async:
            return await work()
        return await self._in_thread(lambda: run_blocking(work()))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "penstock-outbox")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _connect_function(url: str) -> Callable[[], Any]:
    scheme = check_text(url, "connect").partition(":")[0].lower()
    if scheme in ("postgresql", "postgres"):
        return lambda: _connect_postgres(url)
    _, _, rest = url.partition("://")
    path, _, options = rest.removeprefix("/").partition("?")
    path = unquote(path)
    if scheme == "sqlite" and options:
        raise SettingError(
            f"the URL of an outbox's SQLite file cannot have options, got {shorten(options)}; remove them"
        )
    if scheme == "sqlite" and path not in ("", ":memory:") and "\0" not in path:
        return lambda: _connect_sqlite(path)
    raise SettingError(f"{shorten(url.partition('@')[2] or url)} cannot hold an outbox; use {URL_FORMS}")


async def _connect_postgres(url: str) -> Any:
    try:
        import asyncpg
    except ModuleNotFoundError:
        raise SettingError("an outbox in Postgres requires asyncpg; run `pip install 'penstock[postgres]'`") from None
    try:
        return await asyncpg.connect(url)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as problem:
        raise _unreachable(url, problem) from problem


def _connect_sqlite(path: str) -> Any:
    # Python's sqlite3, as most applications use: two SQLite libraries in one process break each other's file locks.
    import sqlite3

    try:
        return sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=SQLITE_BUSY_TIMEOUT_S)
    except sqlite3.Error as problem:
        raise _unreachable(path, problem) from problem


def _unreachable(url: str, problem: Exception) -> NoOutbox:
    shown = url.rpartition("@")[2].partition("?")[0]  # no password, no options
    return NoOutbox(f"cannot open the database {shown} to read its outbox ({problem}); check the URL")
