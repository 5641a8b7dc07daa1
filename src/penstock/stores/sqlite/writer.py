"""One thread owns the connection that writes; what arrives while it writes goes together in the next transaction."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import apsw

from ...core.errors import StoreUnavailable
from .connection import connect, translate

T = TypeVar("T")
Work = Callable[[apsw.Cursor], T]

# How often the writer looks whether another process has committed. It reads shared memory, not the disk.
GLANCE = 0.02


class Ticket(Generic[T]):
    """A piece of work and who waits for it."""

    __slots__ = ("error", "future", "loop", "result", "then", "work")

    def __init__(
        self,
        work: Work[T],
        future: asyncio.Future[T] | Future[T],
        loop: asyncio.AbstractEventLoop | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        self.work = work
        self.future = future
        self.loop = loop
        self.then = then
        self.result: T | None = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        future = self.future
        if not future.done():  # else its caller has gone away; the work is done all the same
            if self.error is not None:
                future.set_exception(self.error)
            else:
                future.set_result(self.result)  # type: ignore[arg-type]
        if self.error is None and self.then is not None:
            self.then()


class Writer:
    """Runs pieces of work inside grouped transactions. `glance` is called when another process has committed."""

    def __init__(self, path: str, glance: Callable[[], None]) -> None:
        self.path = path
        self._glance = glance
        self._inbox: queue.SimpleQueue[Ticket[Any] | None] = queue.SimpleQueue()
        self._opened: Future[None] = Future()
        self._closed = False
        self._door = threading.Lock()  # nothing gets into the inbox after it was closed: nobody would answer
        self._thread = threading.Thread(target=self._main, name="penstock-sqlite", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._opened.result()

    async def run(self, work: Work[T], then: Callable[[], None] | None = None) -> T:
        """Runs work in the next transaction; returns once that is on disk. `then` follows on the caller's loop,
        whether or not the caller still waits."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._put(Ticket(work, future, loop, then))
        return await future

    def run_blocking(self, work: Work[T]) -> T:
        """The same, for a caller with no event loop."""
        future: Future[T] = Future()
        self._put(Ticket(work, future))
        return future.result()

    def close(self) -> None:
        with self._door:
            if not self._closed:
                self._closed = True
                self._inbox.put(None)
        if self._thread.ident is not None:  # it was opened
            self._thread.join()

    def _put(self, ticket: Ticket[Any]) -> None:
        with self._door:
            if self._closed:
                raise StoreUnavailable(f"the store {self.path} is closed")
            self._inbox.put(ticket)

    def _main(self) -> None:
        try:
            connection = connect(self.path)
        except BaseException as problem:
            self._refuse_rest()
            self._opened.set_exception(problem)
            return
        self._opened.set_result(None)
        try:
            self._serve(connection)
        finally:
            connection.close()
            self._refuse_rest()

    def _serve(self, connection: apsw.Connection) -> None:
        cursor = connection.cursor()
        seen, looked = self._look(cursor, None), time.monotonic()
        stop = False
        while not stop:
            try:
                batch, stop = self._collect(self._inbox.get(timeout=GLANCE))
            except queue.Empty:
                batch = []
            if batch:
                self._transact(connection, cursor, batch)
            # Not after each transaction: whoever waits for its answer would wait for the look too.
            if time.monotonic() - looked >= GLANCE:
                seen, looked = self._look(cursor, seen), time.monotonic()

    def _look(self, cursor: apsw.Cursor, seen: int | None) -> int | None:
        """Tells when another process has committed since the version seen; gives the present one."""
        try:
            now = _data_version(cursor)
        except apsw.Error:
            return seen  # the next commit says what is wrong; a look must not end the thread that answers
        if seen is not None and now != seen:
            self._glance()
        return now

    def _collect(self, first: Ticket[Any] | None) -> tuple[list[Ticket[Any]], bool]:
        batch: list[Ticket[Any]] = []
        ticket = first
        while ticket is not None:
            batch.append(ticket)
            try:
                ticket = self._inbox.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _transact(self, connection: apsw.Connection, cursor: apsw.Cursor, batch: list[Ticket[Any]]) -> None:
        try:
            self._attempt(connection, cursor, batch)
        except Exception as problem:
            if len(batch) == 1 or isinstance(problem, apsw.BusyError):
                # A file that another process holds is held for all of them: they are told together.
                for ticket in batch:
                    ticket.error = translate(problem, self.path) if isinstance(problem, apsw.Error) else problem
            else:
                # One piece of work broke: each goes alone, so that it hurts no neighbour.
                for ticket in batch:
                    self._transact(connection, cursor, [ticket])
                return
        deliver(batch)

    def _attempt(self, connection: apsw.Connection, cursor: apsw.Cursor, batch: list[Ticket[Any]]) -> None:
        cursor.execute("BEGIN IMMEDIATE")
        try:
            for ticket in batch:
                ticket.result = ticket.work(cursor)
            cursor.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise

    def _refuse_rest(self) -> None:
        with self._door:
            self._closed = True
        rest: list[Ticket[Any]] = []
        while not self._inbox.empty():
            ticket = self._inbox.get_nowait()
            if ticket is not None:
                ticket.error = StoreUnavailable(f"the store {self.path} is closed")
                rest.append(ticket)
        deliver(rest)


def deliver(batch: list[Ticket[Any]]) -> None:
    """Hands results over with one wake-up a loop, not one a ticket."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Ticket[Any]]] = {}
    for ticket in batch:
        if ticket.loop is None:
            ticket.settle()
        else:
            by_loop.setdefault(ticket.loop, []).append(ticket)
    for loop, tickets in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, tickets)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass


def _settle(tickets: list[Ticket[Any]]) -> None:
    for ticket in tickets:
        ticket.settle()


def _data_version(cursor: apsw.Cursor) -> int:
    row = cursor.execute("PRAGMA data_version").fetchone()
    assert row is not None
    return int(row[0])
