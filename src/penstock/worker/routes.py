"""Routes: internal jobs that call a function of another language, for those that cannot call it.

If the key of a run or a job is such a function, `start` and `enqueue` commit a route and return an id at once. A worker
with Node calls the function. The route's commit starts the run or adds the job, and records its own id, the key, under
the one that was returned.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..core.errors import NotRouted, RunFailed
from ..core.ids import dead_letter_id, route_id
from ..core.payload import pack, show_stored
from ..durable.journal import encode
from ..ports.store import Store
from ..ports.unit import DELIVERIES, ROUTE_START, ROUTE_STEP, JobState, NewEvent, NewJob, Started, StateWrite
from .child_runs import RunStart

KEPT_MS = 30 * 86_400_000  # how long an id stands for another one: as long as runs are kept
_FAILED = (JobState.FAILED, JobState.CANCELLED)


class AlsoEvent(msgspec.Struct):
    """An event to append with the start. A null `run` in its data becomes the id of the run."""

    stream: str
    body: msgspec.Raw


class RoutedStart(msgspec.Struct, omit_defaults=True):
    """The payload of a route of a start. The run of `start` is the id that the caller has."""

    start: RunStart
    cause: str = "start"
    has_correlation: bool = True  # False: the correlation id is the id of the run
    also: list[AlsoEvent] = []


decode_start = msgspec.json.Decoder(RoutedStart).decode


def build_start_route(
    start: RunStart, cause: str = "start", *, also: Sequence[NewEvent] = (), id: str | None = None
) -> NewJob:
    """Build the route of a start. A `start` without a correlation id gets that of the run."""
    events = [AlsoEvent(event.stream, msgspec.Raw(event.body)) for event in also]
    routed = RoutedStart(start, cause, bool(start.correlation_id), events)
    return NewJob(id or route_id(start.run), DELIVERIES, ROUTE_START, encode(routed))


class RoutedStep(msgspec.Struct, omit_defaults=True):
    """The payload of a route of a step or a node: its job, without the rate key."""

    id: str
    queue: str
    name: str
    payload: msgspec.Raw
    opts: msgspec.Raw
    stream: str
    started: str  # the start of the event that its claim appends
    priority: int = 0
    due: int = 0
    scope: str | None = None

    def build(self, run: str, rate_key: str | None) -> NewJob:
        """Build the job."""
        return NewJob(
            self.id,
            self.queue,
            self.name,
            bytes(self.payload),
            self.priority,
            self.due,
            run,
            self.scope,
            bytes(self.opts),
            Started(self.stream, self.started.encode()),
            rate_key,
        )


decode_step = msgspec.json.Decoder(RoutedStep).decode


def build_step_route(job: NewJob) -> NewJob:
    """Build the route of a job of a run: it adds the job with its rate key."""
    assert job.started is not None
    routed = RoutedStep(
        job.id,
        job.queue,
        job.name,
        msgspec.Raw(job.payload),
        msgspec.Raw(job.opts),
        job.started.stream,
        job.started.body_prefix.decode(),
        job.priority,
        job.due,
        job.scope,
    )
    return NewJob(route_id(job.id), DELIVERIES, ROUTE_STEP, encode(routed), run=job.run)


def record_own_id(id: str, own: str, now: int) -> list[StateWrite]:
    """Build the write that lets an id stand for another one."""
    return [] if id == own else [StateWrite(_key(id), pack(own), expires=now + KEPT_MS)]


async def find_own_id(store: Store, id: str) -> str | None:
    """Return the id of the run or job that an id stands for, None if it stands for none.

    Raise NotRouted until a worker has evaluated its key, and RunFailed if that has failed."""
    row = await store.state(_key(id))
    if row is not None:
        return str(show_stored(row.value))
    job = await store.job(route_id(id)) or await store.job(dead_letter_id(route_id(id)))
    if job is None:
        return None
    if job.state is JobState.COMPLETED:  # since the first read
        row = await store.state(_key(id))
        return str(show_stored(row.value)) if row is not None else id
    if job.state in _FAILED or job.id != route_id(id):
        error = show_stored(job.error) if job.error is not None else None
        why = error.get("error") if isinstance(error, dict) else f"see dead letter {dead_letter_id(route_id(id))!r}"
        raise RunFailed(f"{id!r} was not started: its key could not be evaluated: {why}")
    raise NotRouted(
        f"{id!r} is not started yet: a worker must call the function that returns its key. Check that a worker with "
        "Node is running"
    )


def _key(id: str) -> str:
    return f"routed/{id}"
