"""Read on separate connections, so that a long list never delays a commit."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any, TypeVar

import apsw

from ...core.errors import StoreClosed
from .connection import MEMORY, connect, translate_error
from .read_only import ReadOnlyWriter, check_unchanged, connect_read_only, is_outdated
from .writer import Work, WorkItem, Writer, resolve

T = TypeVar("T")

READER_THREADS = 2  # one may be busy with a long list
MAX_BATCH = 16  # reads that one thread takes at once


class Reader:
    """Runs read-only work on two threads. A memory database has only the writer's connection.

    Reads that arrive together run together, and one wake-up of the event loop answers them: under load, waking costs
    more than reading.
    """

    def __init__(self, path: str, writer: Writer | ReadOnlyWriter) -> None:
        self._path = path
        self._connect = connect if isinstance(writer, Writer) else connect_read_only
        self._writer = writer
        self._inbox: queue.SimpleQueue[WorkItem[Any] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._inbox_lock = threading.Lock()  # nothing enters the inbox after closing: no thread would answer it

    async def run(self, work: Work[T]) -> T:
        """Run work in a read transaction and return its result."""
        if self._path == MEMORY:
            return await self._writer.run(work)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._inbox_lock:
            if self._is_closed:
                raise StoreClosed.of(self._path)
            if len(self._threads) < READER_THREADS:
                self._start_thread()
            self._inbox.put(WorkItem(work, future, loop))
        return await future

    def close(self) -> None:
        with self._inbox_lock:
            self._is_closed = True
            for _ in self._threads:
                self._inbox.put(None)
        for thread in self._threads:
            thread.join()

    def _start_thread(self) -> None:
        name = f"penstock-read-{len(self._threads)}"
        thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _main(self) -> None:
        connection: apsw.Connection | None = None
        try:
            while (item := self._inbox.get()) is not None:
                batch = self._collect(item)
                try:
                    if connection is not None and is_outdated(connection):
                        connection.close()
                        connection = None
                    connection = connection or self._connect(self._path)
                    _read(connection, self._path, batch)
                except Exception as problem:
                    for item in batch:
                        item.error = item.error or _translate(problem, self._path)
                resolve(batch)
        finally:
            if connection is not None:
                connection.close()

    def _collect(self, first: WorkItem[Any]) -> list[WorkItem[Any]]:
        batch = [first]
        while len(batch) < MAX_BATCH:
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                break
            if item is None:
                self._inbox.put(None)  # the end mark: this thread sees it again after the batch
                break
            batch.append(item)
        return batch


def _read(connection: apsw.Connection, path: str, batch: list[WorkItem[Any]]) -> None:
    cursor = connection.cursor()
    cursor.execute("BEGIN")  # all reads of one piece of work see one snapshot
    try:
        for item in batch:
            try:
                item.result = item.work(cursor)
            except Exception as problem:
                item.error = _translate(problem, path)
    finally:
        if connection.in_transaction:
            cursor.execute("COMMIT")
    check_unchanged(connection, path)


def _translate(problem: Exception, path: str) -> BaseException:
    return translate_error(problem, path) if isinstance(problem, apsw.Error) else problem
