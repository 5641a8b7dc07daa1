"""Penstock on Redis or Postgres with default settings: the same application, selected by the URL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from entry import Case, Metrics, send_report
from tally import Tally

from penstock import App, Context, SyncApp, flow, job, step
from penstock.cli.session import run_event_loop

CONCURRENCY = 100  # for flows
CHUNK = 500  # starts in flight


def about() -> dict[str, str]:
    return {
        "name": "Penstock",
        "version": version("penstock"),
        "settings": "as installed with the extra uvloop, every job's and every step's events recorded, `async def` "
        f"handlers, flows at concurrency {CONCURRENCY}; until the last one is stored as finished",
    }


class Engine:
    """An App with a job and a flow of three steps."""

    def __init__(self, case: Case, hit: Callable[[float], None] = lambda _: None) -> None:
        self.n = case.n
        self.first = 0.0
        self.ended = 0
        self.done = asyncio.Event()
        self._hit = hit
        self.app = App(url=case.url, handlers=[*self._handlers()])

    def _handlers(self) -> list[Callable[..., Any]]:
        @job(queue="noop")
        async def noop(input: dict[str, float]) -> float:
            self._hit(input["sent"])
            self._end()
            return input["sent"]

        @flow("three", emits=["one.done"])
        async def one(input: dict[str, float], ctx: Context) -> None:
            self.first = self.first or time.monotonic()
            await ctx.emit("one.done", {"at": 1})

        @step(flow="three", on="one.done", emits=["two.done"])
        async def two(input: dict[str, float], ctx: Context) -> None:
            await ctx.emit("two.done", {"at": 2})

        @step(flow="three", on="two.done")
        async def three(input: dict[str, float], ctx: Context) -> None:
            self._end()

        return [noop, one, two, three]

    def _end(self) -> None:
        self.ended += 1
        if self.ended == self.n:
            self.done.set()

    async def start(self, n: int) -> None:
        for start in range(0, n, CHUNK):
            await asyncio.gather(*(self.app.start("three", {"i": i}) for i in range(start, min(n, start + CHUNK))))

    @asynccontextmanager
    async def run_worker(self, concurrency: int) -> AsyncIterator[App]:
        async with self.app as app:
            worker = asyncio.create_task(app.workers.run(concurrency=concurrency))
            yield app
            worker.cancel()
            await asyncio.wait([worker])

    async def wait_until_recorded(self) -> float:
        """Wait until the last handler has ended and everything is stored as finished. Return that time."""
        await self.done.wait()
        while await self._has_unfinished():
            await asyncio.sleep(0.001)
        return time.monotonic()

    async def _has_unfinished(self) -> bool:
        if await self.app.runs.list(status="open", limit=1):
            return True
        return bool(await self.app.jobs.list("noop", "active", limit=1))


class Producer:
    """Enqueues through SyncApp, as a program without an event loop does."""

    def __init__(self, case: Case) -> None:
        self._app = SyncApp(url=case.url, handlers=[])
        self._app.open()

    def add(self, sent: Sequence[float]) -> None:
        self._app.jobs.enqueue_many("noop", [{"sent": one} for one in sent])


def work(case: Case, tally: Tally) -> None:
    async def run() -> None:
        engine = Engine(case, tally.hit)
        async with engine.run_worker(case.level):
            last = await engine.wait_until_recorded()
            tally.end(last)

    run_event_loop(run())


async def drain_flows(case: Case, server_us: Callable[[], float]) -> dict[str, float]:
    """Start n flows of three steps, then run them in a worker process. Return when it started and ended, and the CPU
    time of the worker and of the server."""
    engine = Engine(case)
    async with engine.app:
        since = time.monotonic()
        await engine.start(case.n)
        seconds = time.monotonic() - since
    before = server_us()
    worker = case.worker()
    report = worker.read_report()
    worker.end()
    return report | {"start_per_s": case.n / seconds, "server": server_us() - before}


async def work_flows(case: Case) -> None:
    engine = Engine(case)
    async with engine.run_worker(CONCURRENCY):
        cpu = time.process_time()
        last = await engine.wait_until_recorded()
        cpu = time.process_time() - cpu
    send_report(first=engine.first, last=last, cpu=cpu)


def rates(case: Case, report: dict[str, float]) -> Metrics:
    """Return the rates and the CPU time per flow and per step."""
    span, steps = report["last"] - report["first"], case.n * 3
    return {
        "per_s": case.n / span,
        "steps_per_s": steps / span,
        "start_per_s": report["start_per_s"],
        "cpu_us": report["cpu"] / steps * 1e6,
        "server_us": report["server"] / steps,
    }


def run_on_loop(measure: Callable[[Case], Coroutine[Any, Any, Any] | Awaitable[Any]]) -> Callable[[Case], Any]:
    async def run(case: Case) -> Any:
        return await measure(case)

    return lambda case: run_event_loop(run(case))
