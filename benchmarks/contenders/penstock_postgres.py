"""Penstock on Postgres: jobs, flows, pick-up latency, a full database, churn, and the size of an event."""

from __future__ import annotations

import time
from pathlib import Path

import asyncpg
from entry import Case, Metrics, latency, main
from penstock_engine import Producer, about, drain_flows, rates, run_on_loop, work, work_flows
from penstock_events import events, work_events
from penstock_ordered import ordered
from penstock_sweep import sweep
from server_time import server_us
from tally import Tally, jobs, pickup

from penstock.core.events import Streams
from penstock.ports.store import Retention
from penstock.ports.unit import ClaimRequest, Completed, NewEvent, NewJob, QueueDemand, RunWrite, Unit
from penstock.stores.postgres import PostgresStore

BATCH = 50
SAMPLES = 300
BODY = b'{"kind":"step.completed","subject":"probe","data":{"orderId":4711,"customer":"c-1042"}}'


async def flows3(case: Case) -> Metrics:
    return rates(case, await drain_flows(case, lambda: server_us(case.url)))


class Probe:
    """Claims and commits steps on the store directly, `batch` at a time, with no other load."""

    def __init__(self, store: PostgresStore, batch: int) -> None:
        self.claims: list[float] = []
        self.commits: list[float] = []
        self._store = store
        self._batch = batch
        self._made = 0

    async def cycle(self) -> None:
        await self._store.commit([self._start_unit() for _ in range(self._batch)])
        since = time.monotonic()
        claims = (await self._store.claim(ClaimRequest((QueueDemand("probe", self._batch),), 30_000, "bench"))).claims
        self.claims.append(time.monotonic() - since)
        assert len(claims) == self._batch, f"{len(claims)} of {self._batch} jobs were claimed"
        units = [self._finish_unit(claim) for claim in claims]
        since = time.monotonic()
        await self._store.commit(units)
        self.commits.append(time.monotonic() - since)

    def _start_unit(self) -> Unit:
        self._made += 1
        run = f"probe-{self._batch}-{self._made}"
        created = RunWrite(run, 0, b"{}", "probe", "running")
        return Unit(f"{run}.start", run=created, jobs=[NewJob(f"{run}.a.1", "probe", "a", b"{}", run=run)])

    def _finish_unit(self, claim) -> Unit:  # type: ignore[no-untyped-def]
        stream = Streams().flow(claim.run)
        return Unit(
            f"{claim.run}.end",
            claim=claim,
            outcome=Completed(b"{}"),
            run=RunWrite(claim.run, 1, b"{}", "probe", "completed", closed=True),
            events=[NewEvent(stream, BODY), NewEvent(stream, BODY)],
        )


# A full database


