"""Ends of attempts that are committed beside each other on Postgres: many at once, of many runs and of the same ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock import Context, flow, job, step
from penstock.stores.postgres import PostgresStore
from penstock.testing.history import check, read_history

RUNS, PARTS, JOBS = 24, 6, 200


@flow("parcel", emits=["part"])
async def split(input: Any, ctx: Context) -> None:
    for n in range(PARTS):
        await ctx.emit("part", {"n": n})


@step(flow="parcel", on="part", mode="each", emits=["packed"])
async def pack(input: Any, ctx: Context) -> None:
    await asyncio.sleep(0)
    await ctx.emit("packed", input)


ran: Counter[int] = Counter()


@job(queue="plain")
async def count(input: Any) -> None:
    ran[input["n"]] += 1


@pytest.fixture
def under_way(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often so many commits were under way."""
    seen: Counter[int] = Counter()
    now = 0
    real = PostgresStore._run_commit

    async def run_commit(self: PostgresStore, *given: Any) -> Any:
        nonlocal now
        now += 1
        seen[now] += 1
        try:
            return await real(self, *given)
        finally:
            now -= 1

    monkeypatch.setattr(PostgresStore, "_run_commit", run_commit)
    return seen


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_concurrent_commits_keep_every_run_and_stream_complete(app: Any, under_way: Counter[int]) -> None:
    ran.clear()
    async with app(split, pack, count) as app:
        runs = await asyncio.gather(*(app.start("parcel", {}) for _ in range(RUNS)))
        jobs = await app.jobs.enqueue_many("plain", [{"n": n} for n in range(JOBS)])
        assert set(under_way) == {1}, "commands are in order, so there is one at a time"
        async with app.workers.background(concurrency=60):
            assert {await app.wait_for_end(run) for run in runs} == {"completed"}
            for id in jobs:
                await app.jobs.result(id, timeout=20)
        assert under_way[2] > 0, "two ends were never under way at once: what is this test for?"
        assert set(under_way) <= {1, 2}
        assert check(await read_history(app.store)) == []
        for run in runs:
            assert len(await app.events_of(run, "packed")) == PARTS
        told = await app.job_events("plain")
        assert [event.id.partition("-")[2] for event in told] == [str(n) for n in range(1, len(told) + 1)]
    assert ran == Counter(range(JOBS))
