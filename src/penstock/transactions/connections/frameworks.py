"""Adapters for SQLAlchemy and Django."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class SqlalchemyConnection:
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.dialect: str = connection.dialect.name

    async def is_in_transaction(self) -> bool:
        return _opens_transactions(self._connection)

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return _execute(self._connection, statement, values)

    async def commit(self) -> None:
        self._connection.commit()

    async def close(self) -> None:
        self._connection.close()


class SqlalchemySession:
    is_async = False

    def __init__(self, session: Any) -> None:
        self._session = session
        self.dialect: str = session.get_bind().dialect.name

    async def is_in_transaction(self) -> bool:
        return _opens_transactions(self._session.connection())

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return _execute(self._session.connection(), statement, values)

    async def commit(self) -> None:
        self._session.commit()

    async def close(self) -> None:
        self._session.close()


class AsyncSqlalchemyConnection:
    is_async = True

    def __init__(self, connection: Any) -> None:
        self._owner = connection
        self.dialect: str = connection.dialect.name

    async def is_in_transaction(self) -> bool:
        return await self._run_sync(_opens_transactions)

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self._run_sync(lambda connection: _execute(connection, statement, values))

    async def commit(self) -> None:
        await self._owner.commit()

    async def close(self) -> None:
        await self._owner.close()

    async def _run_sync(self, work: Callable[[Any], T]) -> T:
        return await self._owner.run_sync(work)  # type: ignore[no-any-return]


class AsyncSqlalchemySession(AsyncSqlalchemyConnection):
    def __init__(self, session: Any) -> None:
        self._owner = session
        self.dialect = session.get_bind().dialect.name

    async def _run_sync(self, work: Callable[[Any], T]) -> T:
        connection = await self._owner.connection()
        return await connection.run_sync(work)  # type: ignore[no-any-return]


def _opens_transactions(connection: Any) -> bool:
    """Return whether SQLAlchemy opens a transaction with the first statement: always, unless set to AUTOCOMMIT."""
    default = getattr(connection.dialect, "_on_connect_isolation_level", None)
    return bool(connection.get_execution_options().get("isolation_level", default) != "AUTOCOMMIT")


def _execute(connection: Any, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Execute a statement on a SQLAlchemy connection."""
    names = [f"p{n}" for n in range(len(values))]
    text = sys.modules["sqlalchemy"].text(statement.format(*(f":{name}" for name in names)))
    result = connection.execute(text, dict(zip(names, values, strict=True)))
    return [tuple(row) for row in result] if result.returns_rows else []


class DjangoConnection:
    is_async = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.dialect: str = connection.vendor

    async def is_in_transaction(self) -> bool:
        return not self._connection.get_autocommit()

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement.format(*["%s"] * len(values)), values)
            return list(cursor.fetchall()) if cursor.description else []

    async def commit(self) -> None:
        """Do nothing: outside of `atomic` Django commits each statement."""

    async def close(self) -> None:
        self._connection.close()
