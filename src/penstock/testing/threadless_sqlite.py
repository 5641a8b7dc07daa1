"""The SQLite store without its threads: it executes the same statements inline, so that a test controls their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import apsw

from ..core.clock import Clock
from ..stores.sqlite import SqliteStore
from ..stores.sqlite.connection import MEMORY, connect, translate_error
from ..stores.sqlite.stream_heads import StreamHeads

T = TypeVar("T")


class InlineDatabase:
    """One database in memory that several stores share, as processes share a file."""

    def __init__(self) -> None:
        self.connection = connect(MEMORY)
        self.heads = StreamHeads()
        self.stores: list[InlineStore] = []
        self.on_commit: Callable[[InlineStore], None] | None = None

    def close(self) -> None:
        self.connection.close()


class InlineStore(SqliteStore):
    """One process's view of a shared database. No call waits: delays and faults are injected around it."""

    def __init__(self, database: InlineDatabase, *, clock: Clock, namespace: str = "nq") -> None:
        super().__init__(MEMORY, clock=clock, namespace=namespace)
        self._database = database
        inline = _InlineExecutor(database, self)
        self._writer = inline  # type: ignore[assignment]
        self._reader = inline  # type: ignore[assignment]

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._database.stores.append(self)

    async def close(self) -> None:
        self._loop = None
        if self in self._database.stores:
            self._database.stores.remove(self)


class _InlineExecutor:
    """Replaces the writer thread and the reader threads."""

    def __init__(self, database: InlineDatabase, store: InlineStore) -> None:
        self._database = database
        self._store = store
        self.heads = database.heads

    async def run(
        self, work: Callable[[apsw.Cursor], T], on_commit: Callable[[], None] | None = None, *, is_small: bool = False
    ) -> T:
        result = self.run_blocking(work)
        if on_commit is not None:
            on_commit()
        return result

    def run_blocking(self, work: Callable[[apsw.Cursor], T]) -> T:
        connection = self._database.connection
        cursor = connection.cursor()
        before = connection.total_changes()
        cursor.execute("BEGIN IMMEDIATE")
        self.heads.begin(connection)
        try:
            result = work(cursor)
            cursor.execute("COMMIT")
            self.heads.end(connection)
        except BaseException as problem:
            self.heads.forget()
            if connection.in_transaction:
                cursor.execute("ROLLBACK")
            if isinstance(problem, apsw.Error):
                raise translate_error(problem, MEMORY) from problem
            raise
        if connection.total_changes() != before and self._database.on_commit is not None:
            self._database.on_commit(self._store)
        return result
