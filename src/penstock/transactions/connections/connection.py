"""A connection of the user's, whatever its driver: `line_of` knows them.

Drivers are never imported: whoever has such a connection has imported its driver.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ...core.errors import NotInTransaction, UnknownConnection
from . import frameworks as framework_lines
from . import postgres as postgres_lines
from . import sqlite as sqlite_lines

POSTGRES, SQLITE = "postgresql", "sqlite"
ACCEPTED = (
    "an asyncpg, psycopg 3 or psycopg2 connection, a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, "
    "Django's connection, a sqlite3, apsw or aiosqlite connection"
)

Rows = list[tuple[Any, ...]]


class Line(Protocol):
    """A connection by which statements go, in the mark of its driver."""

    dialect: str  # postgresql or sqlite
    waits: bool  # whether its driver is an async one, bound to an event loop

    async def begun(self) -> bool:
        """Whether what is written now is part of a transaction that its owner ends."""
        ...

    async def run(self, statement: str, *values: Any) -> Rows: ...

    async def finish(self) -> None:
        """Commits, where a driver does not by itself."""
        ...

    async def close(self) -> None: ...


# Module, names of the classes in it, and what makes a line of one.
_KNOWN: tuple[tuple[str, tuple[str, ...], Callable[[Any], Line]], ...] = (
    ("asyncpg", ("Connection",), postgres_lines.AsyncpgLine),
    ("asyncpg.pool", ("PoolConnectionProxy",), postgres_lines.AsyncpgLine),
    ("psycopg", ("Connection",), postgres_lines.PsycopgLine),
    ("psycopg", ("AsyncConnection",), postgres_lines.AsyncPsycopgLine),
    ("psycopg2.extensions", ("connection",), postgres_lines.Psycopg2Line),
    ("sqlalchemy.engine", ("Connection",), framework_lines.SqlalchemyLine),
    ("sqlalchemy.orm", ("Session", "scoped_session"), framework_lines.SessionLine),
    ("sqlalchemy.ext.asyncio", ("AsyncConnection",), framework_lines.AsyncSqlalchemyLine),
    ("sqlalchemy.ext.asyncio", ("AsyncSession", "async_scoped_session"), framework_lines.AsyncSessionLine),
    ("django.db.backends.base.base", ("BaseDatabaseWrapper",), framework_lines.DjangoLine),
    ("django.utils.connection", ("ConnectionProxy",), framework_lines.DjangoLine),
    ("sqlite3", ("Connection",), sqlite_lines.SqliteLine),
    ("apsw", ("Connection",), sqlite_lines.ApswLine),
    ("aiosqlite", ("Connection",), sqlite_lines.AiosqliteLine),
)


def line_of(connection: Any) -> Line:
    """The line a connection is, or UnknownConnection."""
    for module, names, make in _KNOWN:
        if isinstance(connection, tuple(_classes(module, names))):
            line = make(connection)
            if line.dialect not in (POSTGRES, SQLITE):
                raise UnknownConnection(f"a {line.dialect} database has no place for an outbox: use Postgres or SQLite")
            return line
    raise UnknownConnection(f"tx is a {type(connection).__name__}: give {ACCEPTED}")


def _classes(module: str, names: tuple[str, ...]) -> Iterator[type]:
    for name in names:
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type):
            yield found


async def check_begun(line: Line) -> None:
    """Raises unless there is a transaction to be part of."""
    if not await line.begun():
        raise NotInTransaction(
            "the connection given as tx is in no transaction, so there is nothing to be part of: begin one, or leave "
            "tx out"
        )
