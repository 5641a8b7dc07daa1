"""The Postgres store: one function call for each commit, on a small pool of connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ...core.clock import Clock, SystemClock
from ...core.events import Event
from ...core.payload import pack
from ...ports.bridge import WriteUnits
from ...ports.monitoring import ErrorGroupRow, KeyRow, MinuteCounts, WorkerRow
from ...ports.store import (
    ChildRow,
    DatabaseIdentity,
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
from ...ports.unit import Claim, ClaimBatch, ClaimRequest, CommitReply, JobState, Receipt, Unit
from ..batches import BATCH_SIZE, SweepBatch, in_batches
from ..change_signals import TopicSignals
from ..run_search import search
from ..server_clock import ServerClock, elapsed_ms
from ..stream_retention import StreamSweeper
from ..tail import SharedReads, follow
from . import admin, children, events, housekeeping, monitoring, runs, schedules, state, waits
from .address import read_address
from .commit import commit_units, finish_jobs
from .commit_order import CommitOrder, only_finishes
from .connection import Connection, Connections, Pool
from .enlist import encode_enlisted
from .fast_finish import is_fast
from .lease_renewer import LeaseRenewer
from .migrate import check_namespace, migrate, prepare
from .notify import Notifier
from .started_events import STARTED_ERRORS, clear_started
from .statements import Statements

T = TypeVar("T")


class PostgresStore:
    """Runs, jobs, events and state in one schema of a Postgres database, by the server's clock unless a test passes
    its own."""

    # Two finishes in flight: while one is written, handlers run. The prefetch is large because a call costs much and
    # one more job in it costs little.
    profile = StoreProfile(is_remote=True, max_unordered_finishes=2, prefetch=200)
    rewind_epoch = 0

    def __init__(
        self, url: str, *, clock: Clock | None = None, namespace: str = "nq", pool: Pool | None = None
    ) -> None:
        self.address = read_address(url)
        self.signals = TopicSignals()
        self._shared_reads = SharedReads(self.read)
        self._test_clock = None if clock is None or isinstance(clock, SystemClock) else clock
        self._server_clock = ServerClock(self._read_time)
        self._namespace = namespace
        self._sql = Statements(self.address.schema)
        self._connections = Connections(self.address, pool)
        self._lease_renewer = LeaseRenewer(self.address, self._sql, self._give_up_connection)
        self._notifier = Notifier(self.address, self._sql, self.signals)
        self._order = CommitOrder()
        self._writes: set[asyncio.Task[Any]] = set()
        self._stream_sweeper = StreamSweeper(namespace, self.streams, self._trim_batch)
        self._identity: DatabaseIdentity | None = None

    async def open(self) -> None:
        try:
            await self._connections.run(lambda c: prepare(c, self._sql, self.address))
            await self._connections.run(lambda c: check_namespace(c, self._sql, self.address, self._namespace))
        except BaseException:
            await self._connections.close_idle()
            raise
        self._connections.acquire()
        if self._test_clock is None:
            await self._server_clock.start()
        self._loop = asyncio.get_running_loop()
        self._lease_renewer.start()
        self._notifier.start()

    async def migrate(self) -> list[int]:
        """Create or update the schema, whether or not the store is open. Return the numbers of the migrations."""
        return await self._connections.run(lambda c: migrate(c, self._sql, self.address))

    async def close(self) -> None:
        await self._server_clock.stop()
        if self._writes:
            await asyncio.wait(self._writes)
        await self._notifier.close(self._connections)
        await self._connections.close()
        await asyncio.to_thread(self._lease_renewer.close)

    def _give_up_connection(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it the connections
            self._loop.call_soon_threadsafe(self._connections.give_up_one)

    @property
    def clock(self) -> Clock:
        return self._test_clock or self._server_clock

    async def _read_time(self) -> int:
        return int(await self._read(_value, self._sql.now_ms))

    def _now(self) -> int | None:
        """Return the time of a test's clock, or None for the server's."""
        return None if self._test_clock is None else self._test_clock.now_ms()

    async def _read(self, read: Callable[..., Awaitable[T]], *values: Any) -> T:
        return await self._connections.run(lambda c: read(c, self._sql, *values))

    async def _write(self, write: Callable[..., Coroutine[Any, Any, T]], *values: Any) -> T:
        return await self._finish_write(self._connections.run(lambda c: write(c, self._sql, *values)))

    async def _finish_write(self, work: Coroutine[Any, Any, T]) -> T:
        """Complete a write even if its caller is cancelled: what it committed must still be signalled."""
        task = asyncio.create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._end_write)
        return await asyncio.shield(task)

    def _end_write(self, task: asyncio.Task[Any]) -> None:
        self._writes.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the caller has it, or was cancelled

    def _signal(self, topics: set[str]) -> None:
        self.signals.fire(topics)
        self._notifier.notify(topics)

    async def in_transaction(self, work: Callable[[Connection, WriteUnits], Awaitable[T]]) -> T:
        """Run `work` in one transaction with the units it writes. After a conflict with another one it runs again."""
        return await self._finish_write(self._in_transaction(work))

    async def _in_transaction(self, work: Callable[[Connection, WriteUnits], Awaitable[T]]) -> T:
        touched: set[str] = set()

        async def transaction(connection: Connection) -> T:
            touched.clear()

            async def write(units: Sequence[Unit]) -> list[Receipt]:
                return (await commit_units(connection, self._sql, self._now(), units, None, touched)).receipts

            async with connection.transaction():
                return await work(connection, write)

        result = await self._connections.run(transaction)
        self._signal(touched)
        return result

    # Commits

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        return await self._finish_write(self._commit(units, request))

    async def _commit(self, units: Sequence[Unit], request: ClaimRequest | None) -> CommitReply:
        # In the order of the calls: a claim that follows a commit sees what that has freed, and units that came first
        # are written first. Attempts that finish at the same time have no order to keep.
        async with self._order.shared() if only_finishes(units) else self._order.exclusive():
            return await self._run_commit(units, request)

    async def _run_commit(self, units: Sequence[Unit], request: ClaimRequest | None) -> CommitReply:
        write = finish_jobs if is_fast(units, request) else commit_units
        touched: set[str] = set()

        async def work(connection: Connection) -> CommitReply:
            touched.clear()  # after a conflict with another transaction the same work runs again
            sent_ms = elapsed_ms()
            try:
                reply = await write(connection, self._sql, self._now(), units, request, touched)
            except STARTED_ERRORS:
                if request is None or not await clear_started(connection, self._sql, request):
                    raise
                reply = await write(connection, self._sql, self._now(), units, request, touched)
            if self._test_clock is None:
                self._server_clock.note(reply.now, sent_ms)
            return reply

        reply = await self._connections.run(work)
        self._signal(touched)
        return reply

    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        if self._identity is None or fresh:
            database, since, _ = await self._read(_row, self._sql.identity_query)
            self._identity = DatabaseIdentity(database, since)
        return self._identity

    @property
    def identity_query(self) -> str:
        return self._sql.identity_query

    def enlist(self, units: Sequence[Unit]) -> list[tuple[str, tuple[str, ...]]]:
        now = self._now()
        return [(self._sql.enlist_unit, (encode_enlisted(unit, self.address.schema, now),)) for unit in units]

    async def claim(self, request: ClaimRequest) -> ClaimBatch:
        return (await self.commit((), request)).claimed

    def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Claim]:
        return self._lease_renewer.renew(claims, self._now(), lease_ms)

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
        return await self._read(events.read, stream, after, before, limit, backward)

    def tail(self, stream: str, *, after: str | None = None) -> AsyncIterator[Event]:
        return follow(self._shared_reads, self.signals, stream, after)

    async def feed(self, after: str | None, limit: int = 500) -> list[FeedItem]:
        return await self._read(events.feed, after, limit)

    async def streams(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[str]:
        return await self._read(events.stream_names, prefix, after, limit)

    async def newest_streams(self, prefix: str, *, before: str | None = None, limit: int = 100) -> list[StreamRow]:
        return await self._read(events.newest_streams, prefix, before, limit)

    async def trim(self, stream: str, *, keep: int | None = None, before_ms: int | None = None) -> int:
        return await in_batches(lambda limit: self._trim_batch(stream, keep, before_ms, limit))

    async def _trim_batch(self, stream: str, keep: int | None, before_ms: int | None, limit: int) -> int:
        return await self._write(events.trim, stream, keep, before_ms, limit)

    # Runs

    async def run(self, id: str) -> RunRow | None:
        return await self._read(runs.run, id)

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
        filters: tuple[Any, ...] = (flow, list(statuses), since, until)
        if first_event is None:
            return await self._read(runs.runs, *filters, keys, before, limit)
        prefix, pattern = f"{self._namespace}:", pack(first_event, "the pattern of a run's first event")
        query: tuple[Any, ...] = (runs.find_by_index, prefix, pattern)
        if keys:
            query, filters = (runs.scan_by_time, prefix), (*filters, keys)
        elif await self._read(runs.is_common, pattern):
            query, filters = (runs.scan_by_time, prefix), (*filters, ())
        return await search(lambda *page: self._read(*query, *filters, *page), first_event, before, limit)

    async def has_open_children(self, call: str) -> bool:
        return await self._read(runs.has_open_children, call)

    async def stuck_runs(self, limit: int = 100) -> list[str]:
        return await self._read(runs.stuck_runs, limit)

    # Queues

    async def queues(self) -> list[QueueRow]:
        return await self._read(admin.queues, self._now())

    async def jobs(self, queue: str, state: JobState, *, after: str | None = None, limit: int = 50) -> list[JobRow]:
        return await self._read(admin.jobs, queue, state, after, limit)

    async def job(self, id: str) -> JobRow | None:
        return await self._read(admin.job, id)

    async def pause(self, queue: str) -> None:
        await self._write(_value, self._sql.set_paused, queue, True)

    async def resume(self, queue: str) -> None:
        await self._write(_value, self._sql.set_paused, queue, False)
        self._signal({f"queue:{queue}"})

    async def reset_rates(self, queue: str) -> None:
        await self._write(_value, self._sql.reset_rates, queue)
        self._signal({f"queue:{queue}"})

    async def promote(self, id: str) -> bool:
        return self._signal_queue(await self._write(_value, self._sql.promote, id))

    async def retry(self, id: str) -> bool:
        return self._signal_queue(await self._write(admin.retry, id, self._now()))

    async def remove(self, id: str) -> bool:
        touched = await self._write(admin.remove, id, self._now())
        self._signal(touched)
        return bool(touched)

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        removed, touched = await self._write(admin.drain, queue, delayed, self._now())
        self._signal(touched)
        return removed

    async def children(self, id: str) -> list[ChildRow]:
        return await self._read(children.children, id)

    def _signal_queue(self, queue: str | None) -> bool:
        if queue is not None:
            self._signal({f"queue:{queue}"})
        return queue is not None

    # Schedules

    async def put_schedule(
        self,
        row: ScheduleRow,
        was: ScheduleRow | None,
        unit: Unit | None = None,
        published: PublishedSchedule | None = None,  # noqa: ARG002
    ) -> bool:
        return await self._finish_write(self._put_schedule(row, was, unit))

    async def _put_schedule(self, row: ScheduleRow, was: ScheduleRow | None, unit: Unit | None) -> bool:
        touched: set[str] = set()

        async def work(connection: Connection) -> bool:
            touched.clear()
            async with connection.transaction():
                if not await schedules.put(connection, self._sql, row, was):
                    return False
                if unit is not None:
                    await commit_units(connection, self._sql, self._now(), (unit,), None, touched)
                return True

        is_stored = await self._connections.run(work)
        self._signal({*touched, "schedules"})
        return is_stored

    async def remove_schedule(self, id: str, was: ScheduleRow | None = None) -> bool:
        return await self._write(schedules.remove, id, was)

    async def schedule(self, id: str) -> ScheduleRow | None:
        return await self._read(schedules.schedule, id)

    async def schedules(self) -> list[ScheduleRow]:
        return await self._read(schedules.schedules)

    async def due_schedules(self, after: ScheduleRow | None = None, limit: int = 100) -> DueSchedules:
        return await self._read(schedules.due_schedules, self._now(), after, limit)

    async def next_schedule(self, after_ms: int = 0) -> int | None:
        return await self._read(_value, self._sql.next_schedule, after_ms)

    # Waits

    async def wait_row(self, id: str) -> WaitRow | None:
        return await self._read(waits.wait, id)

    async def memos(self, scope: str) -> dict[str, bytes]:
        return await self._read(waits.memos, scope)

    async def waits(
        self, run: str, *, kind: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[WaitRow]:
        return await self._read(waits.waits_of_run, run, kind, after, limit)

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
        return await self._read(waits.waits_by_time, run, kind, state, since, until, before, limit)

    async def waits_for_topic(
        self,
        topic: str,
        keys: Sequence[str] | None,
        *,
        before: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[WaitRow]:
        return await self._read(waits.waits_for_topic, topic, keys, before, after, limit)

    async def events_by_kind(
        self, kind: str, *, since: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[FeedItem]:
        return await self._read(waits.events_by_kind, kind, since, after, limit)

    # State

    async def state(self, key: str) -> StateRow | None:
        return await self._read(state.state, key, self._now())

    async def states(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[StateRow]:
        return await self._read(state.states, prefix, after, limit, self._now())

    # Monitoring

    async def report_worker(self, id: str, facts: bytes, ttl_ms: int) -> None:
        await self._write(monitoring.report_worker, id, facts, ttl_ms, self._now())

    async def remove_worker(self, id: str) -> None:
        await self._write(monitoring.remove_worker, id)

    async def workers(self) -> list[WorkerRow]:
        return await self._read(monitoring.workers, self._now())

    async def add_counts(self, counts: Sequence[MinuteCounts]) -> None:
        if counts:
            await self._write(monitoring.add_counts, counts)

    async def rates(self, queue: str | None, since: int) -> list[MinuteCounts]:
        return await self._read(monitoring.rates, queue, since)

    async def open_keys(self, queue: str, look: int) -> list[KeyRow]:
        return await self._read(monitoring.open_keys, queue, look)

    async def error_groups(self, queue: str) -> list[ErrorGroupRow]:
        return await self._read(monitoring.error_groups, queue)

    async def jobs_of_error_group(
        self, queue: str, group: str, *, after: str | None = None, limit: int = 50
    ) -> list[str]:
        return await self._read(monitoring.jobs_of_error_group, queue, group, after, limit)

    # Housekeeping

    async def sweep(self, what: Retention, limit: int = BATCH_SIZE) -> dict[str, int]:
        touched: set[str] = set()
        batch = SweepBatch(limit)
        await self._write(housekeeping.sweep, what, self._now(), batch, self._namespace, touched)
        await self._stream_sweeper.sweep(what, batch)
        self._signal(touched)
        return batch.removed

    async def describe(self) -> dict[str, Any]:
        own_connections = max(self._connections.idle, 1) + (not self.address.pooled)
        return await self._read(housekeeping.describe, self.address, own_connections)


async def _value(connection: Connection, _sql: Statements, statement: str, *values: Any) -> Any:
    """Return the one value of a statement."""
    return await connection.fetchval(statement, *values)


async def _row(connection: Connection, _sql: Statements, statement: str) -> Any:
    """Return the one row of a statement."""
    return await connection.fetchrow(statement)
