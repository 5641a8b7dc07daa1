"""A worker during a sweep over a large backlog, and a sweep that finds nothing old: the same on every store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, NamedTuple

from entry import Case, Metrics, latency

from penstock import App, job
from penstock.app import workers
from penstock.ports.store import Retention

CONCURRENCY = 100
SMALL = 1000  # finished jobs, when the first idle sweep is timed
TURNS = 3  # with and without a sweep, one after the other
TURN = 8000  # jobs
IDLE_SAMPLES = 30
YOUNG = Retention(runs_before=1, jobs_before=1, events_before=1, keep_deliveries=100)
OLD = "1s"  # how long the App keeps jobs and events


class Turn(NamedTuple):
    """The seconds that TURN jobs took, the longest gap between commits, and the rows that a sweep removed."""

    seconds: float
    gap: float
    removed: int


class Sweeping:
    """An App that completes no-op jobs and records when its commits return."""

    def __init__(self, url: str) -> None:
        workers.SWEEP_INTERVAL_S = 1e9  # sweep only when this file does
        self.app = App(url, handlers=[self._handler()], retain_jobs=OLD, retain_events=OLD, retain_runs=OLD)
        self._left = 0
        self._done = asyncio.Event()
        self._commits: list[float] = []
        self._removed = 0

    def _handler(self) -> Callable[..., Any]:
        @job(queue="noop")
        async def noop() -> None:
            self._left -= 1
            if not self._left:
                self._done.set()

        return noop

    def record(self) -> None:
        """Record when each commit returns, and what sweeps remove, from now on."""
        commit, sweep = self.app.store.commit, self.app.store.sweep

        async def timed(*given: Any) -> Any:
            reply = await commit(*given)
            self._commits.append(time.monotonic())
            return reply

        async def counted(*given: Any) -> Any:
            removed = await sweep(*given)
            self._removed += sum(removed.values())
            return removed

        self.app.store.commit = timed  # type: ignore[method-assign]
        self.app.store.sweep = counted  # type: ignore[method-assign]

    async def complete(self, count: int, *, during_sweep: bool = False) -> Turn:
        """Complete jobs, and sweep meanwhile. Raise if the sweep ends before the jobs do: it would measure nothing."""
        await self.app.queues.pause("noop")
        for first in range(0, count, 5000):
            await self.app.jobs.enqueue_many("noop", [None] * min(5000, count - first))
        self._left = count
        self._done.clear()
        self._commits.clear()
        self._removed = 0
        sweeping = asyncio.create_task(self.app.workers._sweep_all()) if during_sweep else None
        await self.app.queues.resume("noop")
        await self._done.wait()
        seen, removed = list(self._commits), self._removed
        if sweeping is not None:
            if sweeping.done():
                raise SystemExit("the sweep ended before the jobs did: measure with a larger --n")
            sweeping.cancel()
            await asyncio.wait([sweeping])
        return Turn(seen[-1] - seen[0], max(later - sooner for sooner, later in pairwise(seen)), removed)


async def sweep(case: Case) -> Metrics:
    one = Sweeping(case.url or f"sqlite:///{case.file}")
    async with one.app as app, app.workers.background(concurrency=CONCURRENCY):
        one.record()
        await one.complete(SMALL)
        metrics = {"idle_small_ms": await _idle_ms(app)}
        await one.complete(case.n)
        metrics["idle_large_ms"] = await _idle_ms(app)
        await asyncio.sleep(1.5)  # until all of it is old
        quiet, during = [], []
        for _ in range(TURNS):
            quiet.append(await one.complete(TURN))
            during.append(await one.complete(TURN, during_sweep=True))
        metrics |= await _batches(app)
    return metrics | _compare(quiet, during)


def _compare(quiet: list[Turn], during: list[Turn]) -> Metrics:
    rates = [TURNS * TURN / sum(turn.seconds for turn in turns) for turns in (quiet, during)]
    return {
        "quiet_per_s": rates[0],
        "during_per_s": rates[1],
        "during_percent": 100 * rates[1] / rates[0],
        "during_removed_per_s": sum(turn.removed for turn in during) / sum(turn.seconds for turn in during),
        "quiet_gap_ms": 1000 * max(turn.gap for turn in quiet),
        "during_gap_ms": 1000 * max(turn.gap for turn in during),
    }


async def _idle_ms(app: App) -> float:
    while any((await app.store.sweep(YOUNG)).values()):  # the first ones look at finished jobs, on Redis
        pass
    return await _median(lambda: app.store.sweep(YOUNG))


async def _median(ask: Callable[[], Awaitable[Any]]) -> float:
    seconds = []
    for _ in range(IDLE_SAMPLES):
        since = time.monotonic()
        await ask()
        seconds.append(time.monotonic() - since)
    return latency(seconds)["p50_ms"]


async def _batches(app: App) -> Metrics:
    """Time batches of the sweep on an idle store."""
    removed, seconds = 0, []
    for _ in range(IDLE_SAMPLES):
        since = time.monotonic()
        removed += sum((await app.store.sweep(app.workers._retention())).values())
        seconds.append(time.monotonic() - since)
    return {"batch_ms": latency(seconds)["p50_ms"], "batch_p99_ms": latency(seconds)["p99_ms"],
            "removed_per_s": removed / sum(seconds)}  # fmt: skip
