"""The SQLite store: one writer thread with grouped transactions, and separate readers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import apsw

from ...core.clock import Clock, SystemClock
from ...core.errors import StoreCorrupt, StoreUnavailable
from ...core.events import Event
from ...ports.monitoring import ErrorGroupRow, KeyRow, MinuteCounts, WorkerRow
from ...ports.store import (
    ChildRow,
    DueSchedules,
    FeedItem,
    JobRow,
    PublishedSchedule,
    QueueRow,
    Retention,
    RunRow,
    ScheduleRow,
    StateRow,
    StoreProfile,
    StreamRow,
    WaitRow,
)
from ...ports.unit import Claim, ClaimBatch, ClaimRequest, CommitReply, JobState, Unit
from ..batches import BATCH_SIZE, SweepBatch, in_batches
from ..change_signals import TopicSignals
from ..namespace_owner import check_owner
from ..run_search import search
from ..stream_retention import StreamSweeper
from ..tail import SharedReads, follow
from . import admin, children, events, housekeeping, monitoring, runs, schedules, state, waits
from .commit import commit
from .connection import MEMORY
from .neighbours import Neighbours
from .read_only import ReadOnlyWriter
from .reader import Reader
from .statements import COMMIT as SQL
from .writer import Writer

T = TypeVar("T")
log = logging.getLogger("penstock.store")

FEW_LISTENERS = 32
MAX_KNOWN_QUEUES = 10_000
SMALL_COMMIT_ROWS = 16  # jobs and events that a small commit claims and writes


class SqliteStore:
    """Keeps runs, jobs, events and state in one SQLite file, or with `:memory:` in this process."""

    profile = StoreProfile()
    rewind_epoch = 0

    def __init__(
        self, path: str = MEMORY, *, clock: Clock | None = None, namespace: str = "nq", read_only: bool = False
    ) -> None:
        self.path = path
        self.signals = TopicSignals()
        self._shared_reads = SharedReads(self.read)
        self._seen_position: int | None = None  # of the events of other processes that listeners were notified of
        self._looking: asyncio.Task[None] | None = None
        self._looks_again = False
        self.clock = clock or SystemClock()
        self._namespace = namespace
        self._queues: frozenset[str] = frozenset()  # that have a row; nothing deletes one
        self._loop: asyncio.AbstractEventLoop | None = None
        self._neighbours = Neighbours(path, self._on_wake) if path != MEMORY else None
        wake = self._neighbours.wake if self._neighbours is not None else None
        self._writer = ReadOnlyWriter(path) if read_only else Writer(path, self._on_foreign_commit, wake)
        self._reader = Reader(path, self._writer)
        self._stream_sweeper = StreamSweeper(namespace, self.streams, self._trim_batch)

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._writer.start)
        if self._neighbours is not None:
            self._neighbours.open()
        try:
            await self._check_namespace()
        except BaseException:
            await self.close()
            raise

    async def _check_namespace(self) -> None:
        owner = await self._reader.run(admin.namespace)
        if owner is None and isinstance(self._writer, Writer):
            owner = await self._writer.run(lambda c: admin.claim_namespace(c, self._namespace))
        check_owner(owner, self._namespace, self.path, "put {namespace} in the file name: sqlite:///{namespace}.db")

    async def close(self) -> None:
        self._loop = None
        if self._neighbours is not None:
            self._neighbours.close()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))
        await asyncio.to_thread(self._reader.close)
        await asyncio.to_thread(self._writer.close)

    # Commits

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        touched: set[str] = set()
        new_queues: set[str] = set()

        def work(cursor: apsw.Cursor, is_careful: bool = False) -> CommitReply:
            touched.clear()  # after a failed batch, the same work runs again alone
            new_queues.clear()
            now, known = self.clock.now_ms(), self._queues
            heads = self._writer.heads
            return commit(
                cursor, now, units, request, touched, heads, queues=known, new_queues=new_queues, is_careful=is_careful
            )

        def signal() -> None:
            if new_queues:
                self._remember_queues(new_queues)
            self.signals.fire(touched)

        try:
            return await self._writer.run(work, signal, is_small=_is_small(units, request))
        except (StoreUnavailable, StoreCorrupt):
            raise
        except Exception as problem:
            # A row holds a value that no commit writes. Nothing was written yet: try again, one job at a time.
            log.warning("a commit failed and is repeated carefully: %s", problem)
            return await self._writer.run(lambda cursor: work(cursor, is_careful=True), signal)

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        return (await self.commit((), request)).claimed

    def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Claim]:
        def work(cursor: apsw.Cursor) -> list[Claim]:
            until = self.clock.now_ms() + lease_ms
            return [claim for claim in claims if not _renew(cursor, claim, until)]

        return self._writer.run_blocking(work)

    # Events

    async def read(
        self,
        stream: str,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int = 100,
        backward: bool = False,
    ) -> list[Event]:
        return await self._reader.run(lambda c: events.read(c, stream, after, before, limit, backward))

    def tail(self, stream: str, *, after: str | None = None) -> AsyncIterator[Event]:
        return follow(self._shared_reads, self.signals, stream, after)

    async def feed(self, after: str | None, limit: int = 500) -> list[FeedItem]:
        return await self._reader.run(lambda c: events.feed(c, after, limit))

    async def streams(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[str]:
        return await self._reader.run(lambda c: events.stream_names(c, prefix, after, limit))

    async def newest_streams(self, prefix: str, *, before: str | None = None, limit: int = 100) -> list[StreamRow]:
        return await self._reader.run(lambda c: events.newest_streams(c, prefix, before, limit))

    async def trim(self, stream: str, *, keep: int | None = None, before_ms: int | None = None) -> int:
        return await in_batches(lambda limit: self._trim_batch(stream, keep, before_ms, limit))

    async def _trim_batch(self, stream: str, keep: int | None, before_ms: int | None, limit: int) -> int:
        return await self._writer.run(lambda c: events.trim(c, stream, keep, before_ms, limit))

    # Runs

    async def run(self, id: str) -> RunRow | None:
        return await self._reader.run(lambda c: runs.run(c, id))

    async def runs(
        self,
        *,
        flow: str | None = None,
        statuses: Sequence[str] = (),
        since: int | None = None,
        until: int | None = None,
        first_event: Any = None,
        keys: Sequence[str] = (),
        before: str | None = None,
        limit: int = 50,
    ) -> list[RunRow]:
        def page(cursor: apsw.Cursor, before: str | None, limit: int) -> list[RunRow]:
            return runs.runs(cursor, flow, statuses, since, until, keys, before, limit)

        if first_event is None:
            return await self._reader.run(lambda c: page(c, before, limit))
        return await search(
            lambda *at: self._reader.run(lambda c: runs.with_first_event(c, self._namespace, page(c, *at))),
            first_event,
            before,
            limit,
        )

    async def has_open_children(self, call: str) -> bool:
        return await self._reader.run(lambda c: runs.has_open_children(c, call))

    async def stuck_runs(self, limit: int = 100) -> list[str]:
        return await self._reader.run(lambda c: runs.stuck_runs(c, limit))

    # Queues

    async def queues(self) -> list[QueueRow]:
        return await self._reader.run(lambda c: admin.queues(c, self.clock.now_ms()))

    async def jobs(self, queue: str, state: JobState, *, after: str | None = None, limit: int = 50) -> list[JobRow]:
        return await self._reader.run(lambda c: admin.jobs(c, queue, state, after, limit))

    async def job(self, id: str) -> JobRow | None:
        return await self._reader.run(lambda c: admin.job(c, id))

    async def pause(self, queue: str) -> None:
        await self._writer.run(lambda c: admin.set_paused(c, queue, True))

    async def resume(self, queue: str) -> None:
        await self._writer.run(lambda c: admin.set_paused(c, queue, False))
        self.signals.fire((f"queue:{queue}",))

    async def reset_rates(self, queue: str) -> None:
        await self._writer.run(lambda c: admin.reset_rates(c, queue))
        self.signals.fire((f"queue:{queue}",))

    async def promote(self, id: str) -> bool:
        return await self._change(lambda c: admin.promote(c, id))

    async def retry(self, id: str) -> bool:
        return await self._change(lambda c: admin.retry(c, id, self.clock.now_ms()))

    async def remove(self, id: str) -> bool:
        return await self._change(lambda c: admin.remove(c, id, self.clock.now_ms()))

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        return await self._delete(lambda c, touched: admin.drain(c, queue, delayed, self.clock.now_ms(), touched))

    async def _change(self, work: Callable[[apsw.Cursor], set[str]]) -> bool:
        touched = await self._writer.run(work)
        self.signals.fire(touched)
        return bool(touched)

    async def _delete(self, work: Callable[[apsw.Cursor, set[str]], T]) -> T:
        """Delete rows, and signal the parents that waited for deleted jobs."""
        touched: set[str] = set()

        def run(cursor: apsw.Cursor) -> T:
            touched.clear()  # after a failed batch, the same work runs again alone
            self._writer.heads.forget()  # a stream may be deleted with its run
            return work(cursor, touched)

        return await self._writer.run(run, lambda: self.signals.fire(touched))

    async def children(self, id: str) -> list[ChildRow]:
        return await self._reader.run(lambda c: children.children(c, id))

    # Schedules

    async def put_schedule(
        self,
        row: ScheduleRow,
        was: ScheduleRow | None,
        unit: Unit | None = None,
        published: PublishedSchedule | None = None,  # noqa: ARG002
    ) -> bool:
        touched: set[str] = set()

        def work(cursor: apsw.Cursor) -> bool:
            touched.clear()
            if not schedules.put(cursor, row, was):
                return False
            if unit is not None:
                commit(cursor, self.clock.now_ms(), (unit,), None, touched, self._writer.heads)
            return True

        return await self._writer.run(work, lambda: self.signals.fire({*touched, "schedules"}))

    async def remove_schedule(self, id: str, was: ScheduleRow | None = None) -> bool:
        return await self._writer.run(lambda c: schedules.remove(c, id, was))

    async def schedule(self, id: str) -> ScheduleRow | None:
        return await self._reader.run(lambda c: schedules.get(c, id))

    async def schedules(self) -> list[ScheduleRow]:
        return await self._reader.run(schedules.list_)

    async def due_schedules(self, after: ScheduleRow | None = None, limit: int = 100) -> DueSchedules:
        return await self._reader.run(lambda c: schedules.due(c, self.clock.now_ms(), after, limit))

    async def next_schedule(self, after_ms: int = 0) -> int | None:
        return await self._reader.run(lambda c: schedules.next_due(c, after_ms))

    # Waits

    async def wait_row(self, id: str) -> WaitRow | None:
        return await self._reader.run(lambda c: waits.get(c, id))

    async def memos(self, scope: str) -> dict[str, bytes]:
        return await self._reader.run(lambda c: waits.memos(c, scope))

    async def waits(
        self, run: str, *, kind: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[WaitRow]:
        return await self._reader.run(lambda c: waits.waits_of_run(c, run, kind, after, limit))

    async def waits_by_time(
        self,
        *,
        run: str | None = None,
        kind: str | None = None,
        state: str = "pending",
        since: int | None = None,
        until: int | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[WaitRow]:
        return await self._reader.run(lambda c: waits.waits_by_time(c, run, kind, state, since, until, before, limit))

    async def waits_for_topic(
        self,
        topic: str,
        keys: Sequence[str] | None,
        *,
        before: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[WaitRow]:
        return await self._reader.run(lambda c: waits.waits_for_topic(c, topic, keys, before, after, limit))

    async def events_by_kind(
        self, kind: str, *, since: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[FeedItem]:
        return await self._reader.run(lambda c: waits.events_by_kind(c, kind, since, after, limit))

    # State

    async def state(self, key: str) -> StateRow | None:
        return await self._reader.run(lambda c: state.get(c, key, self.clock.now_ms()))

    async def states(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[StateRow]:
        return await self._reader.run(lambda c: state.list_(c, prefix, after, limit, self.clock.now_ms()))

    # Monitoring

    async def report_worker(self, id: str, facts: bytes, ttl_ms: int) -> None:
        await self._writer.run(lambda c: monitoring.report_worker(c, id, facts, ttl_ms, self.clock.now_ms()))

    async def remove_worker(self, id: str) -> None:
        await self._writer.run(lambda c: monitoring.remove_worker(c, id))

    async def workers(self) -> list[WorkerRow]:
        return await self._reader.run(lambda c: monitoring.workers(c, self.clock.now_ms()))

    async def add_counts(self, counts: Sequence[MinuteCounts]) -> None:
        await self._writer.run(lambda c: monitoring.add_counts(c, counts))

    async def rates(self, queue: str | None, since: int) -> list[MinuteCounts]:
        return await self._reader.run(lambda c: monitoring.rates(c, queue, since))

    async def open_keys(self, queue: str, look: int) -> list[KeyRow]:
        return await self._reader.run(lambda c: monitoring.open_keys(c, queue, look))

    async def error_groups(self, queue: str) -> list[ErrorGroupRow]:
        return await self._reader.run(lambda c: monitoring.error_groups(c, queue))

    async def jobs_of_error_group(
        self, queue: str, group: str, *, after: str | None = None, limit: int = 50
    ) -> list[str]:
        return await self._reader.run(lambda c: monitoring.jobs_of_error_group(c, queue, group, after, limit))

    # Housekeeping

    async def sweep(self, what: Retention, limit: int = BATCH_SIZE) -> dict[str, int]:
        now = self.clock.now_ms()
        last = await self._reader.run(lambda c: housekeeping.last_to_delete(c, what))
        batch = SweepBatch(limit)
        await self._delete(lambda c, touched: housekeeping.sweep(c, what, last, batch, now, self._namespace, touched))
        await self._stream_sweeper.sweep(what, batch)
        return batch.removed

    async def describe(self) -> dict[str, Any]:
        size = await asyncio.to_thread(os.path.getsize, self.path) if self.path != MEMORY else 0
        return {"store": "sqlite", "path": self.path, "sqlite": apsw.sqlite_lib_version(), "bytes": size}

    def _remember_queues(self, queues: set[str]) -> None:
        self._queues = frozenset(queues) if len(self._queues) >= MAX_KNOWN_QUEUES else self._queues | queues

    def _on_foreign_commit(self) -> None:
        """Notify the listeners that another process has committed. Runs on the writer's thread."""
        loop = self._loop
        if loop is not None and self.signals.has_listeners:
            _call_soon(loop, self._notify_of_foreign_commit)

    def _on_wake(self) -> None:
        """Notify the listeners at once if they are few. Many readers wait for the writer's next look, as before."""
        if self.signals.listeners <= FEW_LISTENERS:
            self.signals.notify_all()

    def _notify_of_foreign_commit(self) -> None:
        """Notify all listeners if they are few. Of many readers, notify those whose stream has new events."""
        if self.signals.listeners <= FEW_LISTENERS:
            self._seen_position = None
            self.signals.notify_all()
        elif self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._signal_changed_streams())
        else:
            self._looks_again = True

    async def _signal_changed_streams(self) -> None:
        self._looks_again = True
        while self._looks_again:
            self._looks_again = False
            try:
                look = partial(events.changed_streams, after=self._seen_position)
                streams, self._seen_position = await self._reader.run(look)
            except Exception as problem:
                log.debug("cannot tell which streams another process changed: %s", problem)
                self._seen_position, streams = None, None
            if streams is None:
                self.signals.notify_all()
            else:
                self.signals.fire_foreign(streams)


def _is_small(units: Sequence[Unit], request: ClaimRequest | None) -> bool:
    """Return whether the commit takes only a few statements, however much the store holds."""
    rows = 0 if request is None else request.limit or sum(demand.limit for demand in request.queues)
    for unit in units:
        rows += len(unit.events) + len(unit.jobs)
    return rows <= SMALL_COMMIT_ROWS


def _renew(cursor: apsw.Cursor, claim: Claim, until: int) -> bool:
    cursor.execute(SQL.renew_lease, (until, claim.handle, claim.token, claim.attempt))
    if cursor.connection.changes() == 0:
        return False
    return claim.run is None or cursor.execute(SQL.run_closed, (claim.run,)).fetchone() == (0,)


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # the loop was closed meanwhile
        pass
