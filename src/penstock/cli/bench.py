"""`penstock bench`."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..app import App
from ..context.context import Context
from ..handlers.decorators import flow, job, step
from .errors import UsageMistake
from .options import USUAL_PLACE, Common
from .progress import progress
from .tables import show_object

PATIENCE = "10m"


@job(queue="bench-jobs")
async def _nothing(payload: Any) -> None:
    """A job that does nothing: what is measured is everything around it."""


@flow("bench", queue="bench-flows", emits=["bench.begun"])
async def _first(input: Any, ctx: Context) -> None:
    ctx.emit("bench.begun", input)


@step(on="bench.begun", queue="bench-flows")
async def _second(input: Any) -> Any:
    return input


def bench(
    *,
    jobs: Annotated[int, Parameter(help="Jobs to work through.")] = 5000,
    flows: Annotated[int, Parameter(help="Runs of two steps to work through.")] = 1000,
    concurrency: Annotated[int, Parameter(help="Handlers at once.")] = 100,
    common: Common = USUAL_PLACE,
) -> int:
    """Measure this machine with work that does nothing, on a store of its own that is removed afterwards.

    --url and --dir are not used. `make bench` in the repository compares with other engines.
    """
    for name, value in (("--jobs", jobs), ("--flows", flows), ("--concurrency", concurrency)):
        if value < 1:
            raise UsageMistake(f"{name} {value}: give a whole number of at least 1")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        url = f"sqlite:///{Path(folder) / 'bench.db'}"
        found = asyncio.run(_bench(url, jobs, flows, concurrency))
    show_object(found if common.json else _worded(found), json=common.json)
    return 0


async def _bench(url: str, jobs: int, flows: int, concurrency: int) -> dict[str, Any]:
    async with App(url, handlers=(_nothing, _first, _second), concurrency=concurrency) as app:
        facts = await app.store.describe()
        with progress("Measuring", 3) as advance:
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
    """Seconds from the first claim to the last commit of jobs that were there before."""
    await app.jobs.enqueue_many("bench-jobs", [None] * count)
    begun = time.perf_counter()
    async with app.workers.background():
        with app.store.signals.listen("events") as listener:
            while (await app.queues.counts("bench-jobs"))["completed"] < count:
                await listener.wait(0.05)
    return time.perf_counter() - begun


async def _flows(app: App, count: int) -> float:
    begun = time.perf_counter()
    async with app.workers.background():
        runs = await asyncio.gather(*(app.start("bench", n) for n in range(count)))
        await asyncio.gather(*(app.runs.wait(run, timeout=PATIENCE) for run in runs))
    return time.perf_counter() - begun


async def _latencies(app: App, count: int) -> list[float]:
    """Milliseconds a step takes from end to end when there is nothing else to do: a run of two, halved."""
    found = []
    async with app.workers.background():
        for n in range(count):
            begun = time.perf_counter()
            await app.result(await app.start("bench", n), timeout=PATIENCE)
            found.append((time.perf_counter() - begun) * 500)
    return found


def _quantile(values: list[float], part: float) -> float:
    if len(values) < 2:
        return round(values[0], 2)
    return round(statistics.quantiles(values, n=100)[round(part * 100) - 1], 2)


def _worded(found: dict[str, Any]) -> dict[str, str]:
    return {
        "store": f"{found['store']}, every commit on disk",
        "jobs": f"{found['jobsPerSecond']:,} a second, {found['concurrency']} at once",
        "flows": f"{found['flowsPerSecond']:,} a second, two steps each",
        "step": f"{found['stepMs']['p50']:.1f} ms from end to end, 95 of 100 under {found['stepMs']['p95']:.1f} ms",
    }
