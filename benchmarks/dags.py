"""Nodes per second of dags beside steps of flows, and the cost of a node in a large dag.

python -m benchmarks.dags sqlite | redis | postgres [--rounds N] [--large]

Rounds alternate between the shapes; the first one warms up. `steps` is the plain step rate: runs of a flow with
one step, started before the worker. `flow chain` is a flow with as many steps as the dag `chain`. `fan-outs` and
`grids` are several runs at once. With `--large`, dags of 100 and 10,000 nodes are compared by time and by the memory
that the process holds for each node.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from penstock import App, Context, flow, step
from penstock.dags import DagBuilder, node

from .servers import open_target

RUNS, CHAIN, FAN_OUT, SIDE, STEPS = 50, 40, 1_000, 30, 2_000
FEW = 4  # runs at once of the wide shapes: one run alone waits for its own commits
SLOTS = 50


@node("same")
async def same(input: Any) -> Any:
    return 1


@flow("plain")
async def plain() -> int:
    return 1


def make_chain_flow() -> list[Callable[..., Any]]:
    """Return a flow whose steps start one after the other."""

    @flow("steps", emits=["done.s0"])
    async def first(ctx: Context) -> None:
        ctx.emit("done.s0", 1)

    steps: list[Callable[..., Any]] = [first]
    for n in range(1, CHAIN):

        def make(n: int = n) -> Callable[..., Any]:
            emits = [f"done.s{n}"] if n < CHAIN - 1 else []

            @step(name=f"s{n}", on=f"done.s{n - 1}", emits=emits, flow="steps")
            async def one(input: Any, ctx: Context) -> int:
                if emits:
                    ctx.emit(f"done.s{n}", 1)
                return 1

            return one

        steps.append(make())
    return steps


def chain(id: str, count: int) -> Any:
    dag = DagBuilder(id)
    for n in range(count):
        dag.add(f"n{n}", "same", after=f"n{n - 1}" if n else ())
    return dag.build()


def fan_out(id: str, count: int) -> Any:
    dag = DagBuilder(id)
    dag.add("first", "same")
    names = [dag.add(f"n{n}", "same", after="first") for n in range(count)]
    dag.add("last", "same", after=names)
    return dag.build()


def grid(id: str, side: int, width: int | None = None) -> Any:
    dag = DagBuilder(id)
    for x in range(width or side):
        for y in range(side):
            after = [f"n{p}-{q}" for p, q in ((x - 1, y), (x, y - 1)) if p >= 0 and q >= 0]
            dag.add(f"n{x}-{y}", "same", after=after)
    return dag.build()


async def measure(app: App, count: int, start: Callable[[], Awaitable[list[str]]]) -> float:
    """Return how many nodes or steps were done per second: all runs are started before the worker."""
    runs = await start()
    gc.collect()
    began = time.perf_counter()
    async with app.workers.background(concurrency=SLOTS):
        for run in runs:
            await app.runs.wait(run, timeout="10m")
        took = time.perf_counter() - began
    statuses = {(await app.runs.get(run)).status for run in runs[-5:]}
    assert statuses == {"completed"}, statuses
    return count / took


async def _starts(start: Callable[[], Awaitable[Any]], count: int) -> list[str]:
    found = [await start() for _ in range(count)]
    return [getattr(one, "id", one) for one in found]


async def compare_shapes(app: App, rounds: int) -> None:
    """Print the median rate of each shape, and the median, lowest and highest of its ratios to the steps."""
    await app.dags.register(chain("chain", CHAIN))
    await app.dags.register(fan_out("fan-out", FAN_OUT))
    await app.dags.register(grid("grid", SIDE))
    shapes: dict[str, tuple[int, Callable[[], Awaitable[list[str]]]]] = {
        "steps": (STEPS, lambda: _starts(lambda: app.start("plain"), STEPS)),
        "flow chain": (RUNS * CHAIN, lambda: _starts(lambda: app.start("steps"), RUNS)),
        "chain": (RUNS * CHAIN, lambda: _starts(lambda: app.dags.start("chain"), RUNS)),
        "fan-out": (FAN_OUT + 2, lambda: _starts(lambda: app.dags.start("fan-out"), 1)),
        "fan-outs": (FEW * (FAN_OUT + 2), lambda: _starts(lambda: app.dags.start("fan-out"), FEW)),
        "grid": (SIDE * SIDE, lambda: _starts(lambda: app.dags.start("grid"), 1)),
        "grids": (FEW * SIDE * SIDE, lambda: _starts(lambda: app.dags.start("grid"), FEW)),
    }
    found = []
    for _ in range(rounds + 1):
        found.append({name: await measure(app, count, start) for name, (count, start) in shapes.items()})
    del found[0]
    for name in found[0]:
        ratios = [one[name] / one["steps"] for one in found]
        print(
            f"{name:12} {statistics.median(one[name] for one in found):8,.0f} a second, "
            f"{statistics.median(ratios):6.1%} of steps ({min(ratios):.1%}–{max(ratios):.1%})",
            flush=True,
        )


async def compare_sizes(app: App, rounds: int) -> None:
    """Print the time and the memory of a node in a small and in a large dag."""
    await app.dags.register(grid("small", 10))
    await app.dags.register(grid("large", 100))
    costs: dict[str, list[float]] = {"small": [], "large": []}
    for n in range(rounds + 1):
        for name, runs, count in (("small", 100, 100), ("large", 1, 10_000)):
            rate = await measure(
                app, runs * count, lambda name=name, runs=runs: _starts(lambda: app.dags.start(name), runs)
            )
            if n:
                costs[name].append(1e6 / rate)
    ratios = [large / small for small, large in zip(costs["small"], costs["large"], strict=True)]
    per_node = {name: statistics.median(found) for name, found in costs.items()}
    print(
        f"100 nodes: {per_node['small']:.0f} µs a node; 10,000 nodes: {per_node['large']:.0f} µs a node, "
        f"{statistics.median(ratios):.2f} of it ({min(ratios):.2f}–{max(ratios):.2f})",
        flush=True,
    )
    for name, count in (("small", 100), ("large", 10_000)):
        gc.collect()
        tracemalloc.start()
        plan = await _load_plan(app, name)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        print(f"{count:,} nodes: {held / count:.0f} bytes a node in the worker", flush=True)
        del plan


async def _load_plan(app: App, name: str) -> Any:
    catalog = app._dag_engine.catalog
    catalog._plans.clear()
    return await catalog.plan(name, 1)


async def run(url: str, rounds: int, is_large: bool) -> None:
    async with App(url, handlers=[same, plain, *make_chain_flow()]) as app:
        await (compare_sizes if is_large else compare_shapes)(app, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dags", description=__doc__)
    parser.add_argument("store", choices=["sqlite", "redis", "postgres"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", action="store_true")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # Postgres does not run as root
    try:
        with open_target(args.store, folder) as target:
            url = target.reset() or f"sqlite:///{folder}/{uuid4().hex}.db"
            asyncio.run(run(url, args.rounds, args.large))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
