"""The entity engine: opens claims of events and folds the streams of entities."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from ..commit.command_sink import CommandSink, DirectSink
from ..commit.runtime import Runtime
from ..context.context import Context
from ..core.errors import RunError, UnknownEntity, UnreadableRecord
from ..core.events import Event
from ..core.near_match import did_you_mean
from ..core.payload import DECODE_ERRORS
from ..core.text import shorten
from ..handlers.entities import EntityDefinition
from ..handlers.handler import Handler
from ..jobs.engine import missing_handler
from ..ports.runner import Runner
from ..ports.store import JobRow
from ..ports.unit import ENTITY, Claim, NewJob
from ..worker.child_runs import RunStart
from ..worker.engines import PreflightProblem, RecordSummary, RunOutcome
from ..worker.outcomes import Launcher
from ..worker.unreadable import mark_options
from . import record as records
from .decide import Rules, take
from .event_work import EventWork, UnreadableEntityWork
from .execution import Execution, load_entity
from .record import MAX_INLINE_EVENTS, EntityRecord, Mail, TakenMail, decode_mail, mailbox_prefix
from .reducer import EntityView, apply_entity, reduce_entity
from .units import EVENT, EventOptions, UnitBuilder, decode_options, job_id

if TYPE_CHECKING:
    from .commands import EntityCommands


MAX_HANDLERS = 1_000


class EntityEngine:
    """Runs entities. Their definitions come from the registry."""

    kind = ENTITY
    view_type = EntityView

    def __init__(self, runtime: Runtime, launcher: Launcher | None = None) -> None:
        self.runtime = runtime
        self.launcher = launcher
        self.bodies = runtime.bodies
        self.clock = runtime.clock
        self.new_unit_id = runtime.new_unit_id
        self.public_url = runtime.public_url
        self._handlers: dict[tuple[str, str, bool], tuple[EntityDefinition, Handler]] = {}

    # Work

    async def open(self, claim: Claim) -> EventWork:
        assert claim.run is not None
        assert claim.record is not None
        id = claim.run
        try:
            record = records.decode(claim.record, id)
        except UnreadableRecord as problem:
            return UnreadableEntityWork(self, claim, problem)
        try:
            options = decode_options(claim.opts)
        except DECODE_ERRORS as problem:
            claim, options = mark_options(claim, problem), EventOptions(record.current or 0, "")
        if options.event is not None:
            if options.count > 1 and not _has_payloads(claim.payload, options.count):
                damaged = UnreadableRecord(f"job {claim.job!r} does not have the payloads of {options.count} events")
                return UnreadableEntityWork(self, claim, damaged)
            payload = msgspec.Raw(claim.payload)
            mail = TakenMail(options.n, options.event, payload, options.trace, options.count)
            return self._bind(claim, record, mail, ())
        mails = await self._read_spilled(id)
        own = next((mail for mail in mails if mail.n == options.n), None)
        if own is None:
            lost = UnreadableRecord(f"event {options.n} of entity {id!r} is not in the store any more")
            return UnreadableEntityWork(self, claim, lost)
        claim = msgspec.structs.replace(claim, payload=bytes(own.payload))
        return self._bind(claim, record, take(own), [mail for mail in mails if mail.n > own.n])

    async def _read_spilled(self, id: str) -> list[Mail]:
        """Return the first events that wait in the state."""
        rows = await self.runtime.store.states(mailbox_prefix(id), limit=MAX_INLINE_EVENTS)
        return [decode_mail(row.value) for row in rows]

    def _bind(self, claim: Claim, record: EntityRecord, mail: TakenMail, loaded: Sequence[Mail]) -> EventWork:
        definition = self.runtime.registry().entities.get(record.type)
        if definition is None:
            handler = missing_handler(record.type, claim.queue, self.unknown_type(record.type))
            return EventWork(self, claim, record, mail, handler, loaded)
        rules = Rules(definition.machine.finals, definition.batches)
        work = EventWork(self, claim, record, mail, definition.handler, loaded, rules)
        work.handler = self._handler_of(definition, mail.event, is_batch=mail.count > 1)
        return work

    def _handler_of(self, definition: EntityDefinition, event: str, *, is_batch: bool) -> Handler:
        """Return the handler of an event, or of several at a time. It is made once, and again for a reloaded file."""
        key = (definition.name, event, is_batch)
        known = self._handlers.get(key)
        if known is None or known[0] is not definition:
            if len(self._handlers) >= MAX_HANDLERS:  # a fallback takes events of any name
                self._handlers.clear()
            known = self._handlers[key] = (definition, _bind_handler(definition, event, is_batch=is_batch))
        return known[1]

    # Definitions

    def definition(self, type: str) -> EntityDefinition:
        """Return the definition of a type. Raise UnknownEntity with the nearest one."""
        found = self.runtime.registry().entities.get(type)
        if found is None:
            raise self.unknown_type(type)
        return found

    def unknown_type(self, type: str) -> UnknownEntity:
        known = sorted(self.runtime.registry().entities)
        hint = did_you_mean(type, known) or f"known types: {', '.join(known) or 'none'}"
        return UnknownEntity(f"no entity of type {shorten(type)} is defined here; {hint}")

    def find_type(self, urn: str) -> EntityDefinition:
        """Return the definition that a urn belongs to, by its prefix. Raise UnknownEntity if there is none."""
        entities = self.runtime.registry().entities
        found = [one for one in entities.values() if one.owns(urn)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(entities)) or "none"
        raise UnknownEntity(f"the type of {shorten(urn)} is not known; pass type=, or --type, one of: {known}")

    async def start(self, start: RunStart, sink: CommandSink) -> bool:  # noqa: ARG002
        raise RunError(f"{start.flow!r} is an entity, which is not started; emit an event to it")

    @cached_property
    def commands(self) -> EntityCommands:
        """Commands that write straight to the store."""
        from .commands import EntityCommands  # it builds on this module

        return EntityCommands(self, DirectSink(self.runtime.committer))

    def unit_builder(self, id: str) -> UnitBuilder:
        return UnitBuilder(id, self.bodies)

    async def load_data(self, definition: EntityDefinition | None, record: EntityRecord) -> Any:
        """Return the data of an entity, as an object of its model or from its service."""
        if definition is None:
            return msgspec.json.decode(bytes(record.data))
        return await load_entity(definition, record)

    # What the facets of App ask

    def view(self, events: Sequence[Event]) -> EntityView:
        """Fold the events of an entity."""
        return reduce_entity(events)

    def apply_event(self, view: EntityView, event: Event) -> None:
        """Apply one more event to a view."""
        apply_entity(view, event)

    def finish_view(self, view: EntityView) -> None:
        """Leave the view as it is."""

    def result(self, record: bytes) -> bytes | None:
        """Return the data of an entity as JSON."""
        return bytes(records.decode(record).data)

    def outcome(self, record: bytes) -> RunOutcome:
        return RunOutcome(self.result(record))

    def job_ids(self, run: str, record: bytes) -> list[str]:
        """Return the id of the job that an entity has."""
        current = records.decode(record, run).current
        return [job_id(run, current)] if current is not None else []

    async def check(self, claim: Claim, runner: Runner) -> list[PreflightProblem]:  # noqa: ARG002
        """Return why the loaded code cannot continue an entity: its type or its state is missing."""
        assert claim.run is not None
        assert claim.record is not None
        record = records.decode(claim.record, claim.run)
        definition = self.runtime.registry().entities.get(record.type)
        n = record.current or 0
        if definition is None:
            missing = self.unknown_type(record.type)
            return [PreflightProblem(claim.run, record.type, EVENT, n, missing.code, str(missing))]
        if record.status in definition.machine.states:
            return []
        reason = f"it is in state {record.status!r}, which {record.type!r} no longer has"
        return [PreflightProblem(claim.run, record.type, EVENT, n, "unknown_state", reason)]

    def instance(self, job: JobRow) -> tuple[str, int]:
        """Return the event of a job, and its number."""
        try:
            options = decode_options(job.opts)
        except DECODE_ERRORS:
            return EVENT, 1
        return options.event or EVENT, options.n

    def read_record(self, record: bytes) -> RecordSummary:
        """Return what lists show of an entity."""
        known = records.decode(record)
        open_jobs = 0 if known.current is None else 1
        return RecordSummary(known.paused, (), known.type, known.status, known.closed, open_jobs)

    def index_keys(self, run: str, record: bytes) -> tuple[str, ...]:
        """Return no keys: an entity is found by its id, which its urn gives."""
        records.decode(record, run)
        return ()

    def check_record(self, record: bytes) -> None:
        """Raise if this engine cannot have written a record."""
        known = records.decode(record)
        numbers = [mail.n for mail in known.mailbox]
        is_ordered = numbers == sorted(numbers) and all(n <= known.received for n in numbers)
        if not is_ordered or (known.current is None and known.waiting):
            raise UnreadableRecord("the record is not one of an entity: its mailbox is wrong")

    def restore_job(self, run: str, record: bytes, job: NewJob) -> NewJob:
        """Return an exported job with the `entity.started` event that its claim appends."""
        records.decode(record, run)
        return self.unit_builder(run).restore_job(job)

    def explain(self, record: bytes) -> list[str]:
        """Return sentences on what the entity waits for."""
        known = records.decode(record)
        if known.current is None:
            return [f"it is in state {known.status!r} and waits for an event"]
        return [f"event {known.current} is being handled; {known.waiting} more wait"] if known.waiting else []


def _has_payloads(payload: bytes, count: int) -> bool:
    try:
        return len(msgspec.json.decode(payload, type=list[msgspec.Raw])) == count
    except DECODE_ERRORS:
        return False


def _bind_handler(definition: EntityDefinition, event: str, *, is_batch: bool) -> Handler:
    """Return the handler of an event, or of several. A copy: the options are read once."""

    async def handle(payload: Any, ctx: Context) -> None:
        work: EventWork = ctx._channel.work  # type: ignore[attr-defined]
        work.handled = await Execution(definition, work.claim.run or "", work.record, work.mail, ctx, payload).run()

    def check(value: Any) -> Any:
        if event not in definition.batches and not is_batch:
            return definition.check_payload(event, value)
        return definition.check_payloads(event, value if is_batch else [value])

    bound = copy.copy(definition.handler)
    object.__setattr__(bound, "fn", handle)
    object.__setattr__(bound, "_checks", (check, None))
    if is_batch:  # those that fail together are handled one by one
        object.__setattr__(bound, "dead_letters", False)
    return bound
