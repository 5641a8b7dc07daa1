"""What only concurrent transactions can get wrong: order and visibility."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import postgres_server
from penstock.ports.store import FeedItem
from penstock.ports.unit import DELIVERIES, Committed, Completed, Conflict, JobState, Unit
from penstock.stores.postgres import PostgresStore
from penstock.stores.postgres.commit import commit_units
from penstock.stores.postgres.connection import connect
from penstock.testing.contracts.samples import (
    STREAM,
    apply,
    claim_one,
    claim_request,
    event,
    job,
    run,
    started,
    state_of,
    unit,
    user_event,
    wait,
)
from penstock.testing.until import until

WRITERS, EACH = 8, 25


class Slow:
    """A commit whose transaction stays open until `commit`."""

    def __init__(self, connection: Any, store: PostgresStore) -> None:
        self._connection = connection
        self._store = store
        self._transaction = connection.transaction()

    async def write(self, *units: Unit) -> None:
        await self._transaction.start()
        await commit_units(self._connection, self._store._sql, None, units, None, set())

    async def commit(self) -> None:
        await self._transaction.commit()


@pytest.fixture
async def store() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_server.url())
    await store.open()
    yield store
    await store.close()


@asynccontextmanager
async def slow(store: PostgresStore) -> AsyncIterator[Slow]:
    connection = await connect(store.address)
    try:
        yield Slow(connection, store)
    finally:
        await connection.close()


async def blocked(store: PostgresStore) -> bool:
    """Return whether a transaction waits for a lock of another one."""
    rows = await asyncio.to_thread(
        postgres_server.server().do,
        "SELECT 1 FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) WHERE NOT l.granted AND a.query LIKE $1",
        f'%FROM "{store.address.schema}".%',
    )
    return bool(rows)


def positions(items: Sequence[FeedItem]) -> list[tuple[str, int]]:
    return [(item.stream, item.event.seq) for item in items]


async def test_the_feed_waits_for_an_event_that_is_committed_late(store: PostgresStore) -> None:
    async with slow(store) as late:
        await late.write(unit(events=[event(stream="nq:flow:late")]))
        await apply(store, unit(events=[event(stream="nq:flow:early")]))
        # The later event can be read in its stream, and the feed holds it back.
        assert len(await store.read("nq:flow:early")) == 1
        assert await store.feed("") == []
        await late.commit()
    found = await store.feed("")
    assert sorted(positions(found)) == [("nq:flow:early", 1), ("nq:flow:late", 1)]
    assert await store.feed(found[-1].cursor) == []


async def test_feed_readers_during_slow_writes_miss_nothing_and_keep_the_order(
    store: PostgresStore,
) -> None:
    """Each transaction gets its number long before it locks the stream that all of them write to."""
    await apply(store, unit(events=[event()]))
    total = WRITERS * EACH * 2 + 1

    async def writer(n: int) -> None:
        async with slow(store) as one:
            for k in range(EACH):
                transaction = one._connection.transaction()
                await transaction.start()
                await one._connection.execute("SELECT pg_current_xact_id()")
                await asyncio.sleep(0 if (n + k) % 4 else 0.002)
                units = [unit(events=[event(stream=f"nq:flow:{n}", data=k), event(data=[n, k])])]
                await commit_units(one._connection, store._sql, None, units, None, set())
                await transaction.commit()

    async def reader() -> list[FeedItem]:
        found: list[FeedItem] = []
        while len(found) < total:
            found += await store.feed(found[-1].cursor if found else "", limit=7)
        return found

    reading = [asyncio.create_task(reader()) for _ in range(2)]
    await asyncio.gather(*map(writer, range(WRITERS)))
    async with asyncio.timeout(30):
        both = await asyncio.gather(*reading)
    for found in both:
        assert len(set(positions(found))) == total
        assert [item.event.seq for item in found if item.stream == STREAM] == list(range(1, WRITERS * EACH + 2))


async def test_a_wait_created_while_its_event_is_being_committed_finds_it(store: PostgresStore) -> None:
    async with slow(store) as emitting:
        await emitting.write(unit(events=[user_event("order.paid")]))
        creating = asyncio.create_task(
            apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")], events=[event()]))
        )
        await until(lambda: blocked(store))
        await emitting.commit()
        assert isinstance(await creating, Committed)
    # The event found no wait, so it has no delivery job; the wait that looks back finds the event.
    assert await store.jobs(DELIVERIES, JobState.WAITING) == []
    assert len(await store.events_by_kind("order.paid")) == 1


async def test_an_event_committed_while_a_wait_is_being_created_is_delivered(store: PostgresStore) -> None:
    async with slow(store) as creating:
        await creating.write(unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]))
        emitting = asyncio.create_task(apply(store, unit(events=[user_event("order.paid")])))
        await until(lambda: blocked(store))
        await creating.commit()
        await emitting
    one = await claim_one(store, DELIVERIES)
    (item,) = await store.events_by_kind("order.paid")
    assert item.cursor.encode() in one.payload
    assert [row.id for row in await store.waits_for_topic("order.paid", None, before=item.cursor)] == ["w"]


async def test_a_wait_finds_an_event_though_an_older_transaction_is_open(store: PostgresStore) -> None:
    """The feed waits for the oldest transaction; a wait that searches past events does not."""
    async with slow(store) as idle:
        await idle.write(unit(events=[event(stream="nq:flow:other")]))
        await apply(store, unit(events=[user_event("order.paid")]))
        assert len(await store.events_by_kind("order.paid")) == 1
        await idle.commit()


async def test_the_second_start_of_the_same_run_conflicts(store: PostgresStore) -> None:
    async with slow(store) as first:
        await first.write(unit(run=run("r", record=b'"first"')))
        second = asyncio.create_task(apply(store, unit(run=run("r", record=b'"second"'), events=[event()])))
        await until(lambda: blocked(store))
        await first.commit()
        assert await second == Conflict(1, b'"first"')
    assert await store.read(STREAM) == []


async def test_a_commit_repeated_while_the_first_is_still_in_flight(store: PostgresStore) -> None:
    """The connection broke and the server has not noticed: the second commit waits for the first and is recognised."""
    once = unit(events=[event()])
    async with slow(store) as first:
        await first.write(once)
        again = asyncio.create_task(apply(store, once))
        await until(lambda: blocked(store))
        await first.commit()
        assert await again == Committed(repeated=True)
    assert len(await store.read(STREAM)) == 1


async def test_nothing_is_started_in_a_run_after_its_last_event(store: PostgresStore) -> None:
    """A claim has already taken the job when the run is closed: it gives the job up."""
    stream = "nq:flow:r"
    jobs = [job("r.a.1", run="r", started=started(stream))]
    await apply(store, unit(run=run("r"), jobs=jobs, events=[event(stream=stream)]))
    async with slow(store) as closing:
        last = event("flow.cancelled", stream)
        await closing.write(unit(run=run("r", 1, status="cancelled", closed=True), events=[last]))
        claiming = asyncio.create_task(store.claim(claim_request()))
        await until(lambda: blocked(store))
        await closing.commit()
        assert (await claiming).claims == []
    assert [e.kind for e in await store.read(stream)] == ["order.noted", "flow.cancelled"]
    row = await store.job("r.a.1")
    assert row is not None
    assert (row.state, row.attempt) == (JobState.CANCELLED, 0)


async def test_a_commit_is_repeated_after_a_deadlock(store: PostgresStore) -> None:
    """Two transactions lock the same two jobs in opposite orders."""
    await apply(store, unit(jobs=[job("a"), job("b")]))
    connection = await connect(store.address)
    try:
        async with connection.transaction():
            await connection.execute(
                "SET LOCAL deadlock_timeout = '1min'"
            )  # the other transaction detects it and gives way
            await connection.execute(f"SELECT 1 FROM {store.address.schema}.jobs WHERE id = 'b' FOR UPDATE")
            removing = asyncio.create_task(apply(store, unit(removes=["a", "b"])))
            await until(lambda: blocked(store))
            await connection.execute(f"SELECT 1 FROM {store.address.schema}.jobs WHERE id = 'a' FOR UPDATE")
    finally:
        await connection.close()
    assert isinstance(await removing, Committed)


async def test_a_commit_with_many_order_keys_takes_few_locks() -> None:
    store = PostgresStore(postgres_server.url())
    await store.open()
    await store.commit([unit(jobs=[job(f"j{n}", order_key=f"k{n}") for n in range(300)])])
    (queue,) = await store.queues()
    assert queue.counts["waiting"] == 300
    connection = await connect(store.address)
    try:
        for keys, locks in ((3, 4), (300, 1)):
            async with connection.transaction():
                await connection.execute(
                    f"SELECT {store._sql.schema}.lock_order_keys(ARRAY(SELECT (1, 'orders', 'k' || n)::"
                    f"{store._sql.schema}.order_ref FROM generate_series(1, {keys}) AS n))"
                )
                taken = await connection.fetchval(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
                )
                assert taken == locks
    finally:
        await connection.close()
        await store.close()


async def test_two_transactions_that_add_a_job_of_one_order_key_wait_for_each_other() -> None:
    async with _two_writers() as (store, other):
        await store.commit([unit(jobs=[job("x")])])
        async with other.transaction():
            await commit_units(other, store._sql, None, [unit(jobs=[job("a", order_key="k")])], None, set())
            adding = asyncio.create_task(store.commit([unit(jobs=[job("b", order_key="k")])]))
            await until(lambda: blocked(store))
            assert not adding.done()
        await adding
        row = await store.job("b")
        assert row is not None
        assert (row.state, row.waits_for) == (JobState.HELD, "a")


async def test_a_job_that_is_added_while_the_one_before_it_ends_is_released() -> None:
    async with _two_writers() as (store, other):
        await store.commit([unit(jobs=[job("a", order_key="k")])])
        claim = await claim_one(store)
        async with other.transaction():
            end = unit(claim=claim, outcome=Completed(), order_key="k")
            await commit_units(other, store._sql, None, [end], None, set())
            adding = asyncio.create_task(store.commit([unit(jobs=[job("b", order_key="k")])]))
            await until(lambda: blocked(store))
        await adding
        assert await state_of(store, "b") == "waiting"


@asynccontextmanager
async def _two_writers() -> AsyncIterator[tuple[PostgresStore, Any]]:
    """Yield a store, and another connection to its database."""
    store = PostgresStore(postgres_server.url())
    await store.open()
    connection = await connect(store.address)
    try:
        yield store, connection
    finally:
        await connection.close()
        await store.close()
