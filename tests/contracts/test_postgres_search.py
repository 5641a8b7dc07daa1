"""Searching runs on Postgres reads an index, not every run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import postgres_server
from penstock.core.clock import Clock
from penstock.core.payload import pack
from penstock.stores.postgres import PostgresStore, runs
from penstock.stores.postgres.connection import connect
from penstock.testing.contracts import RunSearchContract
from penstock.testing.contracts.samples import event, run, unit

RUNS, BATCH = 4000, 500


@pytest_asyncio.fixture
async def store() -> AsyncIterator[PostgresStore]:
    """Return a store with four thousand runs of two flows, each of another customer."""
    store = PostgresStore(postgres_server.url())
    await store.open()
    try:
        for first in range(0, RUNS, BATCH):
            await store.commit([_start(n) for n in range(first, first + BATCH)])
        yield store
    finally:
        await store.close()


def _start(n: int) -> Any:
    started = event("flow.started", f"nq:flow:r{n:05}", {"input": {"customer": n, "town": "Rome"}})
    return unit(run=run(f"r{n:05}", flow="shop" if n % 2 else "mail"), events=[started])


async def _plan(store: PostgresStore, first_event: Any) -> str:
    """Return the plan of a search. Nothing was analyzed: a search must not depend on autovacuum."""
    connection = await connect(store.address)
    try:
        values = (pack(first_event), "nq:flow:", None, None, 0, 2**62, "", 200)
        rows = await connection.fetch(f"EXPLAIN {store._sql.runs_by_first_event}", *values)
    finally:
        await connection.close()
    return "\n".join(row[0] for row in rows)


async def test_a_rare_pattern_is_found_by_the_index(store: PostgresStore) -> None:
    wanted = {"data": {"input": {"customer": 1234}}}
    assert [row.id for row in await store.runs(first_event=wanted)] == ["r01234"]
    assert await store.runs(first_event=wanted, flow="shop") == []
    plan = await _plan(store, wanted)
    assert "Bitmap Index Scan on events_search" in plan, plan
    assert "Seq Scan" not in plan, plan


async def test_a_common_pattern_is_found_by_a_scan_of_the_newest_runs(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest runs match: they need not be sorted with all the others."""
    wanted = {"data": {"input": {"town": "Rome"}}}
    expected = [f"r{n:05}" for n in range(RUNS - 1, 0, -2)]
    assert [row.id for row in await store.runs(first_event=wanted, flow="shop", limit=RUNS)] == expected
    monkeypatch.setattr(runs, "MAX_INDEXED", RUNS)

    async def never(*_: Any) -> None:
        raise AssertionError("every match was fetched to be sorted")

    monkeypatch.setattr(runs, "find_by_index", never)
    assert [row.id for row in await store.runs(first_event=wanted, flow="shop", limit=300)] == expected[:300]


class TestScan(RunSearchContract):
    """The scan by time finds what the index finds."""

    @pytest.fixture(autouse=True)
    def _always(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs, "MAX_INDEXED", 0)

    async def make_store(self, clock: Clock) -> PostgresStore:
        return PostgresStore(postgres_server.prepared_url(), clock=clock)
