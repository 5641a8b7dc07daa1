"""Nodes per second of dags beside steps of flows, and the cost of a node in a large dag.

python -m benchmarks.dags sqlite:///FILE | redis://… | postgresql://… [--rounds N] [--large]

Rounds alternate between the shapes. `steps` is the plain step rate: runs of a flow with one step, started before the
worker. `flow chain` is a flow with as many steps as the dag `chain`. With `--large`, dags of 100 and 10,000 nodes are
compared by time and by the memory that the process holds for each node.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

from penstock import App, Context, flow, step
from penstock.dags import DagBuilder, node

RUNS, CHAIN, FAN_OUT, SIDE, STEPS = 50, 40, 1_000, 30, 2_000
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


async def compare(app: App, rounds: int) -> None:
    await app.dags.register(chain("chain", CHAIN))
    await app.dags.register(fan_out("fan-out", FAN_OUT))
    await app.dags.register(grid("grid", SIDE))
    shapes: dict[str, tuple[int, Callable[[], Awaitable[list[str]]]]] = {
        "steps": (STEPS, lambda: _starts(lambda: app.start("plain"), STEPS)),
        "flow chain": (RUNS * CHAIN, lambda: _starts(lambda: app.start("steps"), RUNS)),
        "chain": (RUNS * CHAIN, lambda: _starts(lambda: app.dags.start("chain"), RUNS)),
        "fan-out": (FAN_OUT + 2, lambda: _starts(lambda: app.dags.start("fan-out"), 1)),
        "grid": (SIDE * SIDE, lambda: _starts(lambda: app.dags.start("grid"), 1)),
    }
    found: dict[str, list[float]] = {name: [] for name in shapes}
    for n in range(rounds + 1):
        for name, (count, start) in shapes.items():
            rate = await measure(app, count, start)
            if n:  # the first round warms up
                found[name].append(rate)
    base = statistics.median(found["steps"])
    for name, rates in found.items():
        middle = statistics.median(rates)
        print(f"{name:12} {middle:8,.0f} a second, {middle / base:6.0%} of steps", flush=True)


async def compare_sizes(app: App) -> None:
    """Print the time and the memory of a node in a small and in a large dag."""
    small, large = grid("small", 10), grid("large", 100)
    for dag in (small, large):
        await app.dags.register(dag)
    rates: dict[str, list[float]] = {"small": [], "large": []}
    for n in range(4):
        for name, runs, count in (("small", 100, 100), ("large", 1, 10_000)):
            rate = await measure(
                app, runs * count, lambda name=name, runs=runs: _starts(lambda: app.dags.start(name), runs)
            )
            if n:
                rates[name].append(1e6 / rate)
    per_node = {name: statistics.median(found) for name, found in rates.items()}
    print(f"100 nodes: {per_node['small']:.0f} µs a node; 10,000 nodes: {per_node['large']:.0f} µs a node", flush=True)
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


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dags", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", action="store_true")
    args = parser.parse_args()
    async with App(args.url, handlers=[same, plain, *make_chain_flow()]) as app:
        await (compare_sizes(app) if args.large else compare(app, args.rounds))


if __name__ == "__main__":
    asyncio.run(main())
