"""Penstock's waits: what ten thousand of them cost a worker, and what a million of them cost the others in the file.

Each rate is that at which a worker with the same slots ends so many handlers, each the last one of its run, all of
which were there before it began. What is compared:

- an ordinary step is the lightest there is: the only step of its run, no input to speak of, nothing emitted;
- a second step was started by what the first step of its run emitted, and the firsts were over before;
- a step resumed by the clock has gone to sleep before, and was due before the worker began: the handler is run again
  from its top, comes past its wait, and ends. It records what an ordinary step does and, besides, the event
  `step.resumed`, that the wait is over, and what became of it;
- one resumed by an event does the same; the time that the events take to be emitted is counted with it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import apsw
from entry import Case, Metrics, latency

from penstock import App, Context, flow, step
from penstock.stores.sqlite import SqliteStore

CONCURRENCY = 50
CHUNK = 1000  # starts in flight
SECOND = "second"  # the queue of second steps: they are left alone until all of them are there


class Sleepers:
    """An App whose flows end at once, or wait first: for a moment, or for one event."""

    def __init__(self, case: Case) -> None:
        self.file = str(case.file)
        self.app = App(url=f"sqlite:///{self.file}", handlers=self._handlers())
        self._reader: apsw.Connection | None = None

    def _handlers(self) -> list[Callable[..., Any]]:
        @flow("plain")
        async def plain(input: Any) -> None: ...

        @flow("two", emits=["go"])
        async def two(input: Any, ctx: Context) -> None:
            ctx.emit("go")

        @step(flow="two", on="go", queue=SECOND)
        async def second(input: Any) -> None: ...

        @flow("timed")
        async def timed(input: float, ctx: Context) -> None:
            await ctx.wait.time(datetime.fromtimestamp(input, UTC))

        @flow("called")
        async def called(input: Any, ctx: Context) -> None:
            await ctx.wait.event("wake.up", match={"n": input})

        return [plain, two, second, timed, called]

    async def start(self, flow: str, inputs: list[Any]) -> None:
        for begun in range(0, len(inputs), CHUNK):
            await asyncio.gather(*(self.app.start(flow, input) for input in inputs[begun : begun + CHUNK]))

    async def emit(self, count: int) -> None:
        for begun in range(0, count, CHUNK):
            some = range(begun, min(count, begun + CHUNK))
            await asyncio.gather(*(self.app.emit("wake.up", {"n": n}) for n in some))

    async def until(self, sql: str, count: int) -> float:
        """Waits until the file counts so many; gives that moment."""
        reader = self._reader = self._reader or apsw.Connection(self.file, flags=apsw.SQLITE_OPEN_READONLY)
        while reader.execute(sql).fetchone() != (count,):
            await asyncio.sleep(0.005)
        return time.monotonic()


# Whether any is there, not how many: it is asked on the worker's own thread, and counting would slow it down.
RUNS_OPEN = "SELECT EXISTS (SELECT 1 FROM runs WHERE closed = 0)"
ASLEEP = "SELECT count(*) FROM waits WHERE state = 'open' AND kind IN ('event', 'time')"
NOT_IDLE = "SELECT count(*) FROM jobs WHERE state IN (0, 2)"
FIRSTS_OPEN = f"SELECT EXISTS (SELECT 1 FROM jobs WHERE state IN (0, 2) AND queue != '{SECOND}')"


async def waiting(case: Case) -> Metrics:
    """One worker process for all of it; ordinary steps are worked off before and after, and the two are averaged."""
    sleepers, n = Sleepers(case), case.n
    async with sleepers.app as app:
        before = await _plain(sleepers, n)
        worker = asyncio.create_task(app.run_worker(concurrency=CONCURRENCY))
        await sleepers.start("called", list(range(n // 2)))
        await _asleep(sleepers, n // 2)
        half = _resident()
        await sleepers.start("called", list(range(n // 2, n)))
        await _asleep(sleepers, n)
        grown = _resident() - half
        since = time.monotonic()
        await sleepers.emit(n)
        called = n / (await sleepers.until(RUNS_OPEN, 0) - since)
        await _stop(worker)
        timed = await _timed(sleepers, n)
        second = await _second(sleepers, n)
        after = await _plain(sleepers, n)
    plain = (before + after) / 2
    return {
        "bytes_a_run": max(grown, 0) / (n - n // 2),
        "plain_per_s": plain,
        "second_per_s": second,
        "timed_per_s": timed,
        "called_per_s": called,
        "timed_percent": 100 * timed / plain,
        "timed_second_percent": 100 * timed / second,
        "called_percent": 100 * called / plain,
        "called_writes_percent": 100 * 2 * called / plain,  # the event and the step; a delivery is for many
    }


async def _plain(sleepers: Sleepers, n: int) -> float:
    """Runs of one step, all there before the worker begins."""
    await sleepers.start("plain", list(range(n)))
    return await _drained(sleepers, n)


async def _second(sleepers: Sleepers, n: int) -> float:
    """Second steps of so many runs."""
    worker = asyncio.create_task(sleepers.app.run_worker(concurrency=CONCURRENCY, queues=["default"]))
    await sleepers.start("two", list(range(n)))
    await sleepers.until(FIRSTS_OPEN, 0)
    await _stop(worker)
    return await _drained(sleepers, n)


async def _timed(sleepers: Sleepers, n: int) -> float:
    """The same number, all due at a moment at which no worker was there."""
    due = time.time() + 2 + n / 1000
    worker = asyncio.create_task(sleepers.app.run_worker(concurrency=CONCURRENCY))
    await sleepers.start("timed", [due] * n)
    await _asleep(sleepers, n)
    await _stop(worker)
    await asyncio.sleep(max(due - time.time(), 0))
    return await _drained(sleepers, n)


async def _drained(sleepers: Sleepers, n: int) -> float:
    since = time.monotonic()
    worker = asyncio.create_task(sleepers.app.run_worker(concurrency=CONCURRENCY))
    rate = n / (await sleepers.until(RUNS_OPEN, 0) - since)
    await _stop(worker)
    return rate


async def _asleep(sleepers: Sleepers, n: int) -> None:
    await sleepers.until(ASLEEP, n)
    await sleepers.until(NOT_IDLE, 0)


async def _stop(worker: asyncio.Task[None]) -> None:
    worker.cancel()
    await asyncio.wait([worker])


def _resident() -> int:
    """The memory this process has, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# A million rows that wait


