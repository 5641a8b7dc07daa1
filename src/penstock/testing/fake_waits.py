"""Durable calls and waits of a `FakeContext`: the real ones, with the test as the world that answers them.

Where a handler would go to sleep, time moves on to what comes first: what the test gave, a time that is over, or a
timeout that the test asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from ..core.clock import iso
from ..core.durations import Duration
from ..core.errors import AwaitTimeout, BadArgument, Suspension
from ..core.events import Event
from ..core.json_match import contains
from ..core.payload import pack, to_plain
from ..core.retry import Retries
from ..core.schemas import make_validator
from ..durable.call_recorder import CallRecorder
from ..durable.calls import CallOutcome, DurableCall, RunCall, WaitCall
from ..durable.journal import Journal, JournalCall, JournalEntry, encode
from ..durable.triggers import PendingTrigger, TriggerWait
from ..durable.wait_records import WaitBody, WaitResult
from ..durable.waits import EventWait, TimeWait, TriggerType, Waits
from ..ports.unit import NewJob, WaitChange
from .clock import FakeClock

T = TypeVar("T")
_UNANSWERED = object()


class Waited(NamedTuple):
    """A wait a handler came to: its type, what for, and what it asked besides."""

    type: str
    what: Any
    options: dict[str, Any]


class Ran(NamedTuple):
    """A `ctx.run` of a handler, and the value that is recorded of it."""

    name: str
    value: Any


class Answers:
    """What the test says of a kind of wait. A tuple is given one after the other, anything else each time."""

    def __init__(self, given: Mapping[str, Any] | None) -> None:
        self._given = dict(given or {})
        self._turns: dict[str, int] = {}

    def take(self, *names: str) -> Any:
        name = next((name for name in names if name in self._given), None)
        if name is None:
            return _UNANSWERED
        answer = self._given[name]
        if not isinstance(answer, tuple):
            return answer
        turn = self._turns.get(name, 0)
        self._turns[name] = turn + 1
        return answer[turn] if turn < len(answer) else _UNANSWERED


class _Answered(BaseException):
    """A gate is open now: the call is made once more."""


class FakeDurableSession:
    """The durable side of a handler under test. Nothing is written; the journal keeps the rules of the real one."""

    def __init__(
        self,
        clock: FakeClock,
        about: str,
        run: str | None,
        seed: int,
        events: Mapping[str, Any] | None,
        triggers: Mapping[str, Any] | None,
    ) -> None:
        self.journal = Journal({}, "test", about)
        self.rng = random.Random(seed)
        self.waited: list[Waited] = []
        self.ran: list[Ran] = []
        self.calls = FakeCallRecorder(self)
        self.clock = clock
        self.job = "test"
        self.run = run or ""
        self.since = clock.now_ms()
        self._events = Answers(events)
        self._triggers = Answers(triggers)
        self._taken: dict[object, Any] = {}

    @property
    def waits(self) -> FakeWaits:
        if not self.run:
            raise BadArgument("a job belongs to no run and cannot wait: make it a step of a flow")
        return FakeWaits(self.calls, self)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def check(self) -> None:
        """The attempt is never over."""

    async def flush(self) -> None:
        self.journal.take_writes()

    async def expire(self, changes: Sequence[WaitChange]) -> None:
        self.journal.take_writes()

    def new_wait_body(self, key: str) -> WaitBody:
        return WaitBody(key, self.now_ms)

    def add_step_event(self, kind: str, data: dict[str, Any], trigger: str | None = None) -> None:
        """Only a run has a stream."""

    def add_trigger_event(self, kind: str, id: str, data: dict[str, Any]) -> None:
        """Only a run has a stream."""

    def look_back_job(self, wait: str) -> NewJob:
        raise AssertionError("a handler under test does not sleep")

    def trigger_url(self, token: str) -> str:
        return f"http://test/api/triggers/{token}"

    def suspend(self, waiting: Sequence[WaitCall[Any]]) -> Suspension:
        """Opens what comes first; a gate of which the test says nothing opens never."""
        answers = {gate: self._answer(gate) for gate in waiting}
        given = {gate: answer for gate, answer in answers.items() if answer is not _UNANSWERED and not _late(answer)}
        for gate, answer in given.items():
            self._open(gate, answer)
        if not given:
            self._pass(waiting, answers)
        raise _Answered

    def _answer(self, gate: WaitCall[Any]) -> Any:
        # A trigger may be waited for again and again: its answer is one.
        key = gate._trigger if isinstance(gate, TriggerWait) else gate
        if key not in self._taken:
            if isinstance(gate, EventWait):
                self._taken[key] = self._events.take(gate.name.rpartition("#")[0], gate._event)
            elif isinstance(gate, TriggerWait):
                self._taken[key] = self._triggers.take(gate._trigger.name)
            else:
                self._taken[key] = _UNANSWERED
        return self._taken[key]

    def _open(self, gate: WaitCall[Any], answer: Any) -> None:
        if isinstance(gate, EventWait):
            gate.record_result(WaitResult(self.now_ms, msgspec.Raw(encode(self._event(gate, answer)))))
        elif isinstance(gate, TriggerWait):
            trigger = gate._trigger
            data = pack(answer, f"the payload of trigger {trigger.name!r}")
            if trigger._body.schema is not None:
                make_validator(trigger._body.schema, f"the payload of trigger {trigger.name!r}")(to_plain(answer, "it"))
            trigger.record_result(WaitResult(self.now_ms, msgspec.Raw(data)))

    def _event(self, gate: EventWait, answer: Any) -> Event:
        if isinstance(answer, Event):
            return answer
        data = to_plain(answer, f"the data of {gate._event}")
        if gate._match and not contains(data, gate._match):
            raise AssertionError(f"{gate._event} is waited for with match={gate._match!r}, and the test gives {data!r}")
        now = self.now_ms
        return Event(id=f"{now}-1", ts=iso(now), kind=gate._event, subject="test", data=data)

    def _pass(self, waiting: Sequence[WaitCall[Any]], answers: Mapping[WaitCall[Any], Any]) -> None:
        """Lets time pass until the next gate opens by itself or gives up."""
        due = [gate.due for gate in waiting if isinstance(gate, TimeWait) or _late(answers[gate])]
        if not due:
            raise AssertionError("; ".join(_missing(gate) for gate in waiting))
        if None in due:
            raise AssertionError("AwaitTimeout is given for a wait that has no timeout and would wait for ever")
        self.clock.set_ms(max(self.now_ms, min(moment for moment in due if moment is not None)))


def _late(answer: Any) -> bool:
    return answer is AwaitTimeout or isinstance(answer, AwaitTimeout)


def _missing(gate: WaitCall[Any]) -> str:
    if isinstance(gate, TriggerWait):
        name, given, what = gate._trigger.name, "triggers", "trigger"
    else:
        assert isinstance(gate, EventWait)
        name, given, what = gate._event, "events", "event"
    return (
        f"the step waits for the {what} {name!r}, and the test does not say what comes: give "
        f"FakeContext({given}={{{name!r}: …}}), or AwaitTimeout in place of … if nothing does"
    )


class _FakeRun(RunCall):
    """A function called at once, with or without an event loop."""

    async def _call_once(self) -> Any:
        if self._timeout_s is not None:
            return await super()._call_once()
        value = self._fn()
        return await value if isinstance(value, Coroutine) else value


class FakeCallRecorder(CallRecorder):
    """Durable calls that are made again where a real handler would be."""

    def __init__(self, session: FakeDurableSession) -> None:
        super().__init__(session)
        self._fake = session

    def record(self, call: JournalCall, value: Any, error: str | None = None) -> JournalEntry:
        entry = super().record(call, value, error)
        if call.kind == "run" and error is None:
            self._fake.ran.append(Ran(call.key.rpartition("#")[0], to_plain(value, call.key)))
        return entry

    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        retry: Retries | None,
        timeout: Duration | None,
    ) -> RunCall:
        real = super().run(name, fn, args, kwargs, retry, timeout)
        return _FakeRun(self, real._call, real._fn, real._retry, real._timeout_s)

    async def sleep(self, ms: int) -> None:
        self._fake.clock.advance(ms / 1000)

    def sleep_thread(self, ms: int) -> None:
        self._fake.clock.advance(ms / 1000)

    def uuid(self) -> str:
        return str(self._record_value("uuid", lambda: str(UUID(int=self.rng.getrandbits(128), version=4))))

    async def await_call(self, call: DurableCall[T]) -> T:
        while True:
            try:
                return await super().await_call(call)
            except _Answered:
                continue

    async def await_all(self, calls: Sequence[DurableCall[Any]]) -> list[Any]:
        while True:
            try:
                return await super().await_all(calls)
            except _Answered:
                continue

    async def await_first(self, calls: Mapping[str, DurableCall[Any]], call: JournalCall) -> tuple[str, Any]:
        while True:
            try:
                return await super().await_first(calls, call)
            except _Answered:
                continue

    async def start_calls(self, calls: Sequence[DurableCall[Any]]) -> None:
        """One after the other: a `def` step under test has no loop that could do it together."""
        for call in calls:
            await call.start()

    async def register_waits(self, waits: Sequence[WaitCall[Any]]) -> None:
        """Nothing comes while a function runs."""

    async def run_until(self, due: int | None, runs: Mapping[str, RunCall]) -> dict[str, CallOutcome]:
        """A function takes no time but what it moves the clock by: the first one there is ends first."""
        key, run = next(iter(runs.items()))
        return {key: await run.run_unrecorded()}


class FakeWaits(Waits):
    """The gates of a handler under test, noted."""

    def __init__(self, calls: CallRecorder, session: FakeDurableSession) -> None:
        super().__init__(calls, session)
        self._waited = session.waited

    def time(self, until: Duration | datetime, *, name: str = "time") -> TimeWait:
        gate = super().time(until, name=name)
        self._waited.append(Waited("time", until, {}))
        return gate

    def event(
        self,
        kind: str,
        *,
        match: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        past: bool = True,
    ) -> EventWait:
        gate = super().event(kind, match=match, timeout=timeout, name=name, past=past)
        self._waited.append(Waited("event", kind, _given(match=match, timeout=timeout)))
        return gate

    def trigger(
        self,
        name: str,
        *,
        type: TriggerType = "webhook",
        timeout: Duration | None = None,
        schema: Mapping[str, Any] | None = None,
        signed: str | None = None,
    ) -> PendingTrigger:
        pending = super().trigger(name, type=type, timeout=timeout, schema=schema, signed=signed)
        self._waited.append(Waited("trigger", name, _given(timeout=timeout, schema=schema, signed=signed)))
        return pending


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
