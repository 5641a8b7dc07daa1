"""Penstock on a server, as installed: the same application on Redis and on Postgres, by the URL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from entry import Case, Metrics, tell
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
        for begun in range(0, n, CHUNK):
            await asyncio.gather(*(self.app.start("three", {"i": i}) for i in range(begun, min(n, begun + CHUNK))))

    @asynccontextmanager
    async def working(self, concurrency: int) -> AsyncIterator[App]:
        async with self.app as app:
            worker = asyncio.create_task(app.workers.run(concurrency=concurrency))
            yield app
            worker.cancel()
            await asyncio.wait([worker])

    async def until_recorded(self) -> float:
        """Waits for the last handler to end and for everything to be stored as ended; gives that moment."""
        await self.done.wait()
        while await self._open():
            await asyncio.sleep(0.001)
        return time.monotonic()

    async def _open(self) -> bool:
        if await self.app.runs.list(status="running", limit=1):
            return True
        return bool(await self.app.jobs.list("noop", "active", limit=1))


class Producer:
    """Enqueues from outside, as a program without an event loop does: wake-ups are sent by the App's own."""

    def __init__(self, case: Case) -> None:
        self._app = SyncApp(url=case.url, handlers=[])
        self._app.open()

    def add(self, sent: Sequence[float]) -> None:
        self._app.jobs.enqueue_many("noop", [{"sent": one} for one in sent])


def work(case: Case, tally: Tally) -> None:
    async def run() -> None:
        engine = Engine(case, tally.hit)
        async with engine.working(case.level):
            last = await engine.until_recorded()
            tally.end(last)

    run_event_loop(run())


async def drain_flows(case: Case, server_us: Callable[[], float]) -> dict[str, float]:
    """Starts n flows of three steps, then works them off in a process of its own; gives when it began and ended, and
    what both sides used."""
    engine = Engine(case)
    async with engine.app:
        since = time.monotonic()
        await engine.start(case.n)
        seconds = time.monotonic() - since
    before = server_us()
    worker = case.worker()
    told = worker.hear()
    worker.end()
    return told | {"start_per_s": case.n / seconds, "server": server_us() - before}


async def work_flows(case: Case) -> None:
    engine = Engine(case)
    async with engine.working(CONCURRENCY):
        cpu = time.process_time()
        last = await engine.until_recorded()
        cpu = time.process_time() - cpu
    tell(first=engine.first, last=last, cpu=cpu)


def rates(case: Case, told: dict[str, float]) -> Metrics:
    """What was told, for each flow and each step."""
    span, steps = told["last"] - told["first"], case.n * 3
    return {
        "per_s": case.n / span,
        "steps_per_s": steps / span,
        "start_per_s": told["start_per_s"],
        "cpu_us": told["cpu"] / steps * 1e6,
        "server_us": told["server"] / steps,
    }


def on_a_loop(measure: Callable[[Case], Coroutine[Any, Any, Any] | Awaitable[Any]]) -> Callable[[Case], Any]:
    async def run(case: Case) -> Any:
        return await measure(case)

    return lambda case: run_event_loop(run(case))