class Probe(Protocol):
    claims: list[float]
    commits: list[float]

    async def step(self) -> None: ...


async def waiting_rows(case: Case, probe: Callable[[SqliteStore], Probe]) -> Metrics:
    """Both files are asked in turn, so that a busy moment hits them alike."""
    files = {name: str(case.inside(name).file) for name in ("empty", "waiting")}
    made = SqliteStore(files["waiting"])
    await made.open()
    await made.close()
    _fill(files["waiting"], case.n)
    stores = {name: SqliteStore(file) for name, file in files.items()}
    for store in stores.values():
        await store.open()
    probes = {name: probe(store) for name, store in stores.items()}
    for _ in range(300):
        for one in random.sample(list(probes.values()), 2):  # whoever comes second finds the disk awake
            await one.step()
    metrics: Metrics = {}
    for name, one in probes.items():
        metrics[f"claim_{name}_ms"] = latency(one.claims)["p50_ms"]
        metrics[f"commit_{name}_ms"] = latency(one.commits)["p50_ms"]
    for what in ("claim", "commit"):
        metrics[f"{what}_percent"] = 100 * metrics[f"{what}_waiting_ms"] / metrics[f"{what}_empty_ms"]
    for store in stores.values():
        await store.close()
    return metrics


def _fill(file: str, n: int) -> None:
    """Runs whose only step sleeps: half for a year, half until an event comes. In the queue that is then worked on."""
    connection = apsw.Connection(file)
    statements = Path(__file__).with_name("waiting_rows.sql").read_text()
    with connection:
        connection.execute(statements, {"n": n, "due": int(time.time() * 1000) + 31_536_000_000})
    connection.close()
