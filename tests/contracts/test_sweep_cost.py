"""A sweep with nothing to remove does as much in a large store as in a small one. Work is counted, not timed."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import asyncpg
import pytest
import redis

import postgres_server
import redis_server
from penstock.ports.store import Retention, Store
from penstock.ports.unit import Completed, RunWrite, StateWrite
from penstock.stores.postgres import PostgresStore
from penstock.stores.redis import RedisStore
from penstock.stores.sqlite import SqliteStore
from penstock.testing.clock import FakeClock
from penstock.testing.contracts.samples import claim, event, job, run, unit

SMALL, LARGE = 20, 400
YOUNG = Retention(runs_before=1, jobs_before=1, events_before=1, keep_deliveries=10)


async def fill(store: Store, clock: FakeClock, first: int, last: int) -> None:
    """Add finished jobs, closed runs with a step, open runs, events, state, deduplication keys and once keys."""
    for n in range(first, last):
        ids = f"closed-{n}", f"open-{n}"
        events = [event(stream="nq:queue:mail"), event(stream="nq:global"), event(stream=f"nq:flow:closed-{n}")]
        state = [StateWrite(f"s{n}", b"1", expires=clock.now_ms() + 10**9)]
        units = [unit(run=run(id), jobs=[job(f"{id}.a.1", "steps", run=id)]) for id in ids]
        plain = unit(jobs=[job(f"j{n}", "mail")], events=events, state=state, once_key=f"once-{n}")
        await store.commit([*units, plain])
        held = await claim(store, "mail", "steps", limit=3)
        await store.commit([unit(claim=one, outcome=Completed()) for one in held])
        await store.commit([unit(run=RunWrite(ids[0], 1, b"{}", "shop", "completed", closed=True))])
        clock.advance("1s")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def test_an_idle_sweep_of_sqlite_takes_as_many_steps(clock: FakeClock) -> None:
    store = SqliteStore(clock=clock)
    await store.open()
    try:
        steps = {}
        for first, last in ((0, SMALL), (SMALL, LARGE)):
            await fill(store, clock, first, last)
            await store.sweep(YOUNG)  # prepares the statements
            # The writer also looks for commits of other processes now and then, which only adds steps.
            steps[last] = min([await _count_steps(store) for _ in range(10)])
        assert steps[SMALL] == steps[LARGE] > 0
    finally:
        await store.close()


async def _count_steps(store: SqliteStore) -> int:
    """Count the instructions of SQLite's virtual machine during an idle sweep."""
    count = 0

    def step() -> bool:
        nonlocal count
        count += 1
        return False

    connection = store._writer._connection
    connection.set_progress_handler(step, 1)
    try:
        assert not any((await store.sweep(YOUNG)).values())
    finally:
        connection.set_progress_handler(None)
    return count


async def test_an_idle_sweep_of_redis_makes_as_many_calls(clock: FakeClock) -> None:
    url = redis_server.url()
    store = RedisStore(url, clock=clock)
    await store.open()
    try:
        calls = {}
        for first, last in ((0, SMALL), (SMALL, LARGE)):
            await fill(store, clock, first, last)
            while any((await store.sweep(YOUNG)).values()):  # it looks at every finished job once
                pass
            with closing(redis.Redis.from_url(url)) as client:
                client.config_resetstat()
                assert not any((await store.sweep(YOUNG)).values())
                stats: dict[str, Any] = client.info("commandstats")
            calls[last] = {name: row["calls"] for name, row in stats.items() if name != "cmdstat_config|resetstat"}
        assert calls[SMALL] == calls[LARGE]
    finally:
        await store.close()


# The statements of a sweep, the index each has to use, and values for its parameters.
PLANS = {
    "old_runs": ("runs_ended", "1, '', 1, 500"),
    "last_surplus_run": ("runs_ended", "10"),
    "old_jobs": ("jobs_finished", "'mail', 1, 1, 500"),
    "last_surplus_job": ("jobs_finished", "'mail', 10"),
    "trim": ("events_pkey", "1, 0, 1, 500"),
    "expired_states": ("states_expiring", "1, 500"),
    "expired_dedupe_keys": ("dedupe_keys_expiring", "1, 500"),
    "expired_rates": ("rates_by_end", "1, 500"),
    "old_once_keys": ("once_keys_by_time", "1, 500"),
    "old_applied_units": ("applied_units_by_time", "1, 500"),
}


async def test_a_sweep_of_postgres_reads_indexes(clock: FakeClock) -> None:
    store = PostgresStore(postgres_server.url(), clock=clock)
    await store.open()
    try:
        await fill(store, clock, 0, SMALL)
        for name, (index, values) in PLANS.items():
            plan = await _plan(getattr(store._sql, name), values)
            assert index in plan, (name, plan)
            assert "Seq Scan" not in plan, (name, plan)
            assert "Sort  (" not in plan, (name, plan)
    finally:
        await store.close()


async def _plan(statement: str, values: str) -> str:
    """Return the plan for any values. A small table would be read whole and sorted, so that is forbidden here."""
    connection = await asyncpg.connect(postgres_server.server().url().partition("?")[0])
    try:
        await connection.execute(
            "SET enable_seqscan = off; SET enable_sort = off; SET plan_cache_mode = force_generic_plan"
        )
        await connection.execute(f"PREPARE it AS {statement}")
        return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE it ({values})"))
    finally:
        await connection.close()
