"""`app.entities`: emit events to entities, look at them, wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..core.argument_checks import MAX_WORD_CHARS, check_arguments, check_count, resolve_due
from ..core.clock import to_iso
from ..core.durations import Duration
from ..core.errors import BadArgument, EntityFailed, EntityRefused, UnknownEntity
from ..core.events import Event
from ..core.near_match import did_you_mean
from ..core.outage_retry import deadline
from ..core.payload import NULL, unpack
from ..core.text import check_text, shorten
from ..entities import record as records
from ..entities.commands import delayed_key
from ..entities.diagram import describe_entity_diagram, render_entity_mermaid, render_entity_svg
from ..entities.record import EntityRecord
from ..entities.reducer import EntityView, TransitionView, reduce_entity
from ..entities.urns import to_id
from ..handlers.entities import EntityDefinition
from ..ports.store import RunRow
from ..ports.unit import ENTITY
from .entity_results import EntityResults

if TYPE_CHECKING:
    from .app import App

PAGE = 500
MAX_LOOK_BACK = 5_000  # events of a stream, to find one that was emitted before under the same key


class EntitySummary(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An entity, as lists show it."""

    id: str
    urn: str
    type: str
    status: str
    created_at: str
    updated_at: str
    closed: bool = False
    waiting: int = 0  # events in its mailbox, with the one that is being handled


