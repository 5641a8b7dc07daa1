"""Commands on entities from outside: create, emit, pause, resume. Each commits one unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..commit.command_sink import CommandSink
from ..commit.committer import CommitRequest
from ..core.argument_checks import check_event_key
from ..core.errors import BadArgument, RunError, UnknownEntity
from ..core.event_tags import add_tags
from ..core.ids import check_name, digest
from ..core.near_match import did_you_mean
from ..core.payload import pack_inline, unpack
from ..core.text import shorten
from ..core.trace_context import current_trace
from ..handlers.entities import EntityDefinition
from ..ports.store import RunRow
from ..ports.unit import DELIVERIES, EMIT_ENTITY, ENTITY, Committed, Conflict, NewJob, Receipt, Refused, Unit
from ..worker.outcomes import pack_record
from . import record as records
from .decide import Decision, Emitted, create, on_emit
from .engine import EntityEngine
from .record import EntityRecord
from .units import job_id
from .urns import check_urn, to_id


class Accepted(msgspec.Struct, frozen=True):
    """What became of an emitted event."""

    id: str
    n: int | None  # its number; None if it came before under the same key, or if the entity is closed
    is_new: bool = True  # False: its key was used before
    cursor: str | None = None  # the event of its arrival
    refused: str | None = None  # why a closed entity refused it at once


class DelayedEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event that is emitted later, by an internal job."""

    urn: str
    event: str
    payload: Any
    key: str
    type: str | None = None


LATER_JOB = "emit-entity."  # the start of the ids of jobs that emit later


def delayed_key(job: str) -> str:
    """Return the key of an event that a job emits and that has no key of the caller's."""
    return f"later-{job.removeprefix(LATER_JOB)}"


