"""`penstock bench`."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ...app import App
from ...context.context import Context
from ...handlers.decorators import flow, job, step
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import show_progress
from ..parse import read_count
from ..tables import print_object

RUN_TIMEOUT_S = 600


@job(queue="bench-jobs")
async def _do_nothing(input: Any) -> None:
    """A job without work: the benchmark measures everything around it."""


@flow("bench", queue="bench-flows", emits=["bench.started"])
async def _first(input: Any, ctx: Context) -> None:
    ctx.emit("bench.started", input)


@step(on="bench.started", queue="bench-flows")
async def _second(input: Any) -> Any:
    return input


def bench(
    *,
    jobs: Annotated[int, Parameter(help="Number of jobs.")] = 5000,
    flows: Annotated[int, Parameter(help="Number of runs, of two steps each.")] = 1000,
    concurrency: Annotated[int, Parameter(help="Maximum number of concurrent handlers.")] = 100,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Benchmark this machine with empty handlers, on a temporary SQLite store.

    --url and --dir are not used. `make bench` in the repository compares with
    other engines.
    """
    for name, value in (("--jobs", jobs), ("--flows", flows), ("--concurrency", concurrency)):
        read_count(value, name)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        url = f"sqlite:///{Path(folder) / 'bench.db'}"
        found = asyncio.run(_bench(url, jobs, flows, concurrency))
    print_object(found if common.json else _format(found), json=common.json)
    return 0


async def _bench(url: str, jobs: int, flows: int, concurrency: int) -> dict[str, Any]:
    async with App(url, handlers=(_do_nothing, _first, _second), concurrency=concurrency) as app:
        facts = await app.store.describe()
        with show_progress("Measuring", 3) as advance:
            job_seconds = await _jobs(app, jobs)
            advance()
            flow_seconds = await _flows(app, flows)
            advance()
            latencies = await _latencies(app, min(flows, 100))
            advance()
    return {
        "store": facts["store"],
        "concurrency": concurrency,
        "jobsPerSecond": round(jobs / job_seconds),
        "flowsPerSecond": round(flows / flow_seconds),
        "stepMs": {"p50": _quantile(latencies, 0.50), "p95": _quantile(latencies, 0.95)},
    }


async def _jobs(app: App, count: int) -> float:
    """Return the seconds from the first claim to the last commit of jobs enqueued before."""
    await app.jobs.enqueue_many("bench-jobs", [None] * count)
    started = time.perf_counter()
    async with app.workers.background():
        with app.store.signals.listen("events") as listener:
            while (await app.queues.counts("bench-jobs"))["completed"] < count:
                await listener.wait(0.05)
    return time.perf_counter() - started


async def _flows(app: App, count: int) -> float:
    started = time.perf_counter()
    async with app.workers.background():
        runs = await asyncio.gather(*(app.start("bench", n) for n in range(count)))
        await asyncio.gather(*(app.runs.wait(run, timeout=RUN_TIMEOUT_S) for run in runs))
    return time.perf_counter() - started


async def _latencies(app: App, count: int) -> list[float]:
    """Return the latency of a step in ms when nothing else runs: half that of a run of two steps."""
    found = []
    async with app.workers.background():
        for n in range(count):
            started = time.perf_counter()
            await app.result(await app.start("bench", n), timeout=RUN_TIMEOUT_S)
            found.append((time.perf_counter() - started) * 500)
    return found


def _quantile(values: list[float], part: float) -> float:
    if len(values) < 2:
        return round(values[0], 2)
    return round(statistics.quantiles(values, n=100)[round(part * 100) - 1], 2)


def _format(found: dict[str, Any]) -> dict[str, str]:
    return {
        "store": f"{found['store']}, every commit synced to disk",
        "jobs": f"{found['jobsPerSecond']:,} per second, {found['concurrency']} at a time",
        "flows": f"{found['flowsPerSecond']:,} per second, two steps each",
        "step": f"{found['stepMs']['p50']:.1f} ms end to end (p95 {found['stepMs']['p95']:.1f} ms)",
    }