class EntityType(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A definition of entities, as JSON-safe data."""

    name: str
    queue: str
    initial: str
    states: tuple[str, ...]
    idles: tuple[str, ...]
    finals: tuple[str, ...]
    failed: str | None
    events: tuple[str, ...]
    transitions: tuple[dict[str, Any], ...]
    batches: dict[str, int] = {}  # events that are handled several at a time, and how many


@dataclass(frozen=True)
class EmittedEvent:
    """An event that was emitted to an entity.

    Attributes:
        urn: The entity's urn.
        id: The entity's id: the end of its stream's name.
        event: The event.
        n: Its number in the entity's mailbox; None for one that is delayed or was emitted before under the same key.
        is_new: False if the key was used before: nothing was emitted.
        job: The internal job that emits a delayed event.
    """

    urn: str
    id: str
    event: str
    n: int | None = None
    is_new: bool = True
    job: str | None = None
    key: str | None = None
    cursor: str | None = field(default=None, repr=False)
    refused: str | None = None
    _entities: Any = field(default=None, repr=False, compare=False)  # the facet that emitted it


class Emission(EmittedEvent):
    """An event that was emitted to an entity, whose result can be awaited."""

    async def result(self, *, timeout: Duration | None = None) -> TransitionView:
        """Wait until the event has been handled, and return what it did. See `app.entities.result`.

        Args:
            timeout: Raise WaitTimeout after this long.
        """
        view: TransitionView = await self._entities.result(self, timeout=timeout)
        return view


class SyncEmission(EmittedEvent):
    """`Emission` without an event loop."""

    @classmethod
    def of(cls, emission: EmittedEvent, entities: Any) -> SyncEmission:
        """Return an emission whose result comes from a facet without an event loop."""
        return cls(**{one.name: getattr(emission, one.name) for one in fields(emission)} | {"_entities": entities})

    def result(self, *, timeout: Duration | None = None) -> TransitionView:
        """Wait until the event has been handled, and return what it did. See `app.entities.result`.

        Args:
            timeout: Raise WaitTimeout after this long.
        """
        view: TransitionView = self._entities.result(self, timeout=timeout)
        return view


def check_emission(value: Any) -> EmittedEvent:
    """Return the value if it is an emission; raise otherwise."""
    if not isinstance(value, EmittedEvent):
        raise BadArgument(f"emission must be what `entities.emit` returned, got {shorten(value)}")
    return value


def check_states(status: Any) -> tuple[str, ...]:
    """Return the states that somebody waits for, given one or several; raise if they are none."""
    states = (status,) if isinstance(status, str) else status
    if not isinstance(states, list | tuple) or not states:
        raise BadArgument(f"status must be a state, or a list of states, got {shorten(status)}")
    return tuple(check_text(one, "a state", MAX_WORD_CHARS) for one in states)


def read_moment(at: str | datetime) -> str | datetime:
    """Return a time, such as history shows, as a datetime, and the id of an event as it is."""
    if not isinstance(at, str) or "T" not in at:
        return at
    try:
        found = datetime.fromisoformat(at)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadArgument(
            f"at must be the id of an event or a time with its zone such as 2026-01-31T12:00:00Z, got {shorten(at)}"
        )
    return found


@check_arguments
class Entities:
    """Entities: things with a urn and a status, moved by the state machine of their type."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._engine = app._entity_engine
        self._store = app.store
        self._results = EntityResults(app.store)

    async def emit(
        self,
        urn: str,
        event: str,
        payload: Any = None,
        *,
        type: str | None = None,
        key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        tx: Any = None,
    ) -> Emission:
        """Emit an event to an entity. Events of one urn are handled one at a time, in the order of their arrival.

        A urn without an entity gets a new one, in the initial state. Raise SchemaViolation if the payload does not
        match the model of the event. A refusal by the entity raises nothing here: see `result`.

        Args:
            urn: The entity's urn: any text, such as "urn:order:7".
            event: The event, such as "paid".
            payload: Any JSON value, dataclass, msgspec or pydantic model.
            type: The type of a new entity. Default: the one whose urns start like this one.
            key: Idempotency key: the same key of an entity has an effect once.
            delay: How long to wait before the event arrives, such as "10m".
            at: When the event arrives, a datetime with a time zone. Instead of `delay`.
            tx: A transaction of yours: the event arrives after it has committed.
        """
        due = resolve_due(delay, at, self._app.clock)
        if tx is not None or due:
            job = await self._app._transactions.write(
                tx, lambda writers: writers.entities.emit_later(urn, event, payload, key=key, type=type, due=due)
            )
            return Emission(urn, to_id(urn), event, job=job, key=key, _entities=self)
        done = await self._engine.commands.emit_to(urn, event, payload, key=key, type=type)
        return Emission(urn, done.id, event, done.n, done.is_new, None, key, done.cursor, done.refused, self)

    async def result(self, emission: EmittedEvent, *, timeout: Duration | None = None) -> TransitionView:
        """Wait until an event has been handled, and return what it did.

        Raise EntityRefused if the entity refused it, and EntityFailed if it failed for good.

        Args:
            emission: What `emit` returned.
            timeout: Raise WaitTimeout after this long.
        """
        check_emission(emission)
        if emission.refused is not None:
            raise EntityRefused(f"entity {emission.urn!r} refused {emission.event!r}: {emission.refused}")
        async with deadline(f"event {emission.event!r} of {emission.urn!r}", timeout, "its queues"):
            n, cursor = await self._find_place(emission)
            ended = await self._results.wait(self._stream(emission.id), n, cursor)
        view = reduce_entity([ended]).history[-1]
        if view.kind == "refused":
            raise EntityRefused(f"entity {emission.urn!r} refused {emission.event!r}: {view.reason}")
        if view.kind == "failed":
            raise EntityFailed(f"event {emission.event!r} of entity {emission.urn!r} failed: {view.reason}")
        return view

    async def create(self, urn: str, data: Any = None, *, type: str | None = None) -> bool:
        """Create an entity in its initial state. Return False if it exists.

        Args:
            urn: The entity's urn.
            data: Its data: any JSON value or model. It is for entities whose data is in Penstock's store.
            type: Its type. Default: the one whose urns start like this one.
        """
        return await self._engine.commands.create(urn, data, type)

    async def get(self, urn: str, *, at: str | datetime | None = None) -> EntityView:
        """Return an entity: its status, its data, the events that wait and its history.

        Args:
            urn: The entity's urn, or its id.
            at: An event's id, a datetime, or a time as text with its zone: return the entity as it was then.
        """
        row = await self._row(urn)
        if at is not None:
            return reduce_entity(await self._read_until(row.id, read_moment(at)))
        view = await self._app._run_reader.view(row.id, None)
        assert isinstance(view, EntityView)
        record = records.decode(row.record, row.id)
        _complete(view, row, record, self._app._bodies.redact_value(_value(record)))
        return view

    async def data(self, urn: str) -> Any:
        """Return the data of an entity, as an object of its model. Secrets are not redacted.

        Args:
            urn: The entity's urn, or its id.
        """
        row = await self._row(urn)
        definition = self._app.registry.entities.get(row.flow)
        return await self._engine.load_data(definition, records.decode(row.record, row.id))

    async def history(self, urn: str, *, limit: int = 100) -> Sequence[TransitionView]:
        """Return what events did to an entity, newest first.

        Args:
            urn: The entity's urn, or its id.
            limit: Maximum number of entries, up to 1,000. The stream has all of them.
        """
        check_count(limit)
        return (await self.get(urn)).history[::-1][:limit]

    async def list(
        self,
        *,
        type: str | None = None,
        status: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[EntitySummary]:
        """Return a page of entities, newest first.

        Args:
            type: Only entities of this type. Default: of all types that are defined here.
            status: Only entities in this state.
            before: Id of the last entity of the page before.
            limit: Maximum number of entities.
        """
        check_count(limit)
        self._check_filter(type, status)
        types = [type] if type is not None else sorted(self._app.registry.entities)
        found: Any = []
        for name in types:
            rows = await self._store.runs(flow=name, statuses=[status] if status else (), before=before, limit=limit)
            found += [row for row in rows if row.kind == ENTITY]
        found.sort(key=lambda row: (row.created, row.id), reverse=True)
        return [_summary(row) for row in found[:limit]]

    async def counts(self, type: str) -> dict[str, int]:
        """Return how many entities of a type are in each state.

        Args:
            type: The type.
        """
        counts = dict.fromkeys(self._engine.definition(type).machine.states, 0)
        before: str | None = None
        while rows := await self._store.runs(flow=type, before=before, limit=PAGE):
            before = rows[-1].id
            for row in rows:
                if row.kind == ENTITY:
                    counts[row.status] = counts.get(row.status, 0) + 1
            if len(rows) < PAGE:
                break
        return counts

    async def wait_for(
        self, urn: str, status: str | Sequence[str], *, timeout: Duration | None = None
    ) -> EntitySummary:
        """Wait until an entity is in a state, or in one of several. It may not exist yet.

        Args:
            urn: The entity's urn.
            status: The state, or several of them.
            timeout: Raise WaitTimeout after this long.
        """
        wanted = check_states(status)
        id = to_id(urn)
        self._check_reachable(urn, await self._store.run(id), wanted)
        async with deadline(f"entity {urn!r} in state {' or '.join(wanted)}", timeout, "its queues") as retry:
            with self._store.signals.listen(f"stream:{self._stream(id)}", f"run:{id}") as listener:
                while True:
                    row = await retry.call(self._store.run, id)
                    if row is not None and row.status in wanted:
                        return _summary(row)
                    if row is not None and row.closed:
                        raise EntityRefused(
                            f"entity {urn!r} ended in state {row.status!r} and cannot reach {wanted[0]!r}"
                        )
                    await listener.wait(1.0)

    def _check_filter(self, type: str | None, status: str | None) -> None:
        """Raise if a type or a state is probably misspelled: no type that is loaded here has it, and one is near."""
        entities = self._app.registry.entities
        if type is not None and type not in entities:
            if near := did_you_mean(type, entities):
                raise UnknownEntity(f"no entity of type {shorten(type)} is defined here; {near}")
            return
        types = [entities[type]] if type is not None else list(entities.values())
        states = {state for one in types for state in one.machine.states}
        if types and status is not None and status not in states and (near := did_you_mean(status, states)):
            raise BadArgument(f"no entity has the state {shorten(status)}; {near}")

    def _check_reachable(self, urn: str, row: RunRow | None, wanted: Sequence[str]) -> None:
        """Raise if the type is loaded here and has none of these states."""
        entities = self._app.registry.entities
        owners = [one for one in entities.values() if one.owns(urn)] if row is None else []
        found = entities.get(row.flow) if row is not None else owners[0] if len(owners) == 1 else None
        if found is None or (row is not None and row.status in wanted):
            return
        for one in wanted:
            if one not in found.machine.states:
                raise BadArgument(f"entities of type {found.name!r} have no state {one!r}; {_hint(one, found)}")

    def types(self) -> Sequence[EntityType]:
        """Return the definitions of entities that are loaded here, by name."""
        return [_describe(one) for _, one in sorted(self._app.registry.entities.items())]

    async def diagram(
        self, type: str, *, urn: str | None = None, format: Literal["mermaid", "svg", "json"] = "mermaid"
    ) -> str | dict[str, Any]:
        """Return the state machine of a type as Mermaid, SVG or a graph, with the state of an entity marked.

        Args:
            type: The type.
            urn: Mark the state that this entity is in.
            format: "mermaid", "svg", or "json" for `{"nodes": […], "edges": […]}`.
        """
        machine = self._engine.definition(type).machine
        current = (await self._row(urn)).status if urn is not None else None
        if not isinstance(format, str):
            raise BadArgument(f"format must be 'mermaid', 'svg' or 'json', got {shorten(format)}")
        if format == "mermaid":
            return render_entity_mermaid(machine, current)
        if format == "svg":
            return render_entity_svg(type, machine, current)
        if format != "json":
            raise BadArgument(f"format must be 'mermaid', 'svg' or 'json', got {shorten(format)}")
        return describe_entity_diagram(machine, current)

    async def pause(self, urn: str, *, reason: str = "") -> bool:
        """Pause an entity: its events wait. Return False if it is paused or closed.

        Args:
            urn: The entity's urn, or its id.
            reason: Why, for people.
        """
        return await self._engine.commands.pause((await self._row(urn)).id, reason)

    async def resume(self, urn: str, *, reason: str = "") -> bool:
        """Resume a paused entity. Return False if it is not paused.

        Args:
            urn: The entity's urn, or its id.
            reason: Why, for people.
        """
        return await self._engine.commands.resume((await self._row(urn)).id, reason)

    # Parts

    def _stream(self, id: str) -> str:
        return self._app._bodies.run(ENTITY, id)

    async def _row(self, urn: str) -> RunRow:
        """Return the row of an entity, by its urn or by its id."""
        for id in dict.fromkeys((to_id(urn), urn)):
            row = await self._store.run(id)
            if row is not None and row.kind == ENTITY:
                return row
        raise UnknownEntity(f"no entity has the urn {shorten(urn)} in this store; emit an event to create it")

    async def _find_place(self, emission: EmittedEvent) -> tuple[int, str | None]:
        """Return the number of an event in its mailbox, and the event of its arrival."""
        if emission.n is not None:
            return emission.n, emission.cursor
        key = emission.key or delayed_key(emission.job or "")
        stream = self._stream(emission.id)
        with self._store.signals.listen(f"stream:{stream}") as listener:
            while (found := await self._find_received(stream, key)) is None:
                await listener.wait(1.0)
        return found

    async def _find_received(self, stream: str, key: str | None) -> tuple[int, str] | None:
        """Return where an event with a key arrived, among the newest events of a stream."""
        for event in await self._store.read(stream, limit=MAX_LOOK_BACK, backward=True):
            meta = event.meta or {}
            if event.kind == "entity.received" and key is not None and meta.get("key") == key:
                return meta["n"], event.id
        return None

    async def _read_until(self, id: str, at: str | datetime) -> Sequence[Event]:
        events = await self._app.events.read_all(self._stream(id))
        if isinstance(at, datetime):
            limit = to_iso(int(at.timestamp() * 1000))
            return [event for event in events if event.ts <= limit]
        index = next((n for n, event in enumerate(events) if isinstance(at, str) and event.id == at), None)
        if index is None:
            raise BadArgument(f"entity {id!r} has no event {shorten(at)}; see app.entities.history")
        return events[: index + 1]


def _hint(state: str, definition: EntityDefinition) -> str:
    near = did_you_mean(state, definition.machine.states)
    return f"{near}{' ' if near else ''}states: {', '.join(definition.machine.states)}"


def _summary(row: RunRow) -> EntitySummary:
    record = records.decode(row.record, row.id)
    waiting = record.waiting + (record.current is not None)
    times = to_iso(row.created), to_iso(row.updated)
    return EntitySummary(row.id, record.urn, row.flow, row.status, *times, row.closed, waiting)


def _value(record: EntityRecord) -> Any:
    return unpack(bytes(record.data)) if bytes(record.data) != NULL else None


def _complete(view: EntityView, row: RunRow, record: EntityRecord, data: Any) -> None:
    """Take from the record what a stream whose oldest events were removed no longer has."""
    view.id, view.urn, view.type, view.status = row.id, record.urn, record.type, record.status
    view.received, view.handled, view.paused = record.received, record.handled, record.paused
    view.created_at = view.created_at or to_iso(row.created)
    if data is not None:
        view.data = data


def _describe(definition: EntityDefinition) -> EntityType:
    machine = definition.machine
    transitions = tuple(
        {"event": list(one.events), "from": list(one.froms), "to": one.to, "isConditional": bool(one.conditions)}
        for one in machine.transitions
    )
    return EntityType(
        definition.name,
        definition.handler.queue_name,
        machine.initial,
        machine.states,
        tuple(state for state in machine.states if state in machine.idles),
        tuple(state for state in machine.states if state in machine.finals),
        machine.failed,
        machine.events,
        transitions,
        dict(definition.batches),
    )
