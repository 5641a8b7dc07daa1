"""Latency of appending, reading and following events, one reader or writer at a time: the same on every store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from entry import Case, Metrics, latency, send_report

from penstock import App

EVENT = {"orderId": 4711, "customer": "c-1042", "items": [{"sku": "a-1", "quantity": 2}]}


async def events(case: Case) -> Metrics:
    """Measure the 99th percentiles of append, read and subscribe, and the delivery in another process."""
    async with App(url=case.url or f"sqlite:///{case.file}", handlers=[]) as app:
        await fill(app, "nq:entity:watched", 100)
        metrics = {
            "append_p99_ms": await _p99(case.n, lambda: app.events.append("nq:entity:one", "order.seen", EVENT)),
            "read_p99_ms": await _p99(case.n, lambda: app.events.read("nq:entity:watched", limit=100)),
            "subscribe_ms": await _p99(case.n, lambda: _read_all(app, "nq:entity:watched", 100)),
        }
        return metrics | await _deliveries(app, case)


async def fill(app: App, stream: str, count: int) -> None:
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


async def work_events(case: Case) -> None:
    waits = []
    async with App(url=case.url or f"sqlite:///{case.file}", handlers=[]) as app:
        events = app.events.subscribe("nq:entity:live")
        send_report(ready=True)
        for _ in range(case.n):
            event = await anext(events)
            waits.append(time.monotonic() - event.data["sent"])
    send_report(waits=waits)
