"""Penstock on SQLite with default settings, except for the concurrency of the worker."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import apsw
from entry import Case, Metrics, idle_cpu, latency, main, pauses, send_report, throughput
from penstock_events import events, work_events
from penstock_ordered import ordered
from penstock_sweep import sweep
from penstock_waits import waiting, waiting_rows

from penstock import App, Context, flow, job, step
from penstock.core.events import Streams
from penstock.ports.unit import ClaimRequest, Completed, NewEvent, NewJob, QueueDemand, RunWrite, Unit
from penstock.stores.sqlite import SqliteStore

CONCURRENCY = 200  # faster than 50 and 100; peers also use their fastest setting
CHUNK = 1000  # starts in flight
# Waiting, delayed and active jobs: each has its own partial index.
UNFINISHED = """
SELECT (SELECT count(*) FROM jobs WHERE state = 0) + (SELECT count(*) FROM jobs WHERE state = 1)
     + (SELECT count(*) FROM jobs WHERE state = 2) + (SELECT count(*) FROM runs WHERE closed = 0)
"""


def about() -> dict[str, str]:
    return {
        "name": "Penstock",
        "version": version("penstock"),
        "sqlite": apsw.sqlite_lib_version(),
        "settings": f"WAL and synchronous=FULL as installed, `async def` handlers, concurrency {CONCURRENCY} "
        "(installed: 10), jobs enqueued with `enqueue_many`, runs started concurrently",
    }


class Engine:
    """An App with a job and a flow that record when they started and ended."""

    def __init__(self, case: Case) -> None:
        self.n = case.n
        self.starts: list[float] = []
        self.waits: list[float] = []
        self.gaps: list[float] = []
        self.ended = 0
        self.done = asyncio.Event()
        self.file = str(case.file)
        self.app = App(url=f"sqlite:///{self.file}", handlers=[*self._handlers()])

    def _handlers(self) -> list[Callable[..., Any]]:
        @job(queue="noop")
        async def noop(input: dict[str, float]) -> float:
            now = self._start()
            self.waits.append(now - input["sent"])
            self._end()
            return input["sent"]

        @flow("three", emits=["one.done"])
        async def one(input: dict[str, float], ctx: Context) -> None:
            self._start()
            await ctx.emit("one.done", {"at": time.monotonic()})

        @step(flow="three", on="one.done", emits=["two.done"])
        async def two(input: dict[str, float], ctx: Context) -> None:
            self.gaps.append(self._start() - input["at"])
            await ctx.emit("two.done", {"at": time.monotonic()})

        @step(flow="three", on="two.done")
        async def three(input: dict[str, float], ctx: Context) -> None:
            self.gaps.append(self._start() - input["at"])
            self._end()

        return [noop, one, two, three]

    def _start(self) -> float:
        now = time.monotonic()
        self.starts.append(now)
        return now

    def _end(self) -> None:
        self.ended += 1
        if self.ended == self.n:
            self.done.set()

    async def start(self, n: int) -> None:
        for start in range(0, n, CHUNK):
            await asyncio.gather(*(self.app.start("three", {"i": i}) for i in range(start, min(n, start + CHUNK))))

    @asynccontextmanager
    async def run_worker(self, concurrency: int = CONCURRENCY) -> AsyncIterator[App]:
        async with self.app as app:
            worker = asyncio.create_task(app.workers.run(concurrency=concurrency))
            yield app
            worker.cancel()
            await asyncio.wait([worker])

    async def wait_until_recorded(self) -> float:
        """Wait until the last handler has ended and everything is stored as finished. Return that time."""
        await self.done.wait()
        reader = apsw.Connection(self.file, flags=apsw.SQLITE_OPEN_READONLY)
        while reader.execute(UNFINISHED).fetchone() != (0,):
            await asyncio.sleep(0.001)
        now = time.monotonic()
        assert reader.execute("SELECT count(*) FROM jobs WHERE state > 4").fetchone() == (0,), "a job failed"
        return now


# Throughput


async def jobs(case: Case) -> Metrics:
    async def enqueue(engine: Engine) -> None:
        await engine.app.jobs.enqueue_many("noop", [{"sent": float(i)} for i in range(case.n)])

    return await _drain(case, enqueue)


async def flows3(case: Case) -> Metrics:
    return await _drain(case, lambda engine: engine.start(case.n))


async def _drain(case: Case, enqueue: Callable[[Engine], Awaitable[None]]) -> Metrics:
    engine = Engine(case)
    async with engine.app:
        since = time.monotonic()
        await enqueue(engine)
        seconds = time.monotonic() - since
    worker = case.worker()
    report = worker.read_report()
    worker.end()
    return throughput(case.n, seconds, report["first"], report["last"])


async def work_drain(case: Case) -> None:
    engine = Engine(case)
    async with engine.run_worker():
        last = await engine.wait_until_recorded()
    send_report(first=min(engine.starts), last=last)


# Latency


async def step_latency(case: Case) -> Metrics:
    engine = Engine(case)
    async with engine.run_worker(concurrency=1) as app:
        for _ in range(case.n):
            await app.result(await app.start("three", {"i": 0}))
    return latency(engine.gaps)


async def pickup(case: Case) -> Metrics:
    other = await _measure_from_another_process(case)
    same = Engine(case.inside("same"))
    async with same.run_worker() as app:
        await asyncio.sleep(0.5)
        await _send(app, case)
        await same.done.wait()
    return other | latency(same.waits, "same_")


async def pickup_installed(case: Case) -> Metrics:
    return await _measure_from_another_process(case)


async def _measure_from_another_process(case: Case) -> Metrics:
    worker = case.worker()
    idle = worker.read_report()["idle"]
    async with Engine(case).app as app:
        await _send(app, case)
    waits = worker.read_report()["waits"]
    worker.end()
    return latency(waits) | {"idle_cpu_percent": idle}


async def _send(app: App, case: Case) -> None:
    pausing = pauses(case.n, long=case.scenario == "pickup_installed")
    for _ in range(case.n):
        await asyncio.to_thread(next, pausing)
        await app.enqueue("noop", {"sent": time.monotonic()})


async def work_pickup(case: Case) -> None:
    engine = Engine(case)
    async with engine.run_worker():
        await asyncio.sleep(0.2)
        send_report(idle=await asyncio.to_thread(idle_cpu))
        await engine.done.wait()
    send_report(waits=engine.waits)


# A full file


async def grown(case: Case) -> Metrics:
    """Measure an empty and a full file in turn, so that a busy moment affects both."""
    full = await _fill(case.inside("grown"))
    empty = SqliteStore(str(case.inside("empty").file))
    await empty.open()
    await full.open()
    probes = {"empty": Probe(empty), "grown": Probe(full)}
    for _ in range(300):
        for probe in probes.values():
            await probe.step()
    metrics: Metrics = {}
    for name, probe in probes.items():
        metrics[f"claim_{name}_ms"] = latency(probe.claims)["p50_ms"]
        metrics[f"commit_{name}_ms"] = latency(probe.commits)["p50_ms"]
    metrics |= await _reads(full)
    await full.close()
    await empty.close()
    return metrics


async def _fill(case: Case) -> SqliteStore:
    engine = Engine(case)
    async with engine.run_worker():
        await engine.start(case.n)
        await engine.wait_until_recorded()
    return SqliteStore(engine.file)


async def _reads(store: SqliteStore) -> Metrics:
    newest = await store.runs(limit=500)
    streams = Streams()

    async def read_one() -> None:
        run = random.choice(newest).id
        await store.run(run)
        await store.read(streams.flow(run))

    return {
        "list_ms": await _median(lambda: store.runs(limit=50)),
        "list_filtered_ms": await _median(lambda: store.runs(flow="three", status="completed", limit=50)),
        "read_ms": await _median(read_one),
    }


async def _median(call: Callable[[], Awaitable[Any]]) -> float:
    seconds = []
    for _ in range(50):
        since = time.monotonic()
        await call()
        seconds.append(time.monotonic() - since)
    return latency(seconds)["p50_ms"]


class Probe:
    """Claims and commits one step at a time on the store directly, with no other load."""

    def __init__(self, store: SqliteStore) -> None:
        self.claims: list[float] = []
        self.commits: list[float] = []
        self._store = store
        self._made = 0

    async def step(self) -> None:
        self._made += 1
        run = f"probe-{self._made}"
        stream = Streams().flow(run)
        record, body = b'{"status":"running"}', b'{"kind":"step.completed","subject":"probe"}'
        created = RunWrite(run, 0, record, "probe", "running")
        await self._commit(Unit(f"{run}.start", run=created, jobs=[NewJob(f"{run}.a.1", "probe", "a", b"{}", run=run)]))
        since = time.monotonic()
        claims = (await self._store.claim(ClaimRequest((QueueDemand("probe", 1),), 30_000, "bench"))).claims
        self.claims.append(time.monotonic() - since)
        unit = Unit(
            f"{run}.end",
            claim=claims[0],
            outcome=Completed(b"{}"),
            run=RunWrite(run, 1, record, "probe", "completed", closed=True),
            events=[NewEvent(stream, body), NewEvent(stream, body)],
            jobs=[NewJob(f"{run}.b.1", "next", "b", b"{}", run=run)],
        )
        since = time.monotonic()
        await self._commit(unit)
        self.commits.append(time.monotonic() - since)

    async def _commit(self, unit: Unit) -> None:
        await self._store.commit([unit])


def run_on_loop(measure: Callable[[Case], Coroutine[Any, Any, Any]]) -> Callable[[Case], Any]:
    return lambda case: asyncio.run(measure(case))


main(
    about,
    {
        name: run_on_loop(measure)
        for name, measure in {
            "jobs": jobs,
            "flows3": flows3,
            "flows3_wal": flows3,
            "step_latency": step_latency,
            "pickup": pickup,
            "pickup_installed": pickup_installed,
            "grown": grown,
            "sweep": sweep,
            "ordered": ordered,
            "spec": events,
            "waiting": waiting,
            "waiting_rows": lambda case: waiting_rows(case, Probe),
        }.items()
    },
    {
        name: run_on_loop(work)
        for name, work in {
            "jobs": work_drain,
            "flows3": work_drain,
            "flows3_wal": work_drain,
            "pickup": work_pickup,
            "pickup_installed": work_pickup,
            "spec": work_events,
        }.items()
    },
)