async def grown(case: Case) -> Metrics:
    """Measure an empty and a full schema in turn, so that a busy moment affects both."""
    stores = {name: PostgresStore(f"{case.url}?schema={name}") for name in ("empty", "grown")}
    for store in stores.values():
        await store.open()
    await _fill(case)
    metrics: Metrics = {}
    for batch in (1, BATCH):
        probes = {name: Probe(store, batch) for name, store in stores.items()}
        for _ in range(SAMPLES // (1 if batch == 1 else 5)):
            for probe in probes.values():
                await probe.cycle()
        for name, probe in probes.items():
            metrics[f"claim{batch}_{name}_ms"] = latency(probe.claims)["p50_ms"]
            metrics[f"commit{batch}_{name}_ms"] = latency(probe.commits)["p50_ms"]
        metrics[f"claim{batch}_percent"] = _percent(metrics, f"claim{batch}")
        metrics[f"commit{batch}_percent"] = _percent(metrics, f"commit{batch}")
    metrics["list_ms"] = await _median(lambda: stores["grown"].runs(limit=50))
    metrics["queues_first_ms"] = await _median(lambda: stores["grown"].queues(), 3)
    for _ in range(2):  # the first sweep that finds a queue counts nothing of it yet
        while any((await stores["grown"].sweep(Retention())).values()):
            pass
    metrics["queues_ms"] = await _median(lambda: stores["grown"].queues())
    for store in stores.values():
        await store.close()
    return metrics


def _percent(metrics: Metrics, what: str) -> float:
    return 100 * metrics[f"{what}_grown_ms"] / metrics[f"{what}_empty_ms"]


async def _median(call, times: int = 30) -> float:  # type: ignore[no-untyped-def]
    seconds = []
    for _ in range(times):
        since = time.monotonic()
        await call()
        seconds.append(time.monotonic() - since)
    return latency(seconds)["p50_ms"]


async def _fill(case: Case) -> None:
    text = Path(__file__).with_name("grown_rows.sql").read_text(encoding="utf-8")
    connection = await asyncpg.connect(case.url)
    for part in text.split("-- name: ")[1:]:
        statement = part.partition("\n")[2].replace("penstock.", "grown.")
        await connection.execute(statement, *((case.n,) if "$1" in statement else ()))
    # As after slow growth; and the pending writes are flushed before anything is timed.
    await connection.execute("VACUUM (ANALYZE)")
    await connection.execute("CHECKPOINT")
    await connection.close()


# Churn


class Churn:
    """Adds, claims, finishes and removes jobs as fast as possible."""

    def __init__(self, url: str, schema: str = "penstock") -> None:
        self._store = PostgresStore(f"{url}?schema={schema}")
        self._probe = Probe(self._store, BATCH)
        self._swept = 0.0
        self._marked = 0
        self.jobs = 0

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def cycle(self) -> None:
        await self._probe.cycle()
        self.jobs += BATCH
        if time.monotonic() - self._swept > 0.5:
            await self._store.sweep(Retention(keep_runs=5000, keep_jobs=5000), limit=2000)
            self._swept = time.monotonic()

    def mark(self) -> None:
        self._marked = len(self._probe.claims)

    def since_mark(self) -> Metrics:
        return latency(self._probe.claims[self._marked :])


async def churn(case: Case) -> Metrics:
    """Run for n seconds and compare the latency of claims early and late. Since the speed of the machine varies,
    the second and the last tenth alternate with a newly created schema."""
    old, tenth = Churn(case.url), case.n / 10
    await old.open()
    started = time.monotonic()
    while time.monotonic() - started < tenth:
        await old.cycle()
    first = await _compare_with_new_schema(old, case.url, "early", started + 2 * tenth)
    while time.monotonic() - started < 9 * tenth:
        await old.cycle()
    last = await _compare_with_new_schema(old, case.url, "late", started + case.n)
    await old.close()
    metrics = {f"first_{key}": value for key, value in first.items()}
    metrics |= {f"last_{key}": value for key, value in last.items()}
    return metrics | {"jobs": float(old.jobs), "table_mb": await _size(case.url, "jobs") / 1e6}


async def _compare_with_new_schema(old: Churn, url: str, schema: str, until: float) -> Metrics:
    new = Churn(url, schema)
    await new.open()
    for _ in range(5):  # until all statements are planned
        await new.cycle()
    for one in (old, new):
        one.mark()
    while time.monotonic() < until or new.jobs < 10 * BATCH:
        await old.cycle()
        await new.cycle()
    await new.close()
    found = old.since_mark()
    return found | {"percent": 100 * found["p50_ms"] / new.since_mark()["p50_ms"]}


# Size of an event


async def size(case: Case) -> Metrics:
    store = PostgresStore(case.url)
    await store.open()
    before = await _size(case.url, "events")
    for start in range(0, case.n, 100):
        stream = Streams().flow(f"size-{start}")
        await store.commit([Unit(f"s.{start}.{i}", events=[NewEvent(stream, BODY)]) for i in range(100)])
    used = await _size(case.url, "events") - before
    await store.close()
    return {"event_bytes": used / case.n, "body_bytes": float(len(BODY))}


async def _size(url: str, table: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(f"SELECT pg_total_relation_size('penstock.{table}')"))
    finally:
        await connection.close()


def work_jobs(case: Case) -> None:
    work(case, Tally(case, watched=False))


main(
    about,
    {
        "jobs": lambda case: jobs(case, Producer),
        "pickup": lambda case: pickup(case, Producer),
        **{
            name: run_on_loop(measure)
            for name, measure in {
                "flows3": flows3,
                "grown": grown,
                "churn": churn,
                "size": size,
                "sweep": sweep,
                "ordered": ordered,
                "spec": events,
            }.items()
        },
    },
    {"jobs": work_jobs, "pickup": work_jobs, "flows3": run_on_loop(work_flows), "spec": run_on_loop(work_events)},
)
