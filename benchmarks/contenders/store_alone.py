"""The store of Penstock without its engine: prepared units, committed in batches that also claim the next jobs.

The difference to Penstock is the engine: decisions, encoding, handlers and the event loop. The difference to the
baseline is what a recorded step writes in addition: its events, the record of the run and its version.
"""

from __future__ import annotations

import time
from importlib.metadata import version

from entry import Case, Metrics, main
from penstock_engine import run_on_loop
from server_time import server_us

from penstock.app.store_urls import open_store
from penstock.core.clock import SystemClock
from penstock.core.events import Streams
from penstock.ports.store import Store
from penstock.ports.unit import Claim, ClaimRequest, Completed, NewEvent, NewJob, QueueDemand, RunWrite, Started, Unit

BATCH = 100
PAYLOAD = b'{"orderId":4711,"customer":"c-1042","items":[{"sku":"a-1","quantity":2}]}'
BODY = b'{"kind":"step.completed","subject":"run-0","flow":"three","step":"one","data":' + PAYLOAD + b"}"
HEAD = b'{"kind":"step.started","subject":"run-0","flow":"three","step":"one","meta":{"v":1,'
RECORD = b'{"status":"running","steps":{"one":"completed","two":"active"},"payload":' + PAYLOAD + b"}"
STEPS = 3


def about() -> dict[str, str]:
    return {
        "name": "Penstock store only",
        "version": version("penstock"),
        "settings": f"no engine: units of two events, a run record and the next job, {BATCH} per commit",
    }


def _job(run: str, step: int) -> NewJob:
    stream = Streams().flow(run)
    return NewJob(f"{run}.s.{step}", "steps", "s", PAYLOAD, run=run, started=Started(stream, HEAD))


def _start_unit(run: str) -> Unit:
    event = NewEvent(Streams().flow(run), BODY)
    return Unit(f"{run}.0", run=RunWrite(run, 0, RECORD, "three", "running"), events=[event], jobs=[_job(run, 1)])


def _finish_unit(claim: Claim) -> Unit:
    assert claim.run is not None
    last = claim.version == STEPS
    status = "completed" if last else "running"
    stream = Streams().flow(claim.run)
    return Unit(
        f"{claim.run}.{claim.version}",
        claim=claim,
        outcome=Completed(b"{}"),
        run=RunWrite(claim.run, claim.version, RECORD, "three", status, closed=last),
        events=[NewEvent(stream, BODY), NewEvent(stream, BODY)],
        jobs=[] if last else [_job(claim.run, claim.version + 1)],
    )


async def flows3(case: Case) -> Metrics:
    store = open_store(case.url, clock=SystemClock(), namespace="nq")
    await store.open()
    try:
        for start in range(0, case.n, BATCH):
            await store.commit([_start_unit(f"run-{i}") for i in range(start, min(case.n, start + BATCH))])
        return await _drain(store, case)
    finally:
        await store.close()


async def _drain(store: Store, case: Case) -> Metrics:
    total, request = case.n * STEPS, ClaimRequest((QueueDemand("steps", BATCH),), 30_000, "bench")
    before, cpu, since = server_us(case.url), time.process_time(), time.monotonic()
    claims, done = (await store.claim(request)).claims, 0
    while claims:
        done += len(claims)
        claims = (await store.commit([_finish_unit(claim) for claim in claims], request)).claimed.claims
    span, cpu = time.monotonic() - since, time.process_time() - cpu
    assert done == total, f"{done} of {total} steps were claimed"
    return {
        "per_s": case.n / span,
        "steps_per_s": total / span,
        "cpu_us": cpu / total * 1e6,
        "server_us": (server_us(case.url) - before) / total,
    }


main(about, {"flows3": run_on_loop(flows3)})
