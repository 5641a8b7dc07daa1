"""The caller's database connection behind one interface, whatever its driver: `wrap_connection` recognizes them.

Drivers are never imported here: a caller who has such a connection has imported its driver.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from ...core.errors import NotInTransaction, UnknownConnection
from . import frameworks, postgres, sqlite

T = TypeVar("T")
POSTGRES, SQLITE = "postgresql", "sqlite"
ACCEPTED = (
    "an asyncpg, psycopg 3 or psycopg2 connection, a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, "
    "Django's connection, a sqlite3, apsw or aiosqlite connection"
)

Rows = list[tuple[Any, ...]]


class UserConnection(Protocol):
    """Executes statements on a connection of the caller."""

    dialect: str  # postgresql or sqlite
    is_async: bool  # an async driver belongs to an event loop

    async def is_in_transaction(self) -> bool:
        """Return whether what is written now belongs to a transaction that the caller commits."""
        ...

    async def execute(self, statement: str, *values: Any) -> Rows:
        """Execute a statement; `{0}` stands for the first value, in place of the driver's own placeholder."""
        ...

    async def commit(self) -> None:
        """Commit, where the driver does not do so after each statement."""
        ...

    async def close(self) -> None: ...


# Module, names of the classes in it, and the adapter for them.
_ADAPTERS: tuple[tuple[str, tuple[str, ...], Callable[[Any], UserConnection]], ...] = (
    ("asyncpg", ("Connection",), postgres.AsyncpgConnection),
    ("asyncpg.pool", ("PoolConnectionProxy",), postgres.AsyncpgConnection),
    ("psycopg", ("Connection",), postgres.PsycopgConnection),
    ("psycopg", ("AsyncConnection",), postgres.AsyncPsycopgConnection),
    ("psycopg2.extensions", ("connection",), postgres.Psycopg2Connection),
    ("sqlalchemy.engine", ("Connection",), frameworks.SqlalchemyConnection),
    ("sqlalchemy.orm", ("Session", "scoped_session"), frameworks.SqlalchemySession),
    ("sqlalchemy.ext.asyncio", ("AsyncConnection",), frameworks.AsyncSqlalchemyConnection),
    ("sqlalchemy.ext.asyncio", ("AsyncSession", "async_scoped_session"), frameworks.AsyncSqlalchemySession),
    ("django.db.backends.base.base", ("BaseDatabaseWrapper",), frameworks.DjangoConnection),
    ("django.utils.connection", ("ConnectionProxy",), frameworks.DjangoConnection),
    ("sqlite3", ("Connection",), sqlite.Sqlite3Connection),
    ("apsw", ("Connection",), sqlite.ApswConnection),
    ("aiosqlite", ("Connection",), sqlite.AiosqliteConnection),
)


def wrap_connection(connection: Any) -> UserConnection:
    """Return the adapter for a connection, or raise UnknownConnection."""
    for module, names, adapter in _ADAPTERS:
        if isinstance(connection, tuple(_loaded_classes(module, names))):
            wrapped = adapter(connection)
            if wrapped.dialect not in (POSTGRES, SQLITE):
                raise UnknownConnection(f"tx must be a connection to Postgres or SQLite, got one to {wrapped.dialect}")
            return wrapped
    raise UnknownConnection(f"tx must be {ACCEPTED}, got a {type(connection).__name__}")


def _loaded_classes(module: str, names: tuple[str, ...]) -> Iterator[type]:
    for name in names:
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type):
            yield found


async def check_in_transaction(connection: UserConnection) -> None:
    """Raise NotInTransaction unless the caller has a transaction open, or the driver opens one."""
    if not await connection.is_in_transaction():
        raise NotInTransaction(
            "the connection passed as tx is not in a transaction and would commit each statement; begin a "
            "transaction first, or omit tx"
        )


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits, as those of blocking drivers do, without an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise UnknownConnection(
        "an async connection cannot be used with SyncApp, because it belongs to an event loop; use App"
    )
