"""Forking: a new run whose past is that of another one up to an event, and which goes on from there by itself.

The events of that past are copied into the new stream, marked `copied`: whoever folds, shows or exports a stream sees
the whole run without knowing of forks. The record is not copied but decided anew from the facts those events tell, by
the present code; what was open at that point is started anew, with no memos.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..commit.committer import CommitRequest
from ..core.errors import CannotFork
from ..core.events import RESERVED_PREFIXES, Event, EventBody
from ..core.ids import event_seq
from ..core.redaction import REDACTED
from ..handlers.registry import Flow
from ..handlers.trigger_table import encode as encode_table
from ..ports.store import RunRow
from ..ports.unit import Committed, Conflict, NewEvent, Receipt, StateWrite, Unit
from .decide import Decider, Decision, Emission, EndedStep, StepStart
from .engine import FlowEngine, table_key
from .run_record import RunRecord, encode
from .run_record import decode as decode_record

_Instance = tuple[str, int]
_MADE_BY_DECIDING = ("subscription_failed", "run_limit")  # failures no attempt reported


class ReplayedPast:
    """The facts of a run's first events, told to deciders again."""

    def __init__(self, engine: FlowEngine, flow: Flow, old: str, new: str, record: RunRecord) -> None:
        self.record = record
        self.copied: list[Event] = []
        self.open: dict[_Instance, StepStart] = {}
        self.last_open: str | None = None  # the last event after which there was something to do
        self._engine = engine
        self._flow = flow
        self._old = old
        self._new = new
        self._ended: dict[_Instance, StepStart] = {}
        self._said: dict[_Instance, list[Event]] = {}  # what steps emitted whose attempt has not ended yet
        self._late: set[_Instance] = set()

    def apply(self, event: Event) -> None:
        """Takes one more event into account."""
        facts = {
            "flow.started": self._begun,
            "step.completed": self._completed,
            "step.failed": self._failed,
            "step.redriven": self._redriven,
            "flow.cancelled": self._cancelled,
        }
        if not event.kind.startswith(RESERVED_PREFIXES):
            self._emitted(event)
            if event.step is not None:
                return
        elif event.kind in facts:
            facts[event.kind](event)
        elif event.kind == "step.await.timeout":
            self._late.add(_instance(event))
        elif event.kind.startswith("step.await."):
            self._suspended(event)
        self.copied.append(event)
        if self.open and not self.record.closed:
            self.last_open = event.id

    def _begun(self, event: Event) -> None:
        data = event.data if isinstance(event.data, dict) else {}
        self._take(self._decider().on_start(_packed(data.get("input")), f"fork of {self._old}"))

    def _emitted(self, event: Event) -> None:
        if event.step is not None:
            # It counts once its attempt is known to have ended: else the step is run anew and emits it again.
            self._said.setdefault(_cause(event), []).append(event)
            return
        self._take(self._decider().on_event(self._emission(event), f"fork of {self._old}"))

    def _suspended(self, event: Event) -> None:
        key = _instance(event)
        said = self._said.pop(key, [])
        if said:
            self._take(self._decider().on_suspended(self._end(event), [self._emission(one) for one in said]))
            self.copied += said

    def _completed(self, event: Event) -> None:
        key, said = _instance(event), self._said.pop(_instance(event), [])
        ended = self._end(event)
        result = event.data.get("result") if isinstance(event.data, dict) else None
        emissions = [self._emission(one) for one in said]
        self._take(self._decider().on_completed(ended, _packed(result), emissions, self._divert(event)), key)
        self.copied += said

    def _failed(self, event: Event) -> None:
        data = event.data if isinstance(event.data, dict) else {}
        if data.get("willRetry") is False and data.get("code") not in _MADE_BY_DECIDING:
            self._said.pop(_instance(event), None)
            error = {key: value for key, value in data.items() if key != "willRetry"}
            self._take(self._decider().on_failed(self._end(event), error, 0), _instance(event))

    def _redriven(self, event: Event) -> None:
        key = _instance(event)
        start = self._ended.pop(key, None)
        if start is None:
            raise self._unfit(event)
        self._take(self._decider().on_redrive(*key, ""))
        self.open[key] = start

    def _cancelled(self, _event: Event) -> None:
        self._take(self._decider().on_cancel(""))
        self.open.clear()

    def _divert(self, event: Event) -> str | None:
        """The step that took over from one whose declared wait was in vain."""
        step = self._flow.steps.get(event.step or "")
        name = step.on_timeout if step is not None and _instance(event) in self._late else None
        return name if name in (event.meta or {}).get("starts", ()) else None

    def _end(self, event: Event) -> EndedStep:
        step, n = _instance(event)
        start, meta = self.open.get((step, n)), event.meta or {}
        if start is None:
            raise self._unfit(event)
        return EndedStep(
            step, n, f"{self._old}.{step}.{n}", meta.get("attempt", 1), start.input, meta.get("duration", 0)
        )

    def _unfit(self, event: Event) -> CannotFork:
        return CannotFork(
            f"run {self._old!r} cannot be forked: its event {event.id} ({event.kind} of step {event.step!r}) does not "
            "follow from the ones before it by the present code: fork it at an event before that one"
        )

    def _emission(self, event: Event) -> Emission:
        data = _packed(event.data)
        if REDACTED.encode() in data and self._flow.table.listeners(event.kind):
            raise CannotFork(hidden(self._old, f"the data of {event.kind} ({event.id})"))
        corr = event.correlation_id if event.correlation_id != self._old else None
        return Emission(event.kind, data, corr)

    def _decider(self) -> Decider:
        return self._engine.decider(self._new, self.record, self._flow.table)

    def _take(self, decision: Decision, ended: _Instance | None = None) -> None:
        self.record = decision.record
        if ended is not None:
            self._ended[ended] = self.open.pop(ended)
        for start in decision.starts:
            self.open[(start.step, start.n)] = start


