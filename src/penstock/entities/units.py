"""Builds the parts of a unit from a decision about an entity: its run write, events, jobs and state."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ..core.events import EventBodies, EventBody
from ..core.ids import step_job_id
from ..handlers.entities import MAX_BATCH
from ..ports.unit import ENTITY, NewEvent, NewJob, RunWrite, Started, StateWrite
from .decide import Decision, Emitted, NextJob
from .record import EntityRecord, encode, mail_key

EVENT = "event"  # the middle part of the ids of an entity's jobs


class EventOptions(msgspec.Struct, omit_defaults=True, rename="camel"):
    """Options of the job of an event. A spilled event has no name here: it is read from the state."""

    n: int
    event: str | None = None
    trace: str | None = None  # the `traceparent` of what emitted it
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH)] = 1  # how many events it handles; `n` is the last of them


decode_options = msgspec.json.Decoder(EventOptions).decode


def job_id(id: str, n: int) -> str:
    """Return the id of the job of an event."""
    return step_job_id(id, EVENT, n)


class UnitBuilder:
    """Builds the parts of a unit from decisions about one entity."""

    def __init__(self, id: str, bodies: EventBodies) -> None:
        self._id = id
        self._bodies = bodies
        self.stream = bodies.run(ENTITY, id)

    def run_write(self, record: EntityRecord, version: int) -> RunWrite:
        return RunWrite(
            self._id,
            version,
            encode(record),
            record.type,
            record.status,
            record.closed,
            record.paused,
            kind=ENTITY,
        )

    def events(self, decision: Decision) -> list[NewEvent]:
        return [self.event(one) for one in decision.events]

    def event(self, one: Emitted) -> NewEvent:
        body = EventBody(f"entity.{one.kind}", data=msgspec.Raw(encode(one.data)), meta=one.meta or None)
        return NewEvent(self.stream, self._bodies.encode(body))

    def jobs(self, decision: Decision) -> list[NewJob]:
        return [self.job(decision.record, decision.job)] if decision.job is not None else []

    def job(self, record: EntityRecord, job: NextJob) -> NewJob:
        """Build the job of an event, with the `entity.started` event that its claim appends."""
        id, options = job_id(self._id, job.n), EventOptions(job.n, job.event, job.trace, job.count)
        return NewJob(
            id,
            record.queue,
            record.type,
            bytes(job.payload),
            record.priority,
            run=self._id,
            opts=encode(options),
            started=self._started(id, options),
        )

    def _started(self, id: str, options: EventOptions) -> Started:
        data = msgspec.Raw(encode({"event": options.event})) if options.event is not None else None
        body = self._bodies.encode(EventBody("entity.started", data=data, meta={"jobId": id, "n": options.n}))
        return Started(self.stream, body[:-2] + b",")

    def restore_job(self, job: NewJob) -> NewJob:
        """Return an exported job with the event that its claim appends. Raise msgspec.DecodeError if its options are
        not those of an entity's job."""
        options = decode_options(job.opts)
        if job.id != job_id(self._id, options.n):
            raise msgspec.ValidationError(f"job {job.id!r} is not that of event {options.n}")
        return msgspec.structs.replace(job, started=self._started(job.id, options))

    def state(self, decision: Decision) -> list[StateWrite]:
        writes = [StateWrite(mail_key(self._id, n), None) for n in decision.unspilled]
        if decision.spilled is not None:
            writes.append(StateWrite(mail_key(self._id, decision.spilled.n), encode(decision.spilled)))
        return writes
