"""Reads on connections of their own, so that a long list never holds up a commit."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any, TypeVar

import apsw

from ...core.errors import StoreClosed
from .connection import MEMORY, connect, translate
from .looking import Onlooker, check, connect_to_read, outdated
from .writer import Ticket, Work, Writer, deliver

T = TypeVar("T")

THREADS = 2  # one may be busy with a long list
TOGETHER = 16  # reads that one thread takes at once


class Reader:
    """Runs read-only work on two threads; a memory database has one connection only, the writer's.

    What has come in together is read together and answered by one wake-up of the loop: under load, waking costs more
    than reading.
    """

    def __init__(self, path: str, writer: Writer | Onlooker) -> None:
        self._path = path
        self._connect = connect if isinstance(writer, Writer) else connect_to_read
        self._writer = writer
        self._inbox: queue.SimpleQueue[Ticket[Any] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._door = threading.Lock()  # nothing gets into the inbox after it was closed: nobody would answer

    async def run(self, work: Work[T]) -> T:
        if self._path == MEMORY:
            return await self._writer.run(work)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._door:
            if self._closed:
                raise StoreClosed(f"the store {self._path} is closed")
            if len(self._threads) < THREADS:
                self._start()
            self._inbox.put(Ticket(work, future, loop))
        return await future

    def close(self) -> None:
        with self._door:
            self._closed = True
            for _ in self._threads:
                self._inbox.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        name = f"penstock-read-{len(self._threads)}"
        thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _main(self) -> None:
        connection: apsw.Connection | None = None
        try:
            while (ticket := self._inbox.get()) is not None:
                batch = self._collect(ticket)
                try:
                    if connection is not None and outdated(connection):
                        connection.close()
                        connection = None
                    connection = connection or self._connect(self._path)
                    _read(connection, self._path, batch)
                except Exception as problem:
                    for one in batch:
                        one.error = one.error or _told(problem, self._path)
                deliver(batch)
        finally:
            if connection is not None:
                connection.close()

    def _collect(self, first: Ticket[Any]) -> list[Ticket[Any]]:
        batch = [first]
        while len(batch) < TOGETHER:
            try:
                ticket = self._inbox.get_nowait()
            except queue.Empty:
                break
            if ticket is None:
                self._inbox.put(None)  # the end: whoever looks next is to see it
                break
            batch.append(ticket)
        return batch


def _read(connection: apsw.Connection, path: str, batch: list[Ticket[Any]]) -> None:
    cursor = connection.cursor()
    cursor.execute("BEGIN")  # what one piece of work reads is of one moment
    try:
        for ticket in batch:
            try:
                ticket.result = ticket.work(cursor)
            except Exception as problem:
                ticket.error = _told(problem, path)
    finally:
        if connection.in_transaction:
            cursor.execute("COMMIT")
    check(connection, path)


def _told(problem: Exception, path: str) -> BaseException:
    return translate(problem, path) if isinstance(problem, apsw.Error) else problem
