"""The Postgres store: one function call a commit, on a few connections of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ...core.clock import Clock, SystemClock
from ...core.events import Event
from ...core.payload import pack
from ...ports.bridge import WriteUnits
from ...ports.store import (
    ChildRow,
    DatabaseIdentity,
    DueSchedules,
    FeedItem,
    JobRow,
    QueueRow,
    Retention,
    RunRow,
    ScheduleRow,
    StateRow,
    StoreProfile,
    WaitRow,
)
from ...ports.unit import Claim, ClaimBatch, ClaimRequest, CommitReply, JobState, Receipt, Unit
from ..run_search import search
from ..signals import TopicSignals
from ..tail import follow
from . import children, events, housekeeping, queues, runs, schedules, state, waits
from .address import read_address
from .children import concern, transact_families
from .commit import finish, transact
from .connection import Connection, Connections
from .keeper import Keeper
from .keeping import apart
from .migrate import migrate, prepare
from .pending import pending
from .plain import plain
from .statements import Statements
from .turns import Turns, only_ends
from .wakeups import Wakeups

T = TypeVar("T")
Transacts = Callable[
    [Connection, Statements, int | None, Sequence[Unit], ClaimRequest | None, set[str]], Awaitable[CommitReply]
]


class PostgresStore:
    """Runs, jobs, events and state in one schema of a Postgres database. Its clock is the server's, unless a test has
    another one."""

    # Two finishes in flight: while one is written, handlers run. The prefetch is large because a call costs much and
    # one more job in it costs little.
    profile = StoreProfile(is_remote=True, max_unordered_finishes=2, prefetch=200)
    rewind_epoch = 0

    def __init__(self, url: str, *, clock: Clock | None = None, namespace: str = "nq") -> None:
        self.address = read_address(url)
        self.signals = TopicSignals()
        self._clock = None if clock is None or isinstance(clock, SystemClock) else clock
        self._namespace = namespace
        self._sql = Statements(self.address.schema)
        self._connections = Connections(self.address)
        self._keeper = Keeper(self.address, self._sql, self._make_room)
        self._wakeups = Wakeups(self.address, self._sql, self.signals)
        self._turns = Turns()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._home: DatabaseIdentity | None = None

    async def open(self) -> None:
        await self._connections.run(lambda c: prepare(c, self._sql, self.address))
        self._loop = asyncio.get_running_loop()
        self._keeper.start()
        self._wakeups.start()

    async def migrate(self) -> list[int]:
        """Creates or updates the schema, whether or not it is open; gives the numbers of what was applied."""
        return await self._connections.run(lambda c: migrate(c, self._sql, self.address))

    async def close(self) -> None:
        await self._wakeups.close()
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self._connections.close()
        await asyncio.to_thread(self._keeper.close)

    def _make_room(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, and with it the connections
            self._loop.call_soon_threadsafe(self._connections.make_room)

    def _now(self) -> int | None:
        """What a test's clock says; None lets the server's speak."""
        return None if self._clock is None else self._clock.now_ms()

    async def _read(self, read: Callable[..., Awaitable[T]], *values: Any) -> T:
        return await self._connections.run(lambda c: read(c, self._sql, *values))

    async def _write(self, write: Callable[..., Coroutine[Any, Any, T]], *values: Any) -> T:
        return await self._to_the_end(self._connections.run(lambda c: write(c, self._sql, *values)))

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Goes on with a write whether or not its caller still waits: what it committed has to be told of."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # its caller has it, or has gone away

    def _fire(self, topics: set[str]) -> None:
        self.signals.fire(topics)
        self._wakeups.tell(topics)

    async def together(self, work: Callable[[Connection, WriteUnits], Awaitable[T]]) -> T:
        """One transaction of what `work` does with the connection and of the units it writes. After a collision with
        another it is called again."""
        return await self._to_the_end(self._together(work))

    async def _together(self, work: Callable[[Connection, WriteUnits], Awaitable[T]]) -> T:
        touched: set[str] = set()

        async def whole(connection: Connection) -> T:
            touched.clear()

            async def write(units: Sequence[Unit]) -> list[Receipt]:
                return (await transact(connection, self._sql, self._now(), units, None, touched)).receipts

            async with connection.transaction():
                return await work(connection, write)

        done = await self._connections.run(whole)
        self._fire(touched)
        return done

    # Commits

    async def commit(self, units: Sequence[Unit], ask: ClaimRequest | None = None) -> CommitReply:
        return await self._to_the_end(self._commit(units, ask))

    async def _commit(self, units: Sequence[Unit], ask: ClaimRequest | None) -> CommitReply:
        # In the order they were asked for: a claim that follows a commit sees what that has freed, and what was handed
        # in first is there first. Attempts that end at the same time have no order to keep.
        async with self._turns.beside() if only_ends(units) else self._turns.alone():
            if plain(units, ask):
                return await self._transact(finish, units, ask)
            *before, last = apart(units)
            receipts = [r for part in before for r in (await self._transact(_way(part), part, None)).receipts]
            reply = await self._transact(_way(last), last, ask)
        return CommitReply([*receipts, *reply.receipts], reply.claimed) if receipts else reply

    async def _transact(self, write: Transacts, units: Sequence[Unit], ask: ClaimRequest | None) -> CommitReply:
        touched: set[str] = set()

        async def work(connection: Connection) -> CommitReply:
            touched.clear()  # after a collision the same work is done again
            return await write(connection, self._sql, self._now(), units, ask, touched)

        reply = await self._connections.run(work)
        self._fire(touched)
        return reply

    async def database_identity(self, *, fresh: bool = False) -> DatabaseIdentity:
        if self._home is None or fresh:
            database, since, _ = await self._read(_row, self._sql.identity_query)
            self._home = DatabaseIdentity(database, since)
        return self._home

    @property
    def identity_query(self) -> str:
        return self._sql.identity_query

    def enlist(self, units: Sequence[Unit]) -> list[tuple[str, tuple[str, ...]]]:
        now = self._now()
        return [(self._sql.pend, (pending(unit, self.address.schema, now),)) for unit in units]

    async def claim(self, ask: ClaimRequest) -> ClaimBatch:
        return (await self.commit((), ask)).claimed

    def renew(self, claims: Sequence[Claim], lease_ms: int) -> list[Claim]:
        return self._keeper.renew(claims, self._now(), lease_ms)

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
        return follow(self.read, self.signals, stream, after)

    async def feed(self, after: str | None, limit: int = 500) -> list[FeedItem]:
        return await self._read(events.feed, after, limit)

    async def streams(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[str]:
        return await self._read(events.names, prefix, after, limit)

    async def trim(self, stream: str, *, keep: int | None = None, before_ms: int | None = None) -> int:
        return await self._write(events.trim, stream, keep, before_ms)

    # Runs

    async def run(self, id: str) -> RunRow | None:
        return await self._read(runs.run, id)

    async def runs(
        self,
        *,
        flow: str | None = None,
        status: str | None = None,
        since: int | None = None,
        until: int | None = None,
        begun: Any = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[RunRow]:
        which = (flow, status, since, until)
        if begun is None:
            return await self._read(runs.runs, *which, before, limit)
        prefix, pattern = f"{self._namespace}:flow:", pack(begun, "what runs began with")
        given: tuple[Any, ...] = (runs.looked_up, prefix, pattern)
        if await self._read(runs.common, pattern):
            given = (runs.walked, prefix)
        return await search(lambda *page: self._read(*given, *which, *page), begun, before, limit)

    async def stuck_runs(self, limit: int = 100) -> list[str]:
        return await self._read(runs.loose, limit)

    # Queues

    async def queues(self) -> list[QueueRow]:
        return await self._read(queues.queues)

    async def jobs(self, queue: str, state: JobState, *, after: str | None = None, limit: int = 50) -> list[JobRow]:
        return await self._read(queues.jobs, queue, state, after, limit)

    async def job(self, id: str) -> JobRow | None:
        return await self._read(queues.job, id)

    async def pause(self, queue: str) -> None:
        await self._write(_value, self._sql.set_paused, queue, True)

    async def resume(self, queue: str) -> None:
        await self._write(_value, self._sql.set_paused, queue, False)
        self._fire({f"queue:{queue}"})

    async def promote(self, id: str) -> bool:
        return self._woken(await self._write(_value, self._sql.promote, id))

    async def retry(self, id: str) -> bool:
        return self._woken(await self._write(queues.retry, id))

    async def remove(self, id: str) -> bool:
        touched = await self._write(queues.remove, id, self._now())
        self._fire(touched)
        return bool(touched)

    async def drain(self, queue: str, *, delayed: bool = False) -> int:
        gone, touched = await self._write(queues.drain, queue, delayed, self._now())
        self._fire(touched)
        return gone

    async def children(self, id: str) -> list[ChildRow]:
        return await self._read(children.children, id)

    def _woken(self, queue: str | None) -> bool:
        if queue is not None:
            self._fire({f"queue:{queue}"})
        return queue is not None

    # Schedules

    async def put_schedule(self, row: ScheduleRow, was: ScheduleRow | None, unit: Unit | None = None) -> bool:
        return await self._to_the_end(self._put_schedule(row, was, unit))

    async def _put_schedule(self, row: ScheduleRow, was: ScheduleRow | None, unit: Unit | None) -> bool:
        touched: set[str] = set()

        async def work(connection: Connection) -> bool:
            touched.clear()
            async with connection.transaction():
                if not await schedules.put(connection, self._sql, row, was):
                    return False
                if unit is not None:
                    await transact(connection, self._sql, self._now(), (unit,), None, touched)
                return True

        done = await self._connections.run(work)
        self._fire({*touched, "schedules"})
        return done

    async def remove_schedule(self, id: str, was: ScheduleRow | None = None) -> bool:
        return await self._write(schedules.remove, id, was)

    async def schedule(self, id: str) -> ScheduleRow | None:
        return await self._read(schedules.one, id)

    async def schedules(self) -> list[ScheduleRow]:
        return await self._read(schedules.all)

    async def due_schedules(self, after: ScheduleRow | None = None, limit: int = 100) -> DueSchedules:
        return await self._read(schedules.due, self._now(), after, limit)

    async def next_schedule(self, after_ms: int = 0) -> int | None:
        return await self._read(_value, self._sql.next_schedule, after_ms)

    # Waits

    async def wait_row(self, id: str) -> WaitRow | None:
        return await self._read(waits.one, id)

    async def memos(self, scope: str) -> dict[str, bytes]:
        return await self._read(waits.memos, scope)

    async def waits(
        self, *, run: str | None = None, kind: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[WaitRow]:
        return await self._read(waits.open_ones, run, kind, after, limit)

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
        return await self._read(state.get, key, self._now())

    async def states(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[StateRow]:
        return await self._read(state.list_, prefix, after, limit, self._now())

    # Housekeeping

    async def sweep(self, what: Retention, limit: int = 500) -> dict[str, int]:
        touched: set[str] = set()
        gone = await self._write(housekeeping.sweep, what, self._now(), limit, self._namespace, touched)
        self._fire(touched)
        return gone

    async def describe(self) -> dict[str, Any]:
        ours = max(self._connections.idle, 1) + (not self.address.pooled)
        return await self._read(housekeeping.describe, self.address, ours)


def _way(units: Sequence[Unit]) -> Transacts:
    return transact_families if concern(units) else transact


async def _value(connection: Connection, _sql: Statements, statement: str, *values: Any) -> Any:
    """The one value of one statement."""
    return await connection.fetchval(statement, *values)


async def _row(connection: Connection, _sql: Statements, statement: str) -> Any:
    """The one row of one statement."""
    return await connection.fetchrow(statement)
