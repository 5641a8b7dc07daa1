"""Sample units, jobs and events for the contracts, and the calls that most tests make."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import msgspec

from ...core.durations import Duration, to_ms
from ...core.events import Event, EventBody, encode_body
from ...core.ids import new_token
from ...ports.store import Store
from ...ports.unit import (
    Claim,
    ClaimBatch,
    ClaimFilter,
    ClaimRequest,
    NewEvent,
    NewJob,
    NewWait,
    QueueDemand,
    Receipt,
    RunWrite,
    Started,
    Unit,
)

QUEUE = "orders"
FLOW = "shop"
STREAM = "nq:entity:order"
LEASE = "30s"
ERROR = b'{"message":"no"}'


def unit(**parts: Any) -> Unit:
    """Build a unit with its own id."""
    return Unit(id=f"u-{new_token()}", **parts)


def job(id: str, queue: str = QUEUE, **fields: Any) -> NewJob:
    """Build a job."""
    return NewJob(id=id, queue=queue, name="charge", payload=b'{"job":"%b"}' % id.encode(), **fields)


def event(kind: str = "order.noted", stream: str = STREAM, data: Any = None) -> NewEvent:
    """Build an event."""
    raw = msgspec.Raw(msgspec.json.encode(data))
    return NewEvent(stream, encode_body(EventBody(kind=kind, subject="order/7", data=raw)))


def started(stream: str = STREAM, step: str = "charge") -> Started:
    """Build the event that a claim of the job appends."""
    return Started(stream, b'{"kind":"step.started","subject":"order/7","step":"%b","meta":{"n":1,' % step.encode())


def run(id: str, expect: int = 0, record: bytes = b'{"at":0}', **fields: Any) -> RunWrite:
    """Build a write of a run record."""
    return RunWrite(id=id, expect=expect, record=record, **{"flow": FLOW, "status": "running", **fields})


def user_event(kind: str = "order.paid", stream: str = STREAM, data: Any = None, original: Any = None) -> NewEvent:
    """Build an event that waits and flows can receive: the data that streams show, and the original if it differs."""
    body = event(kind, stream, original).body if original is not None else None
    return msgspec.structs.replace(event(kind, stream, data), kind=kind, original=body)


def wait(id: str, run: str, **fields: Any) -> NewWait:
    """Build a wait."""
    values = {"scope": f"{run}.charge.1", "kind": "event", "body": b'{"kind":"order.paid"}', **fields}
    return NewWait(id=id, run=run, **values)


def claim_request(
    *queues: str,
    limit: int = 10,
    lease: Duration = LEASE,
    worker: str = "w1",
    only: ClaimFilter | None = None,
    **fields: Any,
) -> ClaimRequest:
    """Build a request for jobs of some queues."""
    demands = tuple(QueueDemand(queue, limit, **fields) for queue in queues or (QUEUE,))
    return ClaimRequest(demands, to_ms(lease), worker, only=only)


async def apply(store: Store, unit: Unit) -> Receipt:
    """Commit one unit and return its receipt."""
    (receipt,) = (await store.commit([unit])).receipts
    return receipt


async def add(store: Store, *jobs: NewJob) -> None:
    """Add jobs."""
    await store.commit([unit(jobs=list(jobs))])


async def claim(store: Store, *queues: str, **fields: Any) -> list[Claim]:
    """Claim jobs."""
    return (await store.claim(claim_request(*queues, **fields))).claims


async def claim_one(store: Store, *queues: str, **fields: Any) -> Claim:
    """Claim exactly one job."""
    (one,) = await claim(store, *queues, limit=1, **fields)
    return one


async def add_and_claim(store: Store, id: str, queue: str = QUEUE, **fields: Any) -> Claim:
    """Add a job and claim it."""
    await add(store, job(id, queue, **fields))
    one = await claim_one(store, queue)
    assert one.job == id
    return one


def names(found: list[Claim] | ClaimBatch) -> list[str]:
    """Return the ids of claimed jobs."""
    return [claim.job for claim in (found.claims if isinstance(found, ClaimBatch) else found)]


def seqs(events: list[Event]) -> list[int]:
    """Return the sequence numbers of events."""
    return [event.seq for event in events]


async def state_of(store: Store, id: str) -> str | None:
    """Return the state of a job, or None."""
    row = await store.job(id)
    return row.state.value if row else None


async def first(events: AsyncIterator[Event], count: int) -> list[Event]:
    """Return the first events of a tail and close it."""
    found: list[Event] = []
    async with aclosing(cast(Any, events)):
        async for one in events:
            found.append(one)
            if len(found) == count:
                break
    return found
