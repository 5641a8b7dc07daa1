"""One connection writes, on a thread of its own; what arrives while it writes goes together in the next transaction.

A small write that finds nothing else under way is done by its caller, on the loop: handing it to the thread and back
takes two wake-ups, a fifth of a lone step's time. Only while the file proves quick, though, and once in a turn of the
loop: whatever takes long, waits for another process or fails is the thread's.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import apsw

from ...core.errors import StoreClosed
from .connection import Patience, connect, translate

T = TypeVar("T")
Work = Callable[[apsw.Cursor], T]

# How often the writer looks whether another process has committed. It reads shared memory, not the disk.
GLANCE = 0.02
# A transaction over so soon, in seconds, may as well be the loop's own.
QUICK = 0.002
# So many pages in the log are brought into the file.
LONG_LOG = 4000


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
        self._hands = threading.Lock()  # who holds it has the connection
        self._patience = Patience()
        self._connection: apsw.Connection
        self._cursor: apsw.Cursor
        self._under_way = 0  # tickets in the inbox and in the thread's hands
        self._quick = False  # the last lone transaction was
        self._log = 0  # pages
        self._turn: object = None  # of the loop, in which something was written by its caller
        self._thread = threading.Thread(target=self._main, name="penstock-sqlite", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._opened.result()

    async def run(self, work: Work[T], then: Callable[[], None] | None = None, *, small: bool = False) -> T:
        """Runs work in the next transaction; returns once that is on disk. `then` follows on the caller's loop,
        whether or not the caller still waits. Work known to be `small` may be done here and now."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        ticket = Ticket(work, future, loop, then)
        if not (small and self._done_here(ticket, loop)):
            self._put(ticket)
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
                raise StoreClosed(f"the store {self.path} is closed")
            self._under_way += 1
            self._inbox.put(ticket)

    def _done_here(self, ticket: Ticket[Any], loop: asyncio.AbstractEventLoop) -> bool:
        """Writes on the caller's thread if that is as good; else nothing has happened yet."""
        if not self._quick or self._under_way or self._turn is not None or not self._hands.acquire(blocking=False):
            return False
        try:
            self._attempt([ticket], patient=False)
        except Exception:
            return False  # the thread tries again, as patiently as it takes, and says what is wrong
        finally:
            self._hands.release()
        self._turn = loop.call_soon(self._next_turn)
        ticket.settle()
        return True

    def _next_turn(self) -> None:
        self._turn = None

    def _main(self) -> None:
        try:
            self._connection = connect(self.path, self._patience)
            self._connection.set_wal_hook(self._logged)  # in place of SQLite's own checkpoints inside a commit
            self._cursor = self._connection.cursor()
        except BaseException as problem:
            self._refuse_rest()
            self._opened.set_exception(problem)
            return
        self._opened.set_result(None)
        try:
            self._serve()
        finally:
            self._refuse_rest()
            with self._hands:
                self._connection.close()

    def _serve(self) -> None:
        seen, looked = self._look(None), time.monotonic()
        stop = False
        while not stop:
            try:
                batch, stop = self._collect(self._inbox.get(timeout=GLANCE))
            except queue.Empty:
                batch = []
            if batch:
                with self._hands:
                    self._transact(batch)
            if self._log >= LONG_LOG:
                self._shorten_log()
            # Not after each transaction: whoever waits for its answer would wait for the look too.
            if time.monotonic() - looked >= GLANCE:
                seen, looked = self._look(seen), time.monotonic()

    def _look(self, seen: int | None) -> int | None:
        """Tells when another process has committed since the version seen; gives the present one."""
        try:
            with self._hands:
                now = _data_version(self._cursor)
        except apsw.Error:
            return seen  # the next commit says what is wrong; a look must not end the thread that answers
        if seen is not None and now != seen:
            self._glance()
        return now

    def _logged(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log = pages
        return apsw.SQLITE_OK

    def _shorten_log(self) -> None:
        """Brings what is logged into the file. Not inside a commit: its caller would wait, and the loop perhaps."""
        self._log = 0  # the next commit says how long it is now
        try:
            with self._hands:
                self._connection.wal_checkpoint()
        except apsw.Error:
            pass  # the log is as good; the next commit asks again

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

    def _transact(self, batch: list[Ticket[Any]]) -> None:
        try:
            self._attempt(batch)
        except Exception as problem:
            if len(batch) == 1 or isinstance(problem, apsw.BusyError):
                # A file that another process holds is held for all of them: they are told together.
                for ticket in batch:
                    ticket.error = translate(problem, self.path) if isinstance(problem, apsw.Error) else problem
            else:
                # One piece of work broke: each goes alone, so that it hurts no neighbour.
                for ticket in batch:
                    self._transact([ticket])
                return
        with self._door:
            self._under_way -= len(batch)
        deliver(batch)

    def _attempt(self, batch: list[Ticket[Any]], *, patient: bool = True) -> None:
        cursor, since = self._cursor, time.perf_counter()
        self._patience.gone = not patient
        cursor.execute("BEGIN IMMEDIATE")
        try:
            for ticket in batch:
                ticket.result = ticket.work(cursor)
            cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise
        if len(batch) == 1:
            self._quick = time.perf_counter() - since < QUICK

    def _refuse_rest(self) -> None:
        with self._door:
            self._closed = True
        rest: list[Ticket[Any]] = []
        while not self._inbox.empty():
            ticket = self._inbox.get_nowait()
            if ticket is not None:
                ticket.error = StoreClosed(f"the store {self.path} is closed")
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
