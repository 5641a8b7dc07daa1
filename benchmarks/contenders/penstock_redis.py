"""Penstock on Redis: jobs, flows, server CPU per step, and the latency of reading events."""

from __future__ import annotations

import asyncio

from entry import Case, Metrics, main
from penstock_engine import Producer, about, drain_flows, rates, run_on_loop, work, work_flows
from penstock_events import events, fill, work_events
from penstock_ordered import ordered
from penstock_sweep import sweep
from redis_info import bytes_used, connect, cpu_us
from tally import Tally, jobs

from penstock import App

WATCHED = 1000


async def flows3(case: Case) -> Metrics:
    report = await drain_flows(case, lambda: cpu_us(case.url))
    return rates(case, report)


def jobs_and_server(case: Case) -> Metrics:
    """Measure plain jobs, with the CPU time of the server for adding, claiming and finishing."""
    before = cpu_us(case.url)
    return jobs(case, Producer) | {"server_us": (cpu_us(case.url) - before) / case.n}


# Latency of reading events


async def spec(case: Case) -> Metrics:
    return await events(case) | await _watching(case) | await _size(case)


async def _watching(case: Case) -> Metrics:
    """Measure the memory of a process that follows 1,000 streams with 10 events each."""
    async with App(url=case.url, handlers=[]) as app:
        names = [f"nq:entity:w{i}" for i in range(WATCHED)]
        await asyncio.gather(*(fill(app, name, 10) for name in names))
        received = asyncio.Semaphore(0)
        before = _resident()

        async def follow(name: str) -> None:
            async for _ in app.events.subscribe(name):
                received.release()

        tasks = [asyncio.create_task(follow(name)) for name in names]
        for _ in range(WATCHED * 10):
            await received.acquire()
        used = _resident() - before
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return {"watch_mb": used / 1e6, "process_mb": (before + used) / 1e6}


def _resident() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


async def _size(case: Case) -> Metrics:
    """Measure the memory of the server per event, in streams of 100."""
    async with App(url=case.url, handlers=[]) as app:
        before = bytes_used(case.url)
        for i in range(20):
            await fill(app, f"nq:entity:size{i}", 100)
        used = bytes_used(case.url) - before
        body = _body(case.url)
    return {"event_bytes": used / 2000, "body_bytes": body}


def _body(url: str) -> int:
    ((_, fields),) = connect(url).xrange("nq:entity:size0", count=1)
    return sum(map(len, fields.values()))


def work_jobs(case: Case) -> None:
    work(case, Tally(case, watched=False))


main(
    about,
    {
        "jobs": jobs_and_server,
        "jobs_serial": jobs_and_server,
        "flows3": run_on_loop(flows3),
        "spec": run_on_loop(spec),
        "sweep": run_on_loop(sweep),
        "ordered": run_on_loop(ordered),
    },
    {"jobs": work_jobs, "jobs_serial": work_jobs, "flows3": run_on_loop(work_flows), "spec": run_on_loop(work_events)},
)