class RunForker:
    """Makes runs out of the past of others."""

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self._committer = engine.runtime.committer
        self._store = engine.runtime.store

    async def fork(self, row: RunRow, at: str, new: str, flow: Flow) -> None:
        """Begins the run `new` as `row` was just after the event `at`; does nothing if it has done so before."""
        events = await self._events(row.id, at)
        past = self._replay(row, events, new, flow)
        state = await self._state(row.id, new)
        pin = past.record.table
        if pin is not None:
            state.append(StateWrite(table_key(pin), encode_table(flow.table)))
        unit_id = self._engine.new_unit_id()

        def build(version: int, data: bytes | None) -> Unit | Receipt:
            return (
                self._unit(unit_id, past, row.id, events[-1].id, new, flow, state) if not version else Conflict(1, data)
            )

        receipt = await self._committer.submit(CommitRequest(build, run=new))
        if not isinstance(receipt, Committed):
            await self._check_same(row.id, events[-1].id, new)

    async def _events(self, run: str, at: str) -> list[Event]:
        stream, last = self._engine.bodies.flow(run), event_seq(at)
        events: list[Event] = []
        while page := await self._store.read(
            stream, after=events[-1].id if events else None, before=f"0-{last + 1}", limit=1000
        ):
            events += page
        if not events or events[-1].seq != last or at not in (events[-1].id, f"0-{last}"):
            raise CannotFork(f"{at!r} is not an event of run {run!r}: `penstock events {run}` lists them")
        if events[0].kind != "flow.started":
            raise CannotFork(f"run {run!r} has lost its first events, so it cannot be forked: start a new run")
        return events

    def _replay(self, row: RunRow, events: list[Event], new: str, flow: Flow) -> ReplayedPast:
        old = decode_record(row.record)
        version = flow.definition.version
        record = RunRecord(
            flow.name,
            old.correlation_id if old.correlation_id != row.id else new,
            self._engine.clock.now_ms(),
            priority=old.priority,
            table=flow.table.fingerprint if version is not None else None,
            version=version,
            tags=old.tags,
        )
        past = ReplayedPast(self._engine, flow, row.id, new, record)
        for event in events:
            past.apply(event)
        if past.record.closed or not past.open:
            hint = f": fork it at {past.last_open}, or before" if past.last_open is not None else ""
            raise CannotFork(f"after event {events[-1].id} of run {row.id!r} nothing was left to do{hint}")
        for start in past.open.values():
            if REDACTED.encode() in start.input:
                raise CannotFork(hidden(row.id, f"the input of step {start.step!r}"))
        if REDACTED.encode() in encode(past.record):
            raise CannotFork(hidden(row.id, "the result of a step"))
        return past

    async def _state(self, old: str, new: str) -> list[StateWrite]:
        """The state of a run as it is now: what it was at an earlier event is recorded nowhere."""
        prefix, after = f"run/{old}/", None
        writes: list[StateWrite] = []
        while rows := await self._store.states(prefix, after=after, limit=500):
            after = rows[-1].key
            writes += [
                StateWrite(f"run/{new}/{row.key.removeprefix(prefix)}", row.value, expires=row.expires) for row in rows
            ]
        return writes

    def _unit(
        self, unit_id: str, past: ReplayedPast, old: str, at: str, new: str, flow: Flow, state: list[StateWrite]
    ) -> Unit:
        record, stream = past.record, self._engine.bodies.flow(new)
        data: dict[str, Any] = {"from": old, "at": at, "status": record.status}
        if record.version is not None:
            data["version"] = record.version
        forked = EventBody("flow.forked", correlation_id=record.event_correlation(new), data=msgspec.Raw(encode(data)))
        decision = Decision(record, [forked], list(past.open.values()))
        assembler = self._engine.unit_builder(new, record, flow.table)
        # The copies are told to nobody: whoever waited for those events has had them.
        copies = [NewEvent(stream, self._engine.bodies.encode(_copy(event, old))) for event in past.copied]
        return Unit(
            unit_id,
            run=assembler.run_write(decision, 0),
            events=[*copies, *assembler.events(decision)],
            jobs=assembler.jobs(decision),
            state=state,
        )

    async def _check_same(self, old: str, at: str, new: str) -> None:
        wanted, after = (old, at), None
        while page := await self._store.read(self._engine.bodies.flow(new), after=after, limit=1000):
            after = page[-1].id
            forks = [event.data for event in page if event.kind == "flow.forked" and isinstance(event.data, dict)]
            if any((fork.get("from"), fork.get("at")) == wanted for fork in forks):
                return
        raise CannotFork(f"run {new!r} exists and is not the fork of {old!r} at {at}: use another key")


def hidden(run: str, what: str) -> str:
    return (
        f"run {run!r} cannot be forked there: {what} was recorded with its secrets hidden, so it cannot be used again: "
        f"fork it at a later event, or `penstock runs replay {run} --input …`"
    )


def _copy(event: Event, old: str) -> EventBody:
    meta = {key: value for key, value in (event.meta or {}).items() if key != "jobId"}  # the job is the other run's
    corr = event.correlation_id if event.correlation_id != event.subject else None
    subject = event.subject if event.subject != old else None
    data = msgspec.Raw(encode(event.data)) if event.data is not None else None
    return EventBody(event.kind, subject, None, event.step, event.trigger, corr, data, {**meta, "copied": event.id})


def _instance(event: Event) -> _Instance:
    return event.step or "", (event.meta or {}).get("n", 1)


def _cause(event: Event) -> _Instance:
    """The instance of a step that emitted an event, from the id of its job."""
    job = str((event.meta or {}).get("causationId", ""))
    n = job.partition(".redrive-")[0].rpartition(".")[2]
    return event.step or "", int(n) if n.isdecimal() else 1


def _packed(value: Any) -> bytes:
    return encode(value)
