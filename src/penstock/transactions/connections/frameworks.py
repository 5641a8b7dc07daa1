"""Connections of SQLAlchemy and Django, which are drivers' own below."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class SqlalchemyLine:
    waits = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.dialect: str = connection.dialect.name

    async def begun(self) -> bool:
        return begins(self._connection)

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return run(self._connection, statement, values)

    async def finish(self) -> None:
        self._connection.commit()

    async def close(self) -> None:
        self._connection.close()


class SessionLine:
    waits = False

    def __init__(self, session: Any) -> None:
        self._session = session
        self.dialect: str = session.get_bind().dialect.name

    async def begun(self) -> bool:
        return begins(self._session.connection())

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return run(self._session.connection(), statement, values)

    async def finish(self) -> None:
        self._session.commit()

    async def close(self) -> None:
        self._session.close()


class AsyncSqlalchemyLine:
    waits = True

    def __init__(self, connection: Any) -> None:
        self._owner = connection
        self.dialect: str = connection.dialect.name

    async def begun(self) -> bool:
        return await self._do(begins)

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self._do(lambda connection: run(connection, statement, values))

    async def finish(self) -> None:
        await self._owner.commit()

    async def close(self) -> None:
        await self._owner.close()

    async def _do(self, work: Callable[[Any], T]) -> T:
        return await self._owner.run_sync(work)  # type: ignore[no-any-return]


class AsyncSessionLine(AsyncSqlalchemyLine):
    def __init__(self, session: Any) -> None:
        self._owner = session
        self.dialect = session.get_bind().dialect.name

    async def _do(self, work: Callable[[Any], T]) -> T:
        connection = await self._owner.connection()
        return await connection.run_sync(work)  # type: ignore[no-any-return]


def begins(connection: Any) -> bool:
    """Whether SQLAlchemy begins a transaction with the first statement; always, unless it was told otherwise."""
    default = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return bool(connection.get_execution_options().get("isolation_level", default) != "AUTOCOMMIT")


def run(connection: Any, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """A statement by way of a SQLAlchemy connection."""
    names = [f"p{n}" for n in range(len(values))]
    text = sys.modules["sqlalchemy"].text(statement.format(*(f":{name}" for name in names)))
    result = connection.execute(text, dict(zip(names, values, strict=True)))
    return [tuple(row) for row in result] if result.returns_rows else []


class DjangoLine:
    waits = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.dialect: str = connection.vendor

    async def begun(self) -> bool:
        return not self._connection.get_autocommit()

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement.format(*["%s"] * len(values)), values)
            return list(cursor.fetchall()) if cursor.description else []

    async def finish(self) -> None:
        """Outside of `atomic` every statement is its own."""

    async def close(self) -> None:
        self._connection.close()
