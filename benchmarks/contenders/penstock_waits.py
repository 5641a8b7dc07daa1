"""Penstock's waits: the cost of 10,000 waiting runs for a worker, and of a million for the other jobs in the file.

Each rate is how many handlers per second one worker completes, with the same concurrency. Each handler is the last one
of its run. The work is split into five parts, and each part is complete before the worker starts. The kinds of steps:

- `plain`, an empty step: the only step of its run; it emits nothing and records only its completion;
- `second`, a second step: started by an event of the first step, after all first steps have finished;
- `noted`, a step with one `ctx.run`: it also records the result of that call;
- `awake`, a timed wait that is already due: the same handler as `timed`, but it need not wait;
- `timed`, a step resumed by a timer: it has waited, and was due before the worker started. The handler runs again from
  its first line, passes the wait and ends. Besides its completion it records the event `step.resumed` and the result of
  the wait;
- `called`, a step resumed by an event: the same, including the time to emit the events. It compares with `started`,
  runs that are started while the worker runs: there, too, each step needs two writes, one of them from outside.
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
PARTS = 5  # interleaved, so that a slow minute affects every kind of step
SECOND = "second"  # the queue of second steps: no worker takes them before all are added


class WaitingFlows:
    """An App with flows that end at once, and flows that first wait for a time or for an event."""

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
        for start in range(0, len(inputs), CHUNK):
            await asyncio.gather(*(self.app.start(flow, input) for input in inputs[start : start + CHUNK]))

    async def emit(self, numbers: list[int]) -> None:
        for start in range(0, len(numbers), CHUNK):
            some = numbers[start : start + CHUNK]
            await asyncio.gather(*(self.app.emit("wake.up", {"n": n}) for n in some))

    def work(self, *queues: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.app.workers.run(concurrency=CONCURRENCY, queues=list(queues) or None))

    async def until(self, sql: str, count: int) -> float:
        """Wait until the query returns `count`. Return that time."""
        reader = self._reader = self._reader or apsw.Connection(self.file, flags=apsw.SQLITE_OPEN_READONLY)
        while reader.execute(sql).fetchone() != (count,):
            await asyncio.sleep(0.005)
        return time.monotonic()


# EXISTS instead of count(*): the query runs on the thread of the worker and must not slow it down.
BUSY = "SELECT " + " OR ".join(f"EXISTS (SELECT 1 FROM jobs WHERE state = {state})" for state in (0, 1, 2))
FIRST_STEPS_UNFINISHED = f"SELECT EXISTS (SELECT 1 FROM jobs WHERE state IN (0, 2) AND queue != '{SECOND}')"
PENDING_WAITS = "SELECT count(*) FROM waits WHERE state = 'pending' AND kind = '{}'"
NOT_IDLE = "SELECT count(*) FROM jobs WHERE state IN (0, 2)"


async def waiting(case: Case) -> Metrics:
    """Measure all kinds of steps in one worker process, part by part. All runs wait before the first is resumed."""
    flows, parts = WaitingFlows(case), _Parts(case.n)
    async with flows.app:
        grown = await _measure_waiting_memory(flows, case.n)
        for part in parts:
            for flow in ("plain", "noted"):
                await parts.time_drain(flow, flows, flows.start(flow, part))
            await parts.time_drain("awake", flows, flows.start("timed", [time.time() - 1] * len(part)))
            await parts.time_drain("timed", flows, _add_due_waits(flows, len(part)))
            await parts.time_drain("second", flows, _add_second_steps(flows, part))
            await parts.time_with_producer("started", flows, flows.start("plain", part))
            await parts.time_with_producer("called", flows, flows.emit(part))
    rate = parts.rates()
    compared = [(kind, other) for kind in ("timed", "called") for other in COMPARED_WITH[kind]]
    return {
        "bytes_a_run": grown / (case.n - case.n // 2),
        **{f"{name}_per_s": rate[name] for name in rate},
        **{f"{kind}_{other}_percent": 100 * rate[kind] / rate[other] for kind, other in compared},
    }


COMPARED_WITH = {"timed": ("plain", "second", "noted", "awake"), "called": ("plain", "started")}


class _Parts:
    """The numbers 0 to n in parts, and the total time of each kind of step."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._seconds: Counter[str] = Counter()

    def __iter__(self) -> Iterator[list[int]]:
        size = -(-self._n // PARTS)
        return (list(range(start, min(start + size, self._n))) for start in range(0, self._n, size))

    async def time_drain(self, name: str, flows: WaitingFlows, add: Coroutine[Any, Any, None]) -> None:
        """Add the work, then start a worker and time until all of it is done."""
        await add
        since = time.monotonic()
        worker = flows.work()
        self._seconds[name] += await flows.until(BUSY, 0) - since
        await _stop(worker)

    async def time_with_producer(self, name: str, flows: WaitingFlows, add: Coroutine[Any, Any, None]) -> None:
        """Start a worker, then time adding the work and completing it."""
        worker = flows.work()
        since = time.monotonic()
        await add
        self._seconds[name] += await flows.until(BUSY, 0) - since
        await _stop(worker)

    def rates(self) -> dict[str, float]:
        return {name: self._n / seconds for name, seconds in self._seconds.items()}


async def _measure_waiting_memory(flows: WaitingFlows, n: int) -> int:
    """Let n runs wait for an event each. Return how much the memory of the worker grew with the second half of them."""
    worker = flows.work()
    await flows.start("plain", list(range(2 * n)))  # fills SQLite's cache, which has a maximum size
    await flows.start("called", list(range(n // 2)))
    await _wait_until_pending(flows, "event", n // 2)
    half = _resident()
    await flows.start("called", list(range(n // 2, n)))
    await _wait_until_pending(flows, "event", n)
    grown = _resident() - half
    await _stop(worker)
    return max(grown, 0)


async def _add_due_waits(flows: WaitingFlows, n: int) -> None:
    """Start n runs that wait for a time, stop the worker, and sleep until that time."""
    due = time.time() + 2 + n / 1000
    worker = flows.work()
    await flows.start("timed", [due] * n)
    await _wait_until_pending(flows, "time", n)
    await _stop(worker)
    await asyncio.sleep(max(due - time.time(), 0))


async def _add_second_steps(flows: WaitingFlows, part: list[int]) -> None:
    """Start runs and complete their first steps, so that their second steps are waiting."""
    worker = flows.work("default")
    await flows.start("two", part)
    await flows.until(FIRST_STEPS_UNFINISHED, 0)
    await _stop(worker)


async def _wait_until_pending(flows: WaitingFlows, kind: str, n: int) -> None:
    await flows.until(PENDING_WAITS.format(kind), n)
    await flows.until(NOT_IDLE, 0)


async def _stop(worker: asyncio.Task[None]) -> None:
    worker.cancel()
    await asyncio.wait([worker])


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


# A million waiting runs


class Probe(Protocol):
    claims: list[float]
    commits: list[float]

    async def step(self) -> None: ...


async def waiting_rows(case: Case, probe: Callable[[SqliteStore], Probe]) -> Metrics:
    """Measure an empty and a full file in turn, so that a busy moment affects both."""
    files = {name: str(case.inside(name).file) for name in ("empty", "waiting")}
    new = SqliteStore(files["waiting"])
    await new.open()
    await new.close()
    _fill(files["waiting"], case.n)
    stores = {name: SqliteStore(file) for name, file in files.items()}
    for store in stores.values():
        await store.open()
    probes = {name: probe(store) for name, store in stores.items()}
    for _ in range(300):
        for one in random.sample(list(probes.values()), 2):  # random order: the second one finds the disk awake
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
    """Insert runs whose only step waits: half for a year, half for an event, in the measured queue."""
    connection = apsw.Connection(file)
    statements = Path(__file__).with_name("waiting_rows.sql").read_text()
    with connection:
        connection.execute(statements, {"n": n, "due": int(time.time() * 1000) + 31_536_000_000})
    connection.close()
