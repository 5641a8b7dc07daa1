"""Forking: start a new run from the history of another one, up to an event.

The events up to that point are copied into the new stream, marked `copied`, so that reducers, views and exports need
not know of forks. The run record is not copied: the loaded code decides again on those events. Steps that were open at
that point are started again, without memos.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from ..commit.command_sink import DirectSink
from ..commit.committer import CommitRequest
from ..context.state import OWN_KEYS
from ..context.state_events import hash_value
from ..core.clock import datetime_to_ms
from ..core.errors import CannotFork
from ..core.events import RESERVED_PREFIXES, Event, EventBody
from ..core.ids import event_seq
from ..core.payload import pack
from ..core.redaction import REDACTED
from ..handlers.registry import Flow
from ..handlers.trigger_table import encode as encode_table
from ..ports.store import RunRow
from ..ports.unit import Committed, Conflict, NewEvent, Receipt, StateWrite, Unit
from .decide import Decider, Decision, Emission, EndedStep, StepStart
from .engine import FlowEngine, table_key
from .record_parts import move_parts
from .run_record import RUNNING, RunRecord, encode
from .run_record import decode as decode_record

_Instance = tuple[str, int]
_DECIDED_FAILURES = ("subscription_failed", "run_limit")  # failures that no attempt reported


class ReplayedPast:
    """Rebuilds a run record by deciding again on the first events of another run."""

    def __init__(self, engine: FlowEngine, flow: Flow, old: str, new: str, record: RunRecord) -> None:
        self.record = record
        self.copied: list[Event] = []
        self.open: dict[_Instance, StepStart] = {}
        self.last_open: str | None = None  # the last event after which a step was open
        self._engine = engine
        self._flow = flow
        self._old = old
        self._new = new
        self._ended: dict[_Instance, StepStart] = {}
        self._emissions: dict[_Instance, list[Event]] = {}  # of steps whose attempt has not ended yet
        self._timed_out: set[_Instance] = set()
        self._unreadable: Event | None = None  # the last event that cannot be read

    def apply(self, event: Event) -> None:
        """Apply one more event. What an unreadable one recorded is missing: later events show whether it matters."""
        if event.is_unreadable:
            self._unreadable = event
            self.copied.append(event)
            return
        if self._unreadable is not None and event.kind == "step.started" and _instance(event) not in self.open:
            raise CannotFork(
                f"run {self._old!r} cannot be forked here, because its event {self._unreadable.id} cannot be read and "
                f"step {event.step!r} started because of it. Fork it at an earlier event"
            )
        facts = {
            "flow.started": self._on_started,
            "step.completed": self._on_completed,
            "step.failed": self._on_failed,
            "step.redriven": self._on_redriven,
            "flow.cancelled": self._on_cancelled,
        }
        if not event.kind.startswith(RESERVED_PREFIXES):
            self._on_emitted(event)
            if event.step is not None:
                return
        elif event.kind in facts:
            facts[event.kind](event)
        elif event.kind == "step.await.timeout":
            self._timed_out.add(_instance(event))
        elif event.kind.startswith("step.await.") and event.kind != "step.await.cancelled":
            self._on_suspended(event)
        self.copied.append(event)
        if self.open and not self.record.closed:
            self.last_open = event.id

    def _on_started(self, event: Event) -> None:
        data = event.data if isinstance(event.data, dict) else {}
        self._accept(self._decider().on_start(encode(data.get("input")), f"fork of {self._old}"))

    def _on_emitted(self, event: Event) -> None:
        if event.step is not None:
            # It counts once its attempt has ended: otherwise the step runs again and emits it again.
            self._emissions.setdefault(_emitter(event), []).append(event)
            return
        self._accept(self._decider().on_event(self._emission(event), f"fork of {self._old}"))

    def _on_suspended(self, event: Event) -> None:
        emitted = self._emissions.pop(_instance(event), [])
        if emitted:
            emissions = [self._emission(one) for one in emitted]
            self._accept(self._decider().on_suspended(self._ended_step(event), emissions))
            self.copied += emitted

    def _on_completed(self, event: Event) -> None:
        key, emitted = _instance(event), self._emissions.pop(_instance(event), [])
        ended = self._ended_step(event)
        result = event.data.get("result") if isinstance(event.data, dict) else None
        emissions = [self._emission(one) for one in emitted]
        self._accept(self._decider().on_completed(ended, encode(result), emissions, self._timeout_step(event)), key)
        self.copied += emitted

    def _on_failed(self, event: Event) -> None:
        data = event.data if isinstance(event.data, dict) else {}
        if data.get("willRetry") is False and data.get("code") not in _DECIDED_FAILURES:
            self._emissions.pop(_instance(event), None)
            error = {key: value for key, value in data.items() if key != "willRetry"}
            self._accept(self._decider().on_failed(self._ended_step(event), error, 0), _instance(event))

    def _on_redriven(self, event: Event) -> None:
        key = _instance(event)
        start = self._ended.pop(key, None)
        if start is None:
            raise self._does_not_follow(event)
        self._accept(self._decider().on_redrive(*key, ""))
        self.open[key] = start

    def _on_cancelled(self, _event: Event) -> None:
        self._accept(self._decider().on_cancel(""))
        self.open.clear()

    def _timeout_step(self, event: Event) -> str | None:
        """Return the step that took over from one whose declared wait expired."""
        step = self._flow.steps.get(event.step or "")
        name = step.on_timeout if step is not None and _instance(event) in self._timed_out else None
        return name if name in (event.meta or {}).get("starts", ()) else None

    def _ended_step(self, event: Event) -> EndedStep:
        step, n = _instance(event)
        start, meta = self.open.get((step, n)), event.meta or {}
        if start is None:
            raise self._does_not_follow(event)
        return EndedStep(
            step, n, f"{self._old}.{step}.{n}", meta.get("attempt", 1), start.input, meta.get("duration", 0)
        )

    def _does_not_follow(self, event: Event) -> CannotFork:
        return CannotFork(
            f"run {self._old!r} cannot be forked here: the loaded code would not produce event {event.id} "
            f"({event.kind} of step {event.step!r}). Fork it at an earlier event"
        )

    def _emission(self, event: Event) -> Emission:
        data = encode(event.data)
        if REDACTED.encode() in data and self._flow.table.listeners(event.kind):
            raise CannotFork(redacted_problem(self._old, f"the data of {event.kind} ({event.id})"))
        corr = event.correlation_id if event.correlation_id != self._old else None
        return Emission(event.kind, data, corr)

    def _decider(self) -> Decider:
        return self._engine.decider(self._new, self.record, self._flow.table, keeps_all=True)

    def _accept(self, decision: Decision, ended: _Instance | None = None) -> None:
        self.record = decision.record
        if ended is not None:
            self._ended[ended] = self.open.pop(ended)
        for start in decision.starts:
            self.open[(start.step, start.n)] = start


class RunForker:
    """Starts runs from the history of others."""

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self._sink = DirectSink(engine.runtime.committer)
        self._store = engine.runtime.store

    async def fork(self, row: RunRow, at: str, new: str, flow: Flow) -> None:
        """Start the run `new` in the state of `row` just after the event `at`. Forking again changes nothing."""
        events = await self._events(row.id, at)
        past = self._replay(row, events, new, flow)
        state = await self._state(row.id, new, events[-1].seq)
        pin = past.record.table
        if pin is not None:
            state.append(StateWrite(table_key(pin), encode_table(flow.table)))
        unit_id = self._engine.new_unit_id()

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            return (
                self._unit(unit_id, past, row.id, events[-1].id, new, flow, state) if not version else Conflict(1, data)
            )

        receipt = await self._sink.submit(CommitRequest(build, run=new))
        if not isinstance(receipt, Committed):
            await self._check_same(row.id, events[-1].id, new)

    def _stream(self, run: str) -> str:
        return self._engine.bodies.flow(run)

    async def _events(self, run: str, at: str) -> list[Event]:
        stream, last = self._stream(run), event_seq(at)
        events: list[Event] = []
        while page := await self._store.read(
            stream, after=events[-1].id if events else None, before=f"0-{last + 1}", limit=1000
        ):
            events += page
        while events and events[-1].seq != last:  # what another program added after it
            events.pop()
        if not events or events[-1].seq != last or at not in (events[-1].id, f"0-{last}"):
            raise CannotFork(f"run {run!r} has no event {at!r}; run `penstock events {run}` to see its events")
        if events[0].kind != "flow.started":
            problem = "event cannot be read" if events[0].is_unreadable else "events were removed"
            raise CannotFork(f"run {run!r} cannot be forked, because its first {problem}; start a new run")
        return events

    def _replay(self, row: RunRow, events: list[Event], new: str, flow: Flow) -> ReplayedPast:
        old = decode_record(row.record, row.id)
        version = flow.definition.version
        record = RunRecord(
            flow.name,
            old.correlation_id if old.correlation_id != row.id else new,
            self._engine.clock.now_ms(),
            priority=old.priority,
            table=flow.table.fingerprint if version is not None else None,
            version=version,
            tags=old.tags,
            attributes=old.attributes,
        )
        past = ReplayedPast(self._engine, flow, row.id, new, record)
        for event in events:
            past.apply(event)
        past.copied.sort(key=lambda event: event.seq)  # what a step emitted was held until its attempt had ended
        if past.record.closed or not past.open:
            hint = f"; fork it at {past.last_open} or earlier" if past.last_open is not None else ""
            raise CannotFork(
                f"run {row.id!r} cannot be forked at event {events[-1].id}, because no step was left to run "
                f"after it{hint}"
            )
        for start in past.open.values():
            if REDACTED.encode() in start.input:
                raise CannotFork(redacted_problem(row.id, f"the input of step {start.step!r}"))
        if REDACTED.encode() in encode(past.record):
            raise CannotFork(redacted_problem(row.id, "the result of a step"))
        return past

    async def _state(self, old: str, new: str, last: int) -> list[StateWrite]:
        """Copy the state of a run as it was after its event number `last`. Keys without events are copied as they are
        now: they were not changed since, or state changes were not recorded."""
        prefix, after = f"run/{old}/", None
        values: dict[str, StateWrite] = {}
        while rows := await self._store.states(prefix, after=after, limit=500):
            after = rows[-1].key
            values.update(
                (key := row.key.removeprefix(prefix), StateWrite(f"run/{new}/{key}", row.value, expires=row.expires))
                for row in rows
                if not row.key.startswith(prefix + OWN_KEYS)  # the replay makes its own
            )
        changes = await self._state_changes(old, last)
        for key, event in changes.items():
            write = _restore(old, new, key, event, values.pop(key, None))
            if write is not None:
                values[key] = write
        return list(values.values())

    async def _state_changes(self, run: str, last: int) -> dict[str, Event | None]:
        """Return the keys that changed after an event, each with its last change up to that event, if there is one."""
        before: dict[str, Event] = {}
        changed: dict[str, Event | None] = {}
        after: str | None = None
        while page := await self._store.read(self._stream(run), after=after, limit=1000):
            after = page[-1].id
            for event in page:
                if event.kind in ("state.set", "state.deleted") and isinstance(event.data, dict):
                    key = str(event.data.get("key"))
                    if event.seq <= last:
                        before[key] = event
                    else:
                        changed.setdefault(key, before.get(key))
        return changed

    def _unit(
        self, unit_id: str, past: ReplayedPast, old: str, at: str, new: str, flow: Flow, state: list[StateWrite]
    ) -> Unit:
        record, stream = past.record, self._engine.bodies.flow(new)
        data: dict[str, Any] = {"from": old, "at": at, "status": record.status}
        if record.version is not None:
            data["version"] = record.version
        forked = EventBody("flow.forked", correlation_id=record.event_correlation(new), data=msgspec.Raw(encode(data)))
        parts = move_parts(new, record) if record.status == RUNNING else []
        decision = Decision(record, [forked], list(past.open.values()))
        builder = self._engine.unit_builder(new, record, flow.table)
        # Copies are not delivered: the waits for those events have received the originals.
        copies = [NewEvent(stream, self._engine.bodies.encode(copy_event(event, old))) for event in past.copied]
        return Unit(
            unit_id,
            run=builder.run_write(decision, 0),
            events=[*copies, *builder.events(decision)],
            jobs=builder.jobs(decision),
            state=state + parts,
        )

    async def _check_same(self, old: str, at: str, new: str) -> None:
        wanted, after = (old, at), None
        while page := await self._store.read(self._stream(new), after=after, limit=1000):
            after = page[-1].id
            forks = [event.data for event in page if event.kind == "flow.forked" and isinstance(event.data, dict)]
            if any((fork.get("from"), fork.get("at")) == wanted for fork in forks):
                return
        raise CannotFork(f"run {new!r} already exists and is not the fork of {old!r} at {at}; use another key")


def _restore(run: str, new: str, key: str, event: Event | None, now: StateWrite | None) -> StateWrite | None:
    """Return the write that gives a key the value that an event recorded; None if the key was absent then."""
    if event is None or event.kind == "state.deleted":
        return None
    data = event.data
    value = pack(data["value"], f"state {key}") if "value" in data else None
    if value is None and now is not None and now.value is not None and hash_value(now.value) == data.get("hash"):
        value = now.value
    if value is None or REDACTED.encode() in value:
        raise CannotFork(
            f"run {run!r} cannot be forked there: its state key {key!r} changed later, and the stream has the earlier "
            "value only as a hash or redacted. Fork it after that change, or start a new run"
        )
    expires = datetime_to_ms(datetime.fromisoformat(data["expires"])) if "expires" in data else None
    return StateWrite(f"run/{new}/{key}", value, expires=expires)


def redacted_problem(run: str, what: str) -> str:
    return (
        f"run {run!r} cannot be forked here, because {what} was recorded with its secrets redacted and cannot be "
        f"used again. Fork it at a later event, or run `penstock runs replay {run} --input …`"
    )


def copy_event(event: Event, old: str) -> EventBody:
    meta = {key: value for key, value in (event.meta or {}).items() if key != "jobId"}  # that job is not this run's
    corr = event.correlation_id if event.correlation_id != event.subject else None
    subject = event.subject if event.subject != old else None
    data = msgspec.Raw(encode(event.data)) if event.data is not None else None
    return EventBody(event.kind, subject, None, event.step, event.trigger, corr, data, {**meta, "copied": event.id})


def _instance(event: Event) -> _Instance:
    return event.step or "", (event.meta or {}).get("n", 1)


def _emitter(event: Event) -> _Instance:
    """Return the step instance that emitted an event, read from the id of its job."""
    job = str((event.meta or {}).get("causationId", ""))
    n = job.partition(".redrive-")[0].rpartition(".")[2]
    return event.step or "", int(n) if n.isdecimal() else 1
