"""Adapters for SQLite drivers."""

from __future__ import annotations

from typing import Any


class Sqlite3Connection:
    dialect, is_async = "sqlite", False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def is_in_transaction(self) -> bool:
        return _opens_transactions(self._connection) or bool(self._connection.in_transaction)

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return list(cursor.execute(statement.format(*["?"] * len(values)), values).fetchall())

    async def commit(self) -> None:
        self._connection.commit()

    async def close(self) -> None:
        self._connection.close()


class ApswConnection:
    dialect, is_async = "sqlite", False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def is_in_transaction(self) -> bool:
        return bool(self._connection.in_transaction)

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._connection.execute(statement.format(*["?"] * len(values)), values)]

    async def commit(self) -> None:
        """Do nothing: outside of a transaction the driver commits each statement."""

    async def close(self) -> None:
        self._connection.close()


class AiosqliteConnection:
    dialect, is_async = "sqlite", True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def is_in_transaction(self) -> bool:
        return _opens_transactions(self._connection) or bool(self._connection.in_transaction)

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        async with self._connection.execute(statement.format(*["?"] * len(values)), values) as cursor:
            return [tuple(row) for row in await cursor.fetchall()]

    async def commit(self) -> None:
        await self._connection.commit()

    async def close(self) -> None:
        await self._connection.close()


def _opens_transactions(connection: Any) -> bool:
    """Return whether the driver opens a transaction before a statement that writes.

    sqlite3 does so unless the isolation level is None. With the `autocommit` attribute of Python 3.12, it does so if
    that is False.
    """
    autocommit = getattr(connection, "autocommit", -1)
    return autocommit is False or (autocommit is not True and connection.isolation_level is not None)
