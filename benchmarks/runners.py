"""Measure the runners: `python -m benchmarks.runners [FIGURE …]`, all of them by default.

    call     one job at a time: enqueue to result, on the event loop, a thread, a child process and Node, in
             alternating rounds                           goal: process <= 1.5 ms, Node <= 2 ms beyond the event loop
    node     steps per second of flows of three TypeScript steps that do nothing, 50 flows at once, through one
             Node process                                                                     goal: >= 3,000 steps/s
    cores    jobs that compute, with two children and with one, beside a ProcessPoolExecutor that calls the same
             function as often: what the cores themselves give                                     goal: >= 1.7 times
    stop     time from the cancellation of a run to the `finally` of its handler                          goal: < 1 s
    start    a new interpreter, a fork of one that has imported Penstock, and a sub-interpreter, until Penstock is
             imported: time, CPU time and memory of its own

Penstock runs on SQLite in memory. Run it on a quiet machine: the load average is printed before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from multiprocessing import get_context
from pathlib import Path

from benchmarks.runner_workers.jobs import compute
from penstock import App

RUNNERS = ("loop", "thread", "process", "node")
FILES = Path(__file__).with_name("runner_workers")
START = Path(__file__).with_name("runner_start.py")


@asynccontextmanager
async def worker(**options: int) -> AsyncIterator[tuple[App, Path]]:
    """Run an App with all handlers, and its worker, in an empty folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = shutil.copytree(FILES, Path(name) / "workers")
        concurrency = options.pop("concurrency", 10)
        async with App(":memory:", str(folder), **options) as app:  # type: ignore[arg-type]
            assert not app.registry.problems, app.registry.problems
            async with app.workers.background(concurrency=concurrency):
                yield app, Path(name)


async def run_job(app: App, queue: str, input: object = None) -> float:
    """Return the milliseconds from the call of `enqueue` to the result."""
    began = time.perf_counter()
    await app.jobs.result(await app.jobs.enqueue(queue, input))
    return (time.perf_counter() - began) * 1000


async def measure_call(rounds: int = 30, jobs: int = 20) -> None:
    taken: dict[str, list[float]] = {runner: [] for runner in RUNNERS}
    async with worker(process_pool=1) as (app, _):
        for runner in RUNNERS:
            for _round in range(50):
                await run_job(app, runner)
        order = list(RUNNERS)
        for _round in range(rounds):
            random.shuffle(order)
            for runner in order:
                taken[runner] += [await run_job(app, runner) for _ in range(jobs)]
    base = statistics.median(taken["loop"])
    for runner, found in taken.items():
        median, late = statistics.median(found), sorted(found)[int(len(found) * 0.99)]
        print(f"  {runner:8} median {median:6.2f} ms   beyond the loop {median - base:5.2f} ms   p99 {late:6.2f} ms")


async def measure_node(flows: int = 2000, at_once: int = 50, rounds: int = 5) -> None:
    async with worker(concurrency=at_once) as (app, _):
        for round in range(rounds + 1):
            count = flows if round else 100
            began = time.perf_counter()
            slots = asyncio.Semaphore(at_once)

            async def one(slots: asyncio.Semaphore = slots) -> None:
                async with slots:
                    await app.result(await app.start("three"))

            await asyncio.gather(*(one() for _ in range(count)))
            if round:
                print(f"  {3 * count / (time.perf_counter() - began):7,.0f} steps/s, {at_once} flows at once")


def time_plain(children: int, jobs: int, work: int) -> float:
    """Return how long warm processes of the standard library take for the same work."""
    with ProcessPoolExecutor(children, get_context("spawn")) as pool:
        list(pool.map(compute, [300_000] * 4 * children))
        began = time.perf_counter()
        list(pool.map(compute, [work] * jobs))
        return time.perf_counter() - began


async def measure_cores(rounds: int = 5, jobs: int = 8, work: int = 6_000_000) -> None:
    async def run(children: int) -> float:
        async with worker(process_pool=children) as (app, _):
            await asyncio.gather(*(run_job(app, "compute", 300_000) for _ in range(4 * children)))
            began = time.perf_counter()
            await asyncio.gather(*(run_job(app, "compute", work) for _ in range(jobs)))
            return time.perf_counter() - began

    ratios, plain = [], []
    for _round in range(rounds):
        one, two = await run(1), await run(2)
        ratios.append(one / two)
        plain.append(time_plain(1, jobs, work) / time_plain(2, jobs, work))
        print(f"  one child {one:5.2f} s   two {two:5.2f} s   {ratios[-1]:.2f} times   plain {plain[-1]:.2f} times")
    print(f"  median {statistics.median(ratios):.2f} times   plain {statistics.median(plain):.2f} times")


async def measure_stop(rounds: int = 10) -> None:
    async with worker() as (app, folder):
        for runner in RUNNERS:
            await run_job(app, runner)
            taken = []
            for round in range(rounds):
                file = folder / f"{runner}-{round}"
                job = await app.jobs.enqueue(f"stop-{runner}", str(file))
                while (await app.jobs.get(job)).state != "active":
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.1)
                cancelled = time.time()
                await app.jobs.cancel(job)
                while not file.exists() or not file.read_text():
                    await asyncio.sleep(0.005)
                taken.append((float(file.read_text()) - cancelled) * 1000)
            print(f"  {runner:8} median {statistics.median(taken):6.1f} ms   longest {max(taken):6.1f} ms")


async def measure_start(rounds: int = 7) -> None:
    kinds = ("spawn", "fork", "sub-interpreter")
    found: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    for _round in range(rounds):
        for kind in kinds:
            done = subprocess.run([sys.executable, str(START), kind], capture_output=True, text=True)
            if done.returncode:
                found.pop(kind, None)
                print(f"  {kind}: {done.stderr.strip().splitlines()[-1]}")
                continue
            found[kind].append(json.loads(done.stdout))
    for kind, rows in found.items():
        cpu, memory = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"  {kind:16} CPU {cpu:6.1f} ms   memory of its own {memory:5.1f} MB")


FIGURES: dict[str, Callable[[], Awaitable[None]]] = {
    "call": measure_call,
    "node": measure_node,
    "cores": measure_cores,
    "stop": measure_stop,
    "start": measure_start,
}


async def main(names: list[str]) -> None:
    print(f"load {os.getloadavg()[0]:.1f} before, Python {sys.version.split()[0]}")
    for name in names:
        print(name, flush=True)
        await FIGURES[name]()
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the runners.")
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=", ".join(FIGURES))
    chosen = parser.parse_args().figures
    unknown = [name for name in chosen if name not in FIGURES]
    if unknown:
        parser.error(f"unknown figure {unknown[0]}; choose from {', '.join(FIGURES)}")
    asyncio.run(main(chosen or list(FIGURES)))
