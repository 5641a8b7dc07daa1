"""The drivers of SQLite."""

from __future__ import annotations

from typing import Any


class SqliteLine:
    dialect, waits = "sqlite", False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begun(self) -> bool:
        return _begins(self._connection) or bool(self._connection.in_transaction)

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return list(cursor.execute(statement.format(*["?"] * len(values)), values).fetchall())

    async def finish(self) -> None:
        self._connection.commit()

    async def close(self) -> None:
        self._connection.close()


class ApswLine:
    dialect, waits = "sqlite", False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begun(self) -> bool:
        return bool(self._connection.in_transaction)

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._connection.execute(statement.format(*["?"] * len(values)), values)]

    async def finish(self) -> None:
        """Outside of a transaction every statement is its own."""

    async def close(self) -> None:
        self._connection.close()


class AiosqliteLine:
    dialect, waits = "sqlite", True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begun(self) -> bool:
        return _begins(self._connection) or bool(self._connection.in_transaction)

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        async with self._connection.execute(statement.format(*["?"] * len(values)), values) as cursor:
            return [tuple(row) for row in await cursor.fetchall()]

    async def finish(self) -> None:
        await self._connection.commit()

    async def close(self) -> None:
        await self._connection.close()


def _begins(connection: Any) -> bool:
    """Whether a statement that writes begins a transaction by itself: by the older rules of sqlite3 it does unless the
    isolation level is None, by those of Python 3.12 it does if autocommit is False."""
    autocommit = getattr(connection, "autocommit", -1)
    return autocommit is False or (autocommit is not True and connection.isolation_level is not None)
