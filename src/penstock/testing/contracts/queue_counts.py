"""Counts of jobs by state stay exact, whatever happens to the jobs."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ...ports.store import Retention, Store
from ...ports.unit import CancelJob, Cancelled, Claim, Completed, Dead, JobState, KeepJobs, NewJob, RateLimit, RetryAt
from ..clock import FakeClock
from .samples import add, apply, claim, job, run, unit
from .store_under_test import StoreUnderTest, jobs_of

QUEUES = ("a", "b")


class QueueCountsContract(StoreUnderTest):
    """Random operations: after each, a queue's counts are those of its lists of jobs."""

    @pytest.mark.parametrize("seed", range(2))
    async def test_counts_are_those_of_the_lists(self, store: Store, clock: FakeClock, seed: int) -> None:
        rng, claims, added = random.Random(seed), list[Claim](), 0
        await apply(store, unit(run=run("r")))
        for turn in range(40):
            match rng.choice(("add", "add", "end", "end", "end", "claim", "claim", "retry", "remove", "sweep", "wait")):
                case "add":
                    names = [f"{'r.' if rng.random() < 0.3 else ''}j{added + n}.1" for n in range(rng.randrange(1, 6))]
                    added += len(names)
                    await add(store, *(_new_job(name, rng.choice(QUEUES)) for name in names))
                case "claim":
                    claims += await claim(store, *QUEUES, limit=4)
                case "end" if claims:
                    await _end(store, claims.pop(rng.randrange(len(claims))), rng, clock)
                case "retry":
                    for id in await _ids(store, rng, JobState.FAILED, JobState.CANCELLED):
                        await store.retry(id)
                case "remove":
                    for id in await _ids(store, rng, *JobState):
                        await store.remove(id)
                case "sweep":
                    keep = rng.choice((None, None, 3))
                    await store.sweep(Retention(keep_jobs=keep, jobs_before=clock.now_ms() - 600_000), limit=5)
                case "wait":
                    clock.advance(rng.choice(("1s", "2m", "5m")))
            if turn % 3 == 0:
                await check_counts(store, f"seed {seed}, turn {turn}")

    @pytest.mark.parametrize("rate", [None, RateLimit(100, 60_000)])
    async def test_counts_of_cancelled_jobs(self, store: Store, rate: RateLimit | None) -> None:
        for id in ("whole", "late"):
            await apply(store, unit(run=run(id), jobs=[job(f"{id}.j{n}", "a", run=id) for n in range(3)]))
        await add(store, job("plain", "b"))
        await apply(store, unit(run=run("whole", 1, status="cancelled", closed=True, cancel_jobs=True)))
        await apply(store, unit(cancels=[CancelJob("plain", b'{"error":"no"}')]))
        await check_counts(store, "cancelled by a unit")
        await apply(store, unit(run=run("late", 1, status="completed", closed=True)))
        assert await claim(store, *QUEUES, limit=9, rate=rate) == []
        await check_counts(store, "cancelled by a claim")

    async def test_counts_after_the_clock_went_back(self, store: Store, clock: FakeClock) -> None:
        await add(store, *(job(f"j{n}", "a") for n in range(6)))
        claims = await claim(store, "a", limit=6)
        for one in claims[:3]:
            await apply(store, unit(claim=one, outcome=Completed()))
        clock.advance("1h")
        for _ in range(3):
            await store.sweep(Retention())
        clock.set_ms(clock.now_ms() - 7_200_000)
        await store.sweep(Retention())
        for one in claims[3:]:
            await apply(store, unit(claim=one, outcome=Completed()))
        await check_counts(store, "before the next sweep")
        clock.advance("1h")
        for _ in range(3):
            await store.sweep(Retention())
        await check_counts(store, "after it")


def _new_job(name: str, queue: str) -> NewJob:
    return job(name, queue, run="r") if name.startswith("r.") else job(name, queue)


async def _end(store: Store, one: Claim, rng: random.Random, clock: FakeClock) -> None:
    outcomes = (
        Completed(),
        Completed(keep=KeepJobs(count=rng.choice((0, 2)))) if one.run is None else Completed(),
        Dead(b'{"error":"no"}'),
        Cancelled("by request"),
        RetryAt(clock.now_ms(), b'{"error":"no"}'),
    )
    await apply(store, unit(claim=one, outcome=rng.choice(outcomes)))


async def _ids(store: Store, rng: random.Random, *states: JobState) -> list[str]:
    rows = await store.jobs(rng.choice(QUEUES), rng.choice(states), limit=50)
    return [row.id for row in rng.sample(rows, min(2, len(rows)))]


async def check_counts(store: Store, when: str) -> None:
    """Compare the counts of each queue with its lists."""
    for row in await store.queues():
        listed = Counter(found.state.value for found in await jobs_of(store, row.name))
        assert {state: count for state, count in row.counts.items() if count} == dict(listed), (when, row.name)
