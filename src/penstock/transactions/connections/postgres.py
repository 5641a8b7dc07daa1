"""The drivers of Postgres."""

from __future__ import annotations

import sys
from typing import Any

_IDLE = 0  # libpq's word for: outside of a transaction


class AsyncpgLine:
    dialect, waits = "postgresql", True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begun(self) -> bool:
        return bool(self._connection.is_in_transaction())

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        marks = [f"${n}" for n in range(1, len(values) + 1)]
        return [tuple(row) for row in await self._connection.fetch(statement.format(*marks), *values)]

    async def finish(self) -> None:
        """Outside of a transaction every statement is its own."""

    async def close(self) -> None:
        await self._connection.close()


class PsycopgLine:
    dialect, waits = "postgresql", False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begun(self) -> bool:
        return not self._connection.autocommit or bool(self._connection.info.transaction_status != _IDLE)

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row) as cursor:
            cursor.execute(statement.format(*["%s"] * len(values)), values)
            return cursor.fetchall() if cursor.description else []

    async def finish(self) -> None:
        self._connection.commit()

    async def close(self) -> None:
        self._connection.close()


class AsyncPsycopgLine:
    dialect, waits = "postgresql", True

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begun(self) -> bool:
        return not self._connection.autocommit or bool(self._connection.info.transaction_status != _IDLE)

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        async with self._connection.cursor(row_factory=sys.modules["psycopg"].rows.tuple_row) as cursor:
            await cursor.execute(statement.format(*["%s"] * len(values)), values)
            return await cursor.fetchall() if cursor.description else []

    async def finish(self) -> None:
        await self._connection.commit()

    async def close(self) -> None:
        await self._connection.close()


class Psycopg2Line:
    dialect, waits = "postgresql", False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def begun(self) -> bool:
        return not self._connection.autocommit or bool(self._connection.info.transaction_status != _IDLE)

    async def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor(cursor_factory=sys.modules["psycopg2.extensions"].cursor) as cursor:
            cursor.execute(statement.format(*["%s"] * len(values)), values)
            return cursor.fetchall() if cursor.description else []

    async def finish(self) -> None:
        self._connection.commit()

    async def close(self) -> None:
        self._connection.close()
