"""The contract on a table of events that is partitioned as docs/postgres.md describes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import postgres_server
from penstock import App, Context, flow
from penstock.core.clock import Clock
from penstock.stores.postgres import PostgresStore
from penstock.testing.contracts import (
    CommitContract,
    EventLogContract,
    FeedContract,
    HousekeepingContract,
    RunSearchContract,
)
from penstock.testing.contracts.samples import apply, event, unit

PAGE = Path(__file__).parents[2] / "docs" / "postgres.md"


@cache
def blocks() -> dict[str, str]:
    """Return the SQL blocks of the page by their first line."""
    found = re.findall(r"```sql\n-- (events \w+(?: \w+)?)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return dict(found)


async def partition(url: str, how: str) -> None:
    """Create a schema and partition its events as the page describes."""
    store = PostgresStore(url)
    await store.migrate()
    await store.close()
    text = blocks()[f"events {how}"] + blocks()["events moved"]
    postgres_server.server().run(text.replace("penstock.", f"{store.address.schema}."))


def parts(store: PostgresStore) -> set[str]:
    """Return the partitions that contain events."""
    schema = store.address.schema
    rows = postgres_server.server().do(f"SELECT DISTINCT tableoid::regclass::text FROM {schema}.events")
    return {row[0].rpartition(".")[2] for row in rows}


async def empty_schema(how: str) -> str:
    """Return the URL of an empty schema. It is partitioned once for all tests: that takes longer than they do."""
    url = postgres_server.server().url(f"partitioned_{how[3:]}")
    if how not in _partitioned:
        await partition(url, how)
        _partitioned.add(how)
    rows = postgres_server.server().do(
        "SELECT format('DELETE FROM %s', oid::regclass) FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition "
        "AND relnamespace = to_regnamespace($1) AND relname <> 'schema_versions'",
        f"partitioned_{how[3:]}",
    )
    postgres_server.server().run(";".join(row[0] for row in rows))
    return url


_partitioned: set[str] = set()


class TestByHash(CommitContract, FeedContract, RunSearchContract):
    async def make_store(self, clock: Clock) -> PostgresStore:
        return PostgresStore(await empty_schema("by hash"), clock=clock)


class TestByTime(EventLogContract, HousekeepingContract):
    async def make_store(self, clock: Clock) -> PostgresStore:
        return PostgresStore(await empty_schema("by time"), clock=clock)


async def test_events_are_spread_over_the_parts() -> None:
    url = postgres_server.url()
    await partition(url, "by hash")
    store = PostgresStore(url)
    await store.open()
    try:
        for n in range(40):
            await apply(store, unit(events=[event(stream=f"nq:entity:{n}")]))
        assert len(parts(store)) > 3
    finally:
        await store.close()


@flow("order")
async def order(input: Any, ctx: Context) -> Any:
    return input


@pytest.mark.parametrize("how", ["by hash", "by time"])
async def test_existing_events_are_moved_and_work_continues(how: str) -> None:
    url = postgres_server.url()
    async with App(url, handlers=[order]) as app:
        old = await app.start(order, 7)
    await partition(url, how)
    async with App(url, handlers=[order]) as app, app.workers.background():
        assert await app.result(old, timeout=20) == 7
        assert (await app.events.read(f"nq:flow:{old}"))[0].data["input"] == 7
        assert [row.id for row in await app.runs.list(where=7)] == [old]
        assert isinstance(app.store, PostgresStore)
        assert "events_other" not in parts(app.store)
