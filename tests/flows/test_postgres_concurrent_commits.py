"""Concurrent commits of attempts on Postgres: of many runs, and of the same runs."""

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
def in_flight(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count how often a number of commits was in flight."""
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
async def test_concurrent_commits_keep_every_run_and_stream_complete(app: Any, in_flight: Counter[int]) -> None:
    ran.clear()
    async with app(split, pack, count) as app:
        runs = await asyncio.gather(*(app.start("parcel", {}) for _ in range(RUNS)))
        jobs = await app.jobs.enqueue_many("plain", [{"n": n} for n in range(JOBS)])
        assert set(in_flight) == {1}, "commands are in order, so there is one at a time"
        async with app.workers.background(concurrency=60):
            assert {await app.wait_for_end(run) for run in runs} == {"completed"}
            for id in jobs:
                await app.jobs.result(id, timeout=20)
        assert in_flight[2] > 0, "two commits were never in flight at once: nothing was tested"
        assert set(in_flight) <= {1, 2}
        assert check(await read_history(app.store)) == []
        for run in runs:
            assert len(await app.events_of(run, "packed")) == PARTS
        events = await app.job_events("plain")
        assert [event.id.partition("-")[2] for event in events] == [str(n) for n in range(1, len(events) + 1)]
    assert ran == Counter(range(JOBS))
