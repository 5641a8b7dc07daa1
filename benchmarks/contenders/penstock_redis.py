"""Penstock on Redis: jobs, flows, server CPU per step, and the latency of reading events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from entry import Case, Metrics, latency, main, send_report
from penstock_engine import Producer, about, drain_flows, rates, run_on_loop, work, work_flows
from penstock_ordered import ordered
from penstock_sweep import sweep
from redis_info import bytes_used, connect, cpu_us
from tally import Tally, jobs

from penstock import App

WATCHED = 1000
EVENT = {"orderId": 4711, "customer": "c-1042", "items": [{"sku": "a-1", "quantity": 2}]}


async def flows3(case: Case) -> Metrics:
    report = await drain_flows(case, lambda: cpu_us(case.url))
    return rates(case, report)


def jobs_and_server(case: Case) -> Metrics:
    """Measure plain jobs, with the CPU time of the server for adding, claiming and finishing."""
    before = cpu_us(case.url)
    return jobs(case, Producer) | {"server_us": (cpu_us(case.url) - before) / case.n}


# Latency of reading events


async def spec(case: Case) -> Metrics:
    async with App(url=case.url, handlers=[]) as app:
        await _fill(app, "nq:entity:watched", 100)
        metrics = {
            "append_p99_ms": await _p99(case.n, lambda: app.events.append("nq:entity:one", "order.seen", EVENT)),
            "read_p99_ms": await _p99(case.n, lambda: app.events.read("nq:entity:watched", limit=100)),
            "subscribe_ms": await _p99(case.n, lambda: _read_all(app, "nq:entity:watched", 100)),
        }
        metrics |= await _deliveries(app, case)
    return metrics | await _watching(case) | await _size(case)


async def _fill(app: App, stream: str, count: int) -> None:
    await asyncio.gather(*(app.events.append(stream, "order.seen", EVENT) for _ in range(count)))


async def _p99(n: int, call: Callable[[], Awaitable[Any]]) -> float:
    seconds = []
    for _ in range(n):
        since = time.monotonic()
        await call()
        seconds.append(time.monotonic() - since)
    return latency(seconds)["p99_ms"]


async def _read_all(app: App, stream: str, count: int) -> None:
    """Subscribe from the first event and wait for the stored events."""
    events = app.events.subscribe(stream)
    for _ in range(count):
        await anext(events)
    await events.aclose()  # type: ignore[attr-defined]


async def _deliveries(app: App, case: Case) -> Metrics:
    """Measure the time from an append to its delivery in another process."""
    worker = case.worker()
    worker.read_report()
    for _ in range(case.n):
        await asyncio.sleep(0.01)
        await app.events.append("nq:entity:live", "order.seen", {"sent": time.monotonic()})
    waits = worker.read_report()["waits"]
    worker.end()
    found = latency(waits)
    return {"deliver_p50_ms": found["p50_ms"], "deliver_p99_ms": found["p99_ms"]}


async def work_spec(case: Case) -> None:
    waits = []
    async with App(url=case.url, handlers=[]) as app:
        events = app.events.subscribe("nq:entity:live")
        send_report(ready=True)
        for _ in range(case.n):
            event = await anext(events)
            waits.append(time.monotonic() - event.data["sent"])
    send_report(waits=waits)


async def _watching(case: Case) -> Metrics:
    """Measure the memory of a process that follows 1,000 streams with 10 events each."""
    async with App(url=case.url, handlers=[]) as app:
        names = [f"nq:entity:w{i}" for i in range(WATCHED)]
        await asyncio.gather(*(_fill(app, name, 10) for name in names))
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
            await _fill(app, f"nq:entity:size{i}", 100)
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
    {"jobs": work_jobs, "jobs_serial": work_jobs, "flows3": run_on_loop(work_flows), "spec": run_on_loop(work_spec)},
)
