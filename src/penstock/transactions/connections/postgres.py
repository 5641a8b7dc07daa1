"""Adapters for Postgres drivers."""

from __future__ import annotations

import sys
from typing import Any

_IDLE = 0  # libpq's PQTRANS_IDLE: not in a transaction


class AsyncpgConnection:
    dialect, is_async = "postgresql", True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def is_in_transaction(self) -> bool:
        return bool(self._connection.is_in_transaction())

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        placeholders = [f"${n}" for n in range(1, len(values) + 1)]
        return [tuple(row) for row in await self._connection.fetch(statement.format(*placeholders), *values)]

    async def commit(self) -> None:
        """Do nothing: outside of a transaction the driver commits each statement."""

    async def close(self) -> None:
        await self._connection.close()


class PsycopgConnection:
    dialect, is_async = "postgresql", False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def is_in_transaction(self) -> bool:
        return not self._connection.autocommit or bool(self._connection.info.transaction_status != _IDLE)

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row) as cursor:
            cursor.execute(statement.format(*["%s"] * len(values)), values)
            return cursor.fetchall() if cursor.description else []

    async def commit(self) -> None:
        self._connection.commit()

    async def close(self) -> None:
        self._connection.close()


class AsyncPsycopgConnection:
    dialect, is_async = "postgresql", True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def is_in_transaction(self) -> bool:
        return not self._connection.autocommit or bool(self._connection.info.transaction_status != _IDLE)

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        async with self._connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row) as cursor:
            await cursor.execute(statement.format(*["%s"] * len(values)), values)
            return await cursor.fetchall() if cursor.description else []

    async def commit(self) -> None:
        await self._connection.commit()

    async def close(self) -> None:
        await self._connection.close()


class Psycopg2Connection:
    dialect, is_async = "postgresql", False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def is_in_transaction(self) -> bool:
        return not self._connection.autocommit or bool(self._connection.info.transaction_status != _IDLE)

    async def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor) as cursor:
            cursor.execute(statement.format(*["%s"] * len(values)), values)
            return cursor.fetchall() if cursor.description else []

    async def commit(self) -> None:
        self._connection.commit()

    async def close(self) -> None:
        self._connection.close()
