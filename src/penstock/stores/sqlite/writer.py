"""One connection writes, on its own thread. Work that arrives during a transaction goes together into the next one.

A small write that finds the writer idle runs on the caller's thread, which is the event loop's: handing it to the
writer thread and back costs two wake-ups, a fifth of the time of a single step. It does so only while the disk is fast,
and once per turn of the loop. Work that takes long, waits for another process or fails goes to the writer thread.
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
from .connection import BusyHandler, connect, translate_error
from .stream_heads import StreamHeads

T = TypeVar("T")
Work = Callable[[apsw.Cursor], T]

# How often the writer checks whether another process has committed. The check reads shared memory, not the disk.
POLL_INTERVAL_S = 0.02
# A transaction faster than this may run on the event loop.
INLINE_MAX_S = 0.002
# The writer copies the log into the file when it has this many pages.
CHECKPOINT_PAGES = 4000


class WorkItem(Generic[T]):
    """A piece of work and the future that receives its result."""

    __slots__ = ("error", "future", "loop", "on_commit", "result", "work")

    def __init__(
        self,
        work: Work[T],
        future: asyncio.Future[T] | Future[T],
        loop: asyncio.AbstractEventLoop | None = None,
        on_commit: Callable[[], None] | None = None,
    ) -> None:
        self.work = work
        self.future = future
        self.loop = loop
        self.on_commit = on_commit
        self.result: T | None = None
        self.error: BaseException | None = None

    def resolve(self) -> None:
        future = self.future
        if not future.done():  # if it is, its caller was cancelled; the work is committed all the same
            if self.error is not None:
                future.set_exception(self.error)
            else:
                future.set_result(self.result)  # type: ignore[arg-type]
        if self.error is None and self.on_commit is not None:
            self.on_commit()


class Writer:
    """Runs pieces of work in grouped transactions.

    It calls `on_change` after each one that has changed a row, `on_foreign_commit` when another process has committed.
    """

    def __init__(
        self, path: str, on_foreign_commit: Callable[[], None], on_change: Callable[[], None] | None = None
    ) -> None:
        self.path = path
        self.heads = StreamHeads()
        self._on_change = on_change
        self._changes = 0
        self._on_foreign_commit = on_foreign_commit
        self._inbox: queue.SimpleQueue[WorkItem[Any] | None] = queue.SimpleQueue()
        self._opened: Future[None] = Future()
        self._is_closed = False
        self._inbox_lock = threading.Lock()  # nothing enters the inbox after closing: no thread would answer it
        self._connection_lock = threading.Lock()
        self._busy_handler = BusyHandler()
        self._connection: apsw.Connection
        self._cursor: apsw.Cursor
        self._unfinished = 0  # items in the inbox and on the thread
        self._is_fast = False  # the last transaction with a single item was
        self._wal_pages = 0
        self._inline_turn: object = None  # set after an inline write until the next turn of the loop
        self._thread = threading.Thread(target=self._main, name="penstock-sqlite", daemon=True)

    def start(self) -> None:
        """Open the file, or raise what is wrong with it."""
        self._thread.start()
        self._opened.result()

    async def run(self, work: Work[T], on_commit: Callable[[], None] | None = None, *, is_small: bool = False) -> T:
        """Run work in the next transaction and return its result once that is on disk.

        `on_commit` is called on the caller's loop afterwards, even if the caller was cancelled. Small work may run on
        the caller's thread.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        item = WorkItem(work, future, loop, on_commit)
        if not (is_small and self._try_inline(item, loop)):
            self._put(item)
        return await future

    def run_blocking(self, work: Work[T]) -> T:
        """Run work in the next transaction, for a caller without an event loop."""
        future: Future[T] = Future()
        self._put(WorkItem(work, future))
        return future.result()

    def close(self) -> None:
        """Finish the work in the inbox and close the file."""
        with self._inbox_lock:
            if not self._is_closed:
                self._is_closed = True
                self._inbox.put(None)
        if self._thread.ident is not None:  # it was started
            self._thread.join()

    def _put(self, item: WorkItem[Any]) -> None:
        with self._inbox_lock:
            if self._is_closed:
                raise StoreClosed.of(self.path)
            self._unfinished += 1
            self._inbox.put(item)

    def _try_inline(self, item: WorkItem[Any], loop: asyncio.AbstractEventLoop) -> bool:
        """Write on the caller's thread if the writer is idle. Return False if nothing was written."""
        if not self._is_fast or self._unfinished or self._inline_turn is not None:
            return False
        if not self._connection_lock.acquire(blocking=False):
            return False
        try:
            self._run_transaction([item], may_wait=False)
        except Exception:
            return False  # the thread tries again, waits as long as it takes, and reports the error
        finally:
            self._connection_lock.release()
        self._inline_turn = loop.call_soon(self._end_inline_turn)
        item.resolve()
        return True

    def _end_inline_turn(self) -> None:
        self._inline_turn = None

    def _main(self) -> None:
        try:
            self._connection = connect(self.path, self._busy_handler)
            self._connection.set_wal_hook(self._note_wal_pages)  # replaces SQLite's own checkpoints inside a commit
            self._cursor = self._connection.cursor()
        except BaseException as problem:
            self._fail_rest()
            self._opened.set_exception(problem)
            return
        self._opened.set_result(None)
        try:
            self._serve()
        finally:
            self._fail_rest()
            with self._connection_lock:
                self._connection.close()

    def _serve(self) -> None:
        version, checked_at = self._check_foreign_commits(None), time.monotonic()
        is_last = False
        while not is_last:
            try:
                batch, is_last = self._collect(self._inbox.get(timeout=POLL_INTERVAL_S))
            except queue.Empty:
                batch = []
            if batch:
                with self._connection_lock:
                    self._commit_batch(batch)
            if self._wal_pages >= CHECKPOINT_PAGES:
                self._checkpoint()
            # Not after each transaction: the next caller would wait for the check too.
            if time.monotonic() - checked_at >= POLL_INTERVAL_S:
                version, checked_at = self._check_foreign_commits(version), time.monotonic()

    def _check_foreign_commits(self, last: int | None) -> int | None:
        """Report if another process has committed since the data version `last`, and return the present version."""
        try:
            with self._connection_lock:
                version = _data_version(self._cursor)
        except apsw.Error:
            return last  # the next commit reports the error; a check must not end the thread
        if last is not None and version != last:
            self._on_foreign_commit()
        return version

    def _note_wal_pages(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint(self) -> None:
        """Copy the log into the file. Not inside a commit: its caller would wait, and perhaps the event loop."""
        self._wal_pages = 0  # the next commit sets it
        try:
            with self._connection_lock:
                self._connection.wal_checkpoint()
        except apsw.Error:
            pass  # the data is safe in the log; the next commit asks for a checkpoint again

    def _collect(self, first: WorkItem[Any] | None) -> tuple[list[WorkItem[Any]], bool]:
        """Return all items of the inbox, and whether the writer is to stop after them."""
        batch: list[WorkItem[Any]] = []
        item = first
        while item is not None:
            batch.append(item)
            try:
                item = self._inbox.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _commit_batch(self, batch: list[WorkItem[Any]]) -> None:
        try:
            self._run_transaction(batch)
        except Exception as problem:
            if len(batch) == 1 or isinstance(problem, apsw.BusyError):
                # A file that another process has locked is locked for the whole batch.
                for item in batch:
                    item.error = translate_error(problem, self.path) if isinstance(problem, apsw.Error) else problem
            else:
                # One item failed: run each alone, so that it does not affect the others.
                for item in batch:
                    self._commit_batch([item])
                return
        with self._inbox_lock:
            self._unfinished -= len(batch)
        resolve(batch)

    def _run_transaction(self, batch: list[WorkItem[Any]], *, may_wait: bool = True) -> None:
        cursor, since = self._cursor, time.perf_counter()
        self._busy_handler.is_disabled = not may_wait
        cursor.execute("BEGIN IMMEDIATE")
        self.heads.begin(self._connection)
        try:
            for item in batch:
                item.result = item.work(cursor)
            cursor.execute("COMMIT")
            self.heads.end(self._connection)
        except BaseException:
            self.heads.forget()
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise
        if self._on_change is not None and (changes := self._connection.total_changes()) != self._changes:
            self._changes = changes
            self._on_change()
        if len(batch) == 1:
            self._is_fast = time.perf_counter() - since < INLINE_MAX_S

    def _fail_rest(self) -> None:
        with self._inbox_lock:
            self._is_closed = True
        rest: list[WorkItem[Any]] = []
        while not self._inbox.empty():
            item = self._inbox.get_nowait()
            if item is not None:
                item.error = StoreClosed.of(self.path)
                rest.append(item)
        resolve(rest)


def resolve(batch: list[WorkItem[Any]]) -> None:
    """Resolve the futures of a batch with one wake-up per event loop, not one per item."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WorkItem[Any]]] = {}
    for item in batch:
        if item.loop is None:
            item.resolve()
        else:
            by_loop.setdefault(item.loop, []).append(item)
    for loop, items in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_all, items)
        except RuntimeError:  # the loop is closed: nobody waits any more
            pass


def _resolve_all(items: list[WorkItem[Any]]) -> None:
    for item in items:
        item.resolve()


def _data_version(cursor: apsw.Cursor) -> int:
    row = cursor.execute("PRAGMA data_version").fetchone()
    assert row is not None
    return int(row[0])