class EntityCommands:
    """Creates entities and acts on them, through one sink."""

    def __init__(self, engine: EntityEngine, sink: CommandSink) -> None:
        self._engine = engine
        self._sink = sink
        self._store = engine.runtime.store

    async def create(self, urn: str, data: Any, type: str | None = None) -> bool:
        """Create an entity in its initial state. Return False if it exists."""
        definition = self._engine.definition(type) if type is not None else self._engine.find_type(check_urn(urn))
        packed = None if data is None else pack_inline(data, f"the data of {urn!r}")
        id, unit_id = to_id(urn), self._engine.new_unit_id()

        def build(version: int, found: bytes | None) -> Unit | Receipt:
            if version:
                return Conflict(version, found)
            return self._unit(unit_id, id, create(self._new_record(definition, urn), packed), 0)

        receipt = await self._sink.submit(CommitRequest(build, run=id))
        if isinstance(receipt, Conflict):
            await self._check_kind(id, urn)
        return isinstance(receipt, Committed)

    async def emit_to(
        self,
        urn: str,
        event: str,
        payload: Any = None,
        *,
        key: str | None = None,
        type: str | None = None,
        tags: Sequence[str] = (),
    ) -> Accepted:
        """Add an event to the mailbox of an entity; a urn without one gets a new entity in the initial state.

        Raise SchemaViolation if the payload does not match its model, and BadArgument for an unknown event.
        """
        with self._engine.runtime.produce("emit", str(event)):
            return await self._emit_to(urn, event, payload, key, type, tags)

    async def _emit_to(
        self, urn: str, event: str, payload: Any, key: str | None, type: str | None, tags: Sequence[str]
    ) -> Accepted:
        check_name(event, "event")
        id, row = to_id(urn), await self._find(to_id(urn), urn)
        definition = self._find_definition(urn, row, type)
        packed = self._check_event(definition, event, payload)
        unit_id, once, trace = self._engine.new_unit_id(), check_event_key(key), current_trace.get()
        meta = add_tags({"causationId": f"emit-{unit_id}"} | ({"key": once} if once is not None else {}), tags)
        outcome: dict[str, Any] = {}

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = records.decode(data, id) if data is not None else None
            once_key = f"{id}/{once}" if once is not None else None
            if record is not None and record.closed:
                return self._refuse(unit_id, id, record, event, once_key, outcome)
            is_new = record is None
            if record is None:
                if definition is None:
                    raise UnknownEntity(f"no entity has the urn {shorten(urn)}")
                record = self._new_record(definition, urn)
            decision = on_emit(record, event, packed, meta, is_new=is_new, trace=trace)
            outcome.update(n=record.received, at=len(decision.events) - 1, refused=None)
            return self._unit(unit_id, id, decision, version, once_key)

        version, data = (row.version, row.record) if row is not None else (0, None)
        receipt = await self._sink.submit(CommitRequest(build, run=id, version=version, record=data))
        if isinstance(receipt, Refused):
            return Accepted(id, None, False)
        cursor = None
        if isinstance(receipt, Committed) and outcome.get("at") is not None and len(receipt.events) > outcome["at"]:
            ms, seq = receipt.events[outcome["at"]]
            cursor = f"{ms}-{seq}"
        return Accepted(id, outcome.get("n"), True, cursor, outcome.get("refused"))

    async def emit_later(
        self,
        urn: str,
        event: str,
        payload: Any = None,
        *,
        key: str | None = None,
        type: str | None = None,
        due: int = 0,
    ) -> str:
        """Enqueue a job that emits the event when it is due, or after the caller's transaction. Return the job's id."""
        check_name(event, "event")
        definition = self._engine.definition(type) if type is not None else None
        packed = self._check_event(definition, event, payload)
        unit_id, once = self._engine.new_unit_id(), check_event_key(key)
        body = DelayedEvent(check_urn(urn), event, unpack(packed), once or delayed_key(f"{LATER_JOB}{unit_id}"), type)
        # The same key adds the same job: an event that is emitted again is not emitted twice.
        id = f"{LATER_JOB}{unit_id if once is None else digest(f'{urn} {once}'.encode())}"
        unit = Unit(unit_id, jobs=[NewJob(id, DELIVERIES, EMIT_ENTITY, pack_record(body), due=due)])
        await self._sink.submit(CommitRequest(lambda _v, _r: unit))
        return id

    async def emit(self, run: str, kind: str, data: Any, *, key: str | None = None, tags: Sequence[str] = ()) -> bool:
        """Emit to an entity by its id, as to any run. Return False if its key was used before."""
        row = await self.row(run)
        accepted = await self.emit_to(records.decode(row.record, run).urn, kind, data, key=key, tags=tags)
        return accepted.is_new

    async def cancel(self, run: str, reason: str) -> bool:  # noqa: ARG002
        raise RunError(f"entity {run!r} cannot be cancelled; emit an event that leads to a final state")

    async def pause(self, run: str, reason: str, *, by: str | None = None) -> bool:
        """Pause an entity: its events wait. Return False if it is paused or closed."""

        def decide(record: EntityRecord) -> Decision | None:
            if record.paused or record.closed:
                return None
            record.paused, record.paused_by = True, by
            return Decision(record, [Emitted("paused", {"reason": reason})])

        return await self._change(run, decide)

    async def resume(self, run: str, reason: str, *, by: str | None = None) -> bool:
        """Resume a paused entity. Return False if it is not paused."""

        def decide(record: EntityRecord) -> Decision | None:
            if not record.paused or (by is not None and record.paused_by != by):
                return None
            record.paused, record.paused_by = False, None
            return Decision(record, [Emitted("resumed", {"reason": reason})])

        return await self._change(run, decide)

    async def exists(self, id: str) -> bool:
        """Return whether an id is that of an entity."""
        row = await self._store.run(id)
        return row is not None and row.kind == ENTITY

    async def redrive(self, letter_id: str, id: str, event: str, payload: bytes) -> str | None:
        """Emit the event of a dead letter again, at the end of the mailbox, and remove the letter. Return the id
        of its new job; None if another call has taken the letter."""
        row = await self.row(id)
        unit_id, numbers = self._engine.new_unit_id(), list[int]()

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            record = records.decode(data or row.record, id)
            if record.closed:
                raise RunError(f"entity {id!r} is in the final state {record.status!r} and accepts no event")
            decision = on_emit(record, event, payload, {"causationId": f"redrive-{letter_id}"}, is_new=False)
            numbers[:] = [record.received]
            unit = self._unit(unit_id, id, decision, version)
            unit.removes = [letter_id]
            return unit

        receipt = await self._sink.submit(CommitRequest(build, run=id, version=row.version, record=row.record))
        return None if isinstance(receipt, Refused) else job_id(id, numbers[0])

    async def row(self, id: str) -> RunRow:
        """Return the row of an entity."""
        row = await self._store.run(id)
        if row is None or row.kind != ENTITY:
            raise UnknownEntity(f"no entity has the id {shorten(id)} in this store; emit an event to create it")
        return row

    # Parts

    async def _change(self, id: str, decide: Callable[[EntityRecord], Decision | None]) -> bool:
        row, unit_id = await self.row(id), self._engine.new_unit_id()

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            decision = decide(records.decode(data, id)) if data is not None else None
            if decision is None:
                return Conflict(version, data)
            return self._unit(unit_id, id, decision, version)

        receipt = await self._sink.submit(CommitRequest(build, run=id, version=row.version, record=row.record))
        return isinstance(receipt, Committed)

    def _unit(self, unit_id: str, id: str, decision: Decision, version: int, once_key: str | None = None) -> Unit:
        builder = self._engine.unit_builder(id)
        return Unit(
            unit_id,
            run=builder.run_write(decision.record, version),
            events=builder.events(decision),
            jobs=builder.jobs(decision),
            state=builder.state(decision),
            once_key=once_key,
        )

    def _refuse(
        self, unit_id: str, id: str, record: EntityRecord, event: str, once_key: str | None, outcome: dict[str, Any]
    ) -> Unit:
        """Record that a closed entity refused an event."""
        reason = f"state {record.status!r} is final and accepts no event"
        outcome.update(n=None, at=0, refused=reason)
        data = {"event": event, "status": record.status, "reason": reason, "code": "final"}
        emitted = self._engine.unit_builder(id).event(Emitted("refused", data))
        return Unit(unit_id, events=[emitted], once_key=once_key)

    def _new_record(self, definition: EntityDefinition, urn: str) -> EntityRecord:
        handler, machine = definition.handler, definition.machine
        now = self._engine.clock.now_ms()
        return EntityRecord(definition.name, urn, machine.initial, handler.queue_name, now, priority=handler.priority)

    def _find_definition(self, urn: str, row: RunRow | None, type: str | None) -> EntityDefinition | None:
        """Return the definition of an entity; None if it exists and another process has its definition."""
        if row is None:
            return self._engine.definition(type) if type is not None else self._engine.find_type(urn)
        if type is not None and type != row.flow:
            raise BadArgument(f"entity {shorten(urn)} is of type {row.flow!r}, not {type!r}")
        return self._engine.runtime.registry().entities.get(row.flow)

    def _check_event(self, definition: EntityDefinition | None, event: str, payload: Any) -> bytes:
        packed = pack_inline(payload, f"the payload of {event}")
        if definition is None:
            return packed
        if event not in definition.machine.events and not definition.machine.has_fallback:
            known = definition.machine.events
            hint = did_you_mean(event, known) or f"known events: {', '.join(known)}"
            raise BadArgument(f"{definition.name!r} has no event {shorten(event)}; {hint}")
        definition.check_payload(event, unpack(packed))
        return packed

    async def _find(self, id: str, urn: str) -> RunRow | None:
        row = await self._store.run(id)
        if row is not None and row.kind != ENTITY:
            raise RunError(f"the id {id!r} of {shorten(urn)} belongs to a run of kind {row.kind!r}; use another urn")
        return row

    async def _check_kind(self, id: str, urn: str) -> None:
        await self._find(id, urn)
