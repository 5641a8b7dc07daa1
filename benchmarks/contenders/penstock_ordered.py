"""No-op jobs with order keys beside the same jobs without, in turns on one store: the same on every store."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from entry import Case, Metrics

from penstock import App, job

CONCURRENCY = 100
KEYS = 100
TURNS = 3  # with and without keys, one after the other


class Turn(NamedTuple):
    """The seconds to enqueue the jobs of a turn, and to complete them."""

    enqueue: float
    drain: float


class OrderedJobs:
    """An App whose jobs have an order key or none."""

    def __init__(self, url: str) -> None:
        self._left = 0
        self._done = asyncio.Event()

        @job(queue="ordered", order_key="key")
        async def ordered(input: Any) -> None:
            self._end()

        @job(queue="plain")
        async def plain(input: Any) -> None:
            self._end()

        self.app = App(url, handlers=[ordered, plain])

    def _end(self) -> None:
        self._left -= 1
        if not self._left:
            self._done.set()

    async def complete(self, queue: str, n: int) -> Turn:
        """Enqueue n jobs and let a worker complete them."""
        self._left = n
        self._done.clear()
        since = time.monotonic()
        await self.app.jobs.enqueue_many(queue, [{"key": f"k{i % KEYS}"} for i in range(n)])
        enqueued = time.monotonic()
        worker = asyncio.create_task(self.app.workers.run(concurrency=CONCURRENCY))
        await self._done.wait()
        while (await self.app.queues.counts(queue))["active"]:
            await asyncio.sleep(0.001)
        ended = time.monotonic()
        self.app.workers.stop()
        await worker
        return Turn(enqueued - since, ended - enqueued)


async def ordered(case: Case) -> Metrics:
    """Return both rates, and those with keys in percent of those without."""
    jobs = OrderedJobs(case.url or f"sqlite:///{case.file}")
    turns: dict[str, list[Turn]] = {"plain": [], "ordered": []}
    async with jobs.app:
        for queue in turns:  # the first turn opens connections and loads scripts
            await jobs.complete(queue, 200)
        for _ in range(TURNS):
            for queue, done in turns.items():
                done.append(await jobs.complete(queue, case.n))
    total = TURNS * case.n
    rates = {
        f"{queue}_{part}": total / sum(getattr(turn, part) for turn in done)
        for queue, done in turns.items()
        for part in ("enqueue", "drain")
    }
    return {
        **{f"{name}_per_s": rate for name, rate in rates.items()},
        "enqueue_percent": 100 * rates["ordered_enqueue"] / rates["plain_enqueue"],
        "drain_percent": 100 * rates["ordered_drain"] / rates["plain_drain"],
    }
