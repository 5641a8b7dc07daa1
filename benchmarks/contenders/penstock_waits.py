"""Penstock's waits: what ten thousand of them cost a worker, and what a million of them cost the others in the file.

Each rate is that at which a worker with the same slots ends so many handlers, each the last one of its run, in five
parts, all of a part being there before the worker begins. What is compared:

- the lightest step: the only one of its run, no input to speak of, nothing emitted, nothing recorded but its end;
- a second step was started by what the first step of its run emitted, and the firsts were over before;
- a step with one durable call: it records what a `ctx.run` gave, as steps that do something do, and ends;
- a step that need not sleep: the handler of those that are resumed by the clock, its moment being past;
- a step resumed by the clock has gone to sleep before, and was due before the worker began: the handler is run again
  from its top, comes past its wait, and ends. It records what the lightest does and, besides, the event
  `step.resumed`, that the wait is over, and what became of it;
- one resumed by an event does the same; the time that the events take to be emitted is counted with it. Its like is a
  run that is started and worked off at the same time: there, too, each step is two writes, one from outside.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import apsw
from entry import Case, Metrics, latency

from penstock import App, Context, flow, step
from penstock.stores.sqlite import SqliteStore

CONCURRENCY = 50
CHUNK = 1000  # starts in flight
PARTS = 5  # in turns, so that a slow minute of the machine hits every kind of step
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

        @flow("noted")
        async def noted(input: Any, ctx: Context) -> None:
            await ctx.run("look", lambda: input)

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

        return [plain, noted, two, second, timed, called]

    async def start(self, flow: str, inputs: list[Any]) -> None:
        for begun in range(0, len(inputs), CHUNK):
            await asyncio.gather(*(self.app.start(flow, input) for input in inputs[begun : begun + CHUNK]))

    async def emit(self, numbers: list[int]) -> None:
        for begun in range(0, len(numbers), CHUNK):
            some = numbers[begun : begun + CHUNK]
            await asyncio.gather(*(self.app.emit("wake.up", {"n": n}) for n in some))

    def work(self, *queues: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.app.workers.run(concurrency=CONCURRENCY, queues=list(queues) or None))

    async def until(self, sql: str, count: int) -> float:
        """Waits until the file counts so many; gives that moment."""
        reader = self._reader = self._reader or apsw.Connection(self.file, flags=apsw.SQLITE_OPEN_READONLY)
        while reader.execute(sql).fetchone() != (count,):
            await asyncio.sleep(0.005)
        return time.monotonic()


# Whether any is there, not how many: it is asked on the worker's own thread, and counting would slow it down.
BUSY = "SELECT " + " OR ".join(f"EXISTS (SELECT 1 FROM jobs WHERE state = {state})" for state in (0, 1, 2))
FIRSTS_OPEN = f"SELECT EXISTS (SELECT 1 FROM jobs WHERE state IN (0, 2) AND queue != '{SECOND}')"
ASLEEP = "SELECT count(*) FROM waits WHERE state = 'pending' AND kind = '{}'"
NOT_IDLE = "SELECT count(*) FROM jobs WHERE state IN (0, 2)"


async def waiting(case: Case) -> Metrics:
    """One worker process for all of it. All are asleep before any is woken; then some of each kind take their turns."""
    sleepers, parts = Sleepers(case), _Parts(case.n)
    async with sleepers.app:
        grown = await _fall_asleep(sleepers, case.n)
        for part in parts:
            for flow in ("plain", "noted"):
                await parts.drained(flow, sleepers, sleepers.start(flow, part))
            await parts.drained("awake", sleepers, sleepers.start("timed", [time.time() - 1] * len(part)))
            await parts.drained("timed", sleepers, _due(sleepers, len(part)))
            await parts.drained("second", sleepers, _firsts(sleepers, part))
            await parts.handed_in("started", sleepers, sleepers.start("plain", part))
            await parts.handed_in("called", sleepers, sleepers.emit(part))
    rate = parts.rates()
    compared = [(woken, of) for woken in ("timed", "called") for of in LIKES[woken]]
    return {
        "bytes_a_run": grown / (case.n - case.n // 2),
        **{f"{name}_per_s": rate[name] for name in rate},
        **{f"{woken}_{of}_percent": 100 * rate[woken] / rate[of] for woken, of in compared},
    }


LIKES = {"timed": ("plain", "second", "noted", "awake"), "called": ("plain", "started")}


class _Parts:
    """The numbers 0 to n in some parts, and how long each kind of step has taken for all of them."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._seconds: Counter[str] = Counter()

    def __iter__(self) -> Iterator[list[int]]:
        size = -(-self._n // PARTS)
        return (list(range(begin, min(begin + size, self._n))) for begin in range(0, self._n, size))

    async def drained(self, name: str, sleepers: Sleepers, made: Coroutine[Any, Any, None]) -> None:
        """What was made is worked off by a worker that begins when all of it is there."""
        await made
        since = time.monotonic()
        worker = sleepers.work()
        self._seconds[name] += await sleepers.until(BUSY, 0) - since
        await _stop(worker)

    async def handed_in(self, name: str, sleepers: Sleepers, made: Coroutine[Any, Any, None]) -> None:
        """The worker is there before, and making is part of it."""
        worker = sleepers.work()
        since = time.monotonic()
        await made
        self._seconds[name] += await sleepers.until(BUSY, 0) - since
        await _stop(worker)

    def rates(self) -> dict[str, float]:
        return {name: self._n / seconds for name, seconds in self._seconds.items()}


async def _fall_asleep(sleepers: Sleepers, n: int) -> int:
    """Lets so many runs wait for an event each; gives by how much the worker's memory grew with the second half."""
    worker = sleepers.work()
    await sleepers.start("plain", list(range(2 * n)))  # so that SQLite's cache, which is bounded, has grown before
    await sleepers.start("called", list(range(n // 2)))
    await _asleep(sleepers, "event", n // 2)
    half = _resident()
    await sleepers.start("called", list(range(n // 2, n)))
    await _asleep(sleepers, "event", n)
    grown = _resident() - half
    await _stop(worker)
    return max(grown, 0)


async def _due(sleepers: Sleepers, n: int) -> None:
    """So many runs that wait for a moment, which comes when no worker is there."""
    due = time.time() + 2 + n / 1000
    worker = sleepers.work()
    await sleepers.start("timed", [due] * n)
    await _asleep(sleepers, "time", n)
    await _stop(worker)
    await asyncio.sleep(max(due - time.time(), 0))


async def _firsts(sleepers: Sleepers, part: list[int]) -> None:
    """Second steps of so many runs."""
    worker = sleepers.work("default")
    await sleepers.start("two", part)
    await sleepers.until(FIRSTS_OPEN, 0)
    await _stop(worker)


async def _asleep(sleepers: Sleepers, kind: str, n: int) -> None:
    await sleepers.until(ASLEEP.format(kind), n)
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
