"""Reads on connections of their own, so that a long list never holds up a commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import apsw

from ...core.errors import StoreUnavailable
from .connection import MEMORY, connect, translate
from .writer import Writer

T = TypeVar("T")


class Reader:
    """Runs read-only work on a small pool; a memory database has one connection only, the writer's."""

    def __init__(self, path: str, writer: Writer) -> None:
        self._path = path
        self._writer = writer
        self._local = threading.local()
        self._connections: list[apsw.Connection] = []
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="penstock-read") if path != MEMORY else None

    async def run(self, work: Callable[[apsw.Cursor], T]) -> T:
        if self._pool is None:
            return await self._writer.run(work)
        try:
            reading = asyncio.get_running_loop().run_in_executor(self._pool, self._work, work)
        except RuntimeError:
            raise StoreUnavailable(f"the store {self._path} is closed") from None
        return await reading

    def _work(self, work: Callable[[apsw.Cursor], T]) -> T:
        try:
            cursor = self._cursor()
            cursor.execute("BEGIN")  # what one piece of work reads is of one moment
            try:
                return work(cursor)
            finally:
                cursor.execute("COMMIT")
        except apsw.Error as problem:
            raise translate(problem, self._path) from problem

    def _cursor(self) -> apsw.Cursor:
        cursor: apsw.Cursor | None = getattr(self._local, "cursor", None)
        if cursor is None:
            connection = connect(self._path)
            self._connections.append(connection)
            cursor = self._local.cursor = connection.cursor()
        return cursor

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        for connection in self._connections:
            connection.close()
