"""Durable calls and waits of a `FakeContext`: the real ones, answered by the test.

Where a handler would suspend, the clock moves to what comes first: an answer of the test, the end of a time wait, or
a timeout that the test asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from ..core.clock import to_iso
from ..core.durations import Duration
from ..core.errors import AwaitTimeout, BadArgument, ChildFailed, SchemaViolation, Suspension
from ..core.events import Event
from ..core.json_match import contains
from ..core.payload import pack, to_plain
from ..core.retry import RetryOption
from ..core.schemas import convert_result, make_validator
from ..core.text import shorten
from ..durable.call_events import CallEvents, CallTimer
from ..durable.call_recorder import CallRecorder
from ..durable.calls import CallOutcome, DurableCall, RunCall, WaitCall
from ..durable.child_runs import ChildCall, ChildCalls, ChildFailure, ChildLaunch, ChildOutcome, ChildRequest
from ..durable.journal import Journal, JournalCall, JournalEntry, encode
from ..durable.session import DEFAULT_MAX_CALLS
from ..durable.trigger_signatures import SignedId
from ..durable.trigger_waits import PendingTrigger, TriggerWait
from ..durable.wait_records import WaitBody, WaitResult
from ..durable.waits import EventWait, TimeWait, TriggerType, Waits, Where
from ..handlers.decorators import FlowDefinition, read_definitions
from ..handlers.registry import read_return_type
from ..ports.unit import NewEvent, NewJob, WaitChange
from ..telemetry.tracing import AttemptSpan
from .clock import FakeClock

T = TypeVar("T")
_UNANSWERED = object()


class RecordedWait(NamedTuple):
    """A wait that a handler reached: its type, its subject and its options."""

    type: str
    what: Any
    options: dict[str, Any]


class RecordedCall(NamedTuple):
    """A `ctx.run` of a handler and its recorded value."""

    name: str
    value: Any


class Answers:
    """The test's answers to waits by name: a tuple holds successive answers, any other value answers every time."""

    def __init__(self, answers: Mapping[str, Any] | None) -> None:
        self._answers = dict(answers or {})
        self._positions: dict[str, int] = {}

    def take(self, *names: str) -> Any:
        """Return the next answer for the first name that has one."""
        name = next((name for name in names if name in self._answers), None)
        if name is None:
            return _UNANSWERED
        answer = self._answers[name]
        if not isinstance(answer, tuple):
            return answer
        position = self._positions.get(name, 0)
        self._positions[name] = position + 1
        return answer[position] if position < len(answer) else _UNANSWERED


class _Answered(BaseException):
    """A wait was resolved or time has passed: make the call again."""


class FakeDurableSession:
    """The durable session of a handler under test. It writes nothing; the journal applies the real rules."""

    span: AttemptSpan | None = None

    def __init__(
        self,
        clock: FakeClock,
        about: str,
        run: str | None,
        seed: int,
        events: Mapping[str, Any] | None,
        triggers: Mapping[str, Any] | None,
        calls: Mapping[str, Any] | None = None,
    ) -> None:
        self.journal = Journal({}, "test", about)
        self.rng = random.Random(seed)
        self.waited: list[RecordedWait] = []
        self.ran: list[RecordedCall] = []
        self.calls = FakeCallRecorder(self)
        self.clock = clock
        self.job = "test"
        self.run = run or ""
        self.since = clock.now_ms()
        self._events = Answers(events)
        self._triggers = Answers(triggers)
        self._runs = Answers(calls)
        self._outcomes: dict[str, list[ChildOutcome]] = {}
        self._taken: dict[object, Any] = {}
        self.handler_task = None
        self.max_calls = DEFAULT_MAX_CALLS
        self.is_flushing = False

    def note_caller(self) -> None:
        """Nothing is replayed."""

    @property
    def waits(self) -> FakeWaits:
        if not self.run:
            raise BadArgument("a job outside a run cannot wait; make it a step of a flow")
        return FakeWaits(self.calls, self)

    @property
    def child_calls(self) -> ChildCalls:
        if not self.run:
            raise BadArgument("a job outside a run cannot wait for another run; make it a step of a flow")
        return ChildCalls(self.calls, self)

    def find_flow_name(self, flow: Any) -> str:
        return name_flow(flow)

    def launch_children(self, request: ChildRequest, key: str, call: str) -> ChildLaunch:
        name, inputs = name_flow(request.flow), [to_plain(one, "the input") for one in request.inputs]
        self.waited.append(RecordedWait("call", name, {"inputs": inputs} if request.is_many else {"input": inputs[0]}))
        return ChildLaunch(name, request.key or f"{name}-child", len(inputs), [])

    def convert_result(self, request: ChildRequest, value: Any, run: str) -> Any:
        """Return the answer of the test as a value of its type. A flow of several steps may have another result than
        its function, so that an answer of another shape stays as it is."""
        if request.result is not None or not callable(request.flow):
            return convert_result(value, request.result, f"the result of run {run!r}")
        try:
            return convert_result(value, read_return_type(request.flow), "")
        except SchemaViolation:
            return value

    async def read_outcomes(self, call: str, prefix: str, count: int) -> list[ChildOutcome]:
        return self._outcomes[call]

    async def read_outcome(self, run: str) -> ChildOutcome | None:
        """Return None: no child is retried."""
        return None

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def check(self) -> None:
        """Do nothing: the attempt never loses its lease."""

    def begin(self, call: JournalCall) -> None:
        """Let every call do its work."""

    async def flush(self) -> None:
        self.journal.take_writes()

    async def wait_for_urgent(self) -> None:
        """Do nothing: no commit is in flight."""

    async def register_wait(self, wait: WaitCall[Any]) -> None:
        """Do nothing: no wait is resolved while a function runs."""

    def leave(self, stop: BaseException) -> None:
        raise AssertionError("a handler under test does not suspend")

    async def expire(self, changes: Sequence[WaitChange]) -> None:
        self.journal.take_writes()

    def new_wait_body(self, key: str) -> WaitBody:
        return WaitBody(key, self.now_ms)

    def add_step_event(self, kind: str, data: dict[str, Any], **meta: Any) -> None:
        """Do nothing: a step under test has no stream."""

    def build_call_event(self, kind: str, data: bytes) -> NewEvent:
        return NewEvent("test", data)

    def build_plain_call_event(self, kind: str, sample: str, data: bytes) -> NewEvent:
        return NewEvent("test", data)

    async def send_events(self, events: Sequence[NewEvent]) -> None:
        """Do nothing: a step under test has no stream."""

    def redact_text(self, text: str) -> str:
        return text

    def add_trigger_event(self, kind: str, id: str, data: dict[str, Any]) -> None:
        """Do nothing: a step under test has no stream."""

    def look_back_job(self, wait: str, since: str | None = None) -> NewJob:
        raise AssertionError("a handler under test does not suspend")

    def trigger_url(self, token: str) -> str:
        return f"http://test/api/triggers/{token}"

    def suspend(self, waiting: Sequence[WaitCall[Any]]) -> Suspension:
        """Resolve the waits that the test answers; if there are none, move the clock to the next due wait."""
        answers = {wait: self._answer(wait) for wait in waiting}
        answered = {
            wait: answer for wait, answer in answers.items() if answer is not _UNANSWERED and not _is_timeout(answer)
        }
        for wait, answer in answered.items():
            self._resolve(wait, answer)
        if not answered:
            self._skip_time(waiting, answers)
        raise _Answered

    def _answer(self, wait: WaitCall[Any]) -> Any:
        # A handler may wait for one trigger several times: it has one answer.
        key: object = wait._trigger if isinstance(wait, TriggerWait) else wait
        if isinstance(wait, EventWait) and wait.rejected:
            key = (wait, wait.rejected)
        if key not in self._taken:
            if isinstance(wait, EventWait):
                self._taken[key] = self._events.take(wait.name.rpartition("#")[0], wait._event)
                self._check_not_repeated(wait, self._taken[key])
            elif isinstance(wait, TriggerWait):
                self._taken[key] = self._triggers.take(wait._trigger.name)
            elif isinstance(wait, ChildCall):
                self._taken[key] = self._runs.take(wait.name.rpartition("#")[0], name_flow(wait._request.flow))
            else:
                self._taken[key] = _UNANSWERED
        return self._taken[key]

    def _check_not_repeated(self, wait: EventWait, answer: Any) -> None:
        before = (wait, wait.rejected - 1) if wait.rejected > 1 else wait
        if wait.rejected and answer is not _UNANSWERED and answer is self._taken.get(before):
            raise AssertionError(
                f"the `where` of the wait for {wait._event} rejects the test's answer {answer!r}; pass a tuple of "
                "successive answers"
            )

    def _resolve(self, wait: WaitCall[Any], answer: Any) -> None:
        if isinstance(wait, EventWait):
            wait.record_result(WaitResult(self.now_ms, msgspec.Raw(encode(self._event(wait, answer)))))
        elif isinstance(wait, TriggerWait):
            trigger = wait._trigger
            data = pack(answer, f"the data of trigger {trigger.name!r}")
            if trigger._body.schema is not None:
                make_validator(trigger._body.schema, f"the data of trigger {trigger.name!r}")(to_plain(answer, "it"))
            trigger.record_result(WaitResult(self.now_ms, msgspec.Raw(data)))
        elif isinstance(wait, ChildCall):
            outcomes = [_answer_call(wait, answer, to_plain(one, "the input")) for one in wait._request.inputs]
            self._outcomes[wait._id] = outcomes
            value = encode(outcomes[0]) if not wait._request.is_many else b"{}"
            wait.record_result(WaitResult(self.now_ms, msgspec.Raw(value)))

    def _event(self, wait: EventWait, answer: Any) -> Event:
        if isinstance(answer, Event):
            return answer
        data = to_plain(answer, f"the data of {wait._event}")
        if wait._match and not contains(data, wait._match):
            raise AssertionError(
                f"the step waits for {wait._event} with match={wait._match!r}, but the test answers {data!r}"
            )
        now = self.now_ms
        return Event(id=f"{now}-1", ts=to_iso(now), kind=wait._event, subject="test", data=data)

    def _skip_time(self, waiting: Sequence[WaitCall[Any]], answers: Mapping[WaitCall[Any], Any]) -> None:
        """Move the clock to the next wait that ends by itself: a time wait, or one the test lets time out."""
        due = [wait.due for wait in waiting if isinstance(wait, TimeWait) or _is_timeout(answers[wait])]
        if not due:
            raise AssertionError("; ".join(_describe_unanswered(wait) for wait in waiting))
        if None in due:
            raise AssertionError("the test passes AwaitTimeout for a wait that has no timeout")
        self.clock.set_ms(max(self.now_ms, min(moment for moment in due if moment is not None)))


def _is_timeout(answer: Any) -> bool:
    return answer is AwaitTimeout or isinstance(answer, AwaitTimeout)


def name_flow(flow: Any) -> str:
    """Return the name of a flow, or of the function marked with `@flow`."""
    if isinstance(flow, str):
        return flow
    for definition in read_definitions(flow):
        if isinstance(definition, FlowDefinition):
            return definition.name
    raise BadArgument(f"the flow must be a name or a function marked with @flow, got {shorten(flow)}")


def _answer_call(wait: ChildCall[Any], answer: Any, input: Any) -> ChildOutcome:
    """Return the outcome of a child: the answer itself, what a function makes of the input, or a failure."""
    name = name_flow(wait._request.flow)
    if callable(answer) and not isinstance(answer, type):
        answer = answer(input)
    run = str((wait._started or {}).get("run"))
    if isinstance(answer, ChildFailure):
        return ChildOutcome(run, name, answer.status, error=answer.error, code=answer.code)
    if isinstance(answer, ChildFailed) or answer is ChildFailed:
        return ChildOutcome(run, name, "failed", error=str(answer) if isinstance(answer, ChildFailed) else "failed")
    return ChildOutcome(run, name, "completed", msgspec.Raw(pack(answer, f"the result of flow {name!r}")))


def _describe_unanswered(wait: WaitCall[Any]) -> str:
    if isinstance(wait, ChildCall):
        name, argument, what = name_flow(wait._request.flow), "calls", "flow"
    elif isinstance(wait, TriggerWait):
        name, argument, what = wait._trigger.name, "triggers", "trigger"
    else:
        assert isinstance(wait, EventWait)
        name, argument, what = wait._event, "events", "event"
    return (
        f"the step waits for the {what} {name!r}, but the test has no answer for it; pass "
        f"FakeContext({argument}={{{name!r}: …}}), or AwaitTimeout in place of … to simulate a timeout"
    )


class _FakeRun(RunCall):
    """A `ctx.run` call that runs its function at once, with or without an event loop."""

    async def _call_once(self, timer: CallTimer) -> Any:
        if self._timeout_s is not None:
            return await super()._call_once(timer)
        timer.tries += 1
        value = self._fn()
        return await value if isinstance(value, Coroutine) else value


class _FakeCallEvents(CallEvents):
    def show_later(self) -> None:
        """Do nothing: a step under test has no stream, and a `def` step no event loop."""


class FakeCallRecorder(CallRecorder):
    """A call recorder that repeats a call where a real handler would re-run."""

    def __init__(self, session: FakeDurableSession) -> None:
        super().__init__(session)
        self.events = _FakeCallEvents(session)
        self._fake = session

    def record(self, call: JournalCall, value: Any, error: str | None = None) -> JournalEntry:
        entry = super().record(call, value, error)
        if call.kind == "run" and error is None:
            self._fake.ran.append(RecordedCall(call.key.rpartition("#")[0], to_plain(value, call.key)))
        return entry

    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        retry: RetryOption | None,
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

    async def park(self, pending: Sequence[DurableCall[Any]]) -> None:
        """Answer the waits at once."""
        raise self.suspend([call for call in pending if isinstance(call, WaitCall)])

    async def start_calls(self, calls: Sequence[DurableCall[Any]]) -> None:
        """Start the calls one after the other: a `def` step under test has no loop to run them concurrently."""
        for call in calls:
            await call.start()

    async def register_waits(self, waits: Sequence[WaitCall[Any]]) -> None:
        """Do nothing: no wait is resolved while a function runs."""

    async def run_until(self, due: int | None, runs: Mapping[str, RunCall]) -> dict[str, CallOutcome]:
        """Run the first function: a function takes only the time by which it moves the clock."""
        key, run = next(iter(runs.items()))
        return {key: await run.run_unrecorded()}


class FakeWaits(Waits):
    """The waits of a handler under test, recorded for its assertions."""

    def __init__(self, calls: CallRecorder, session: FakeDurableSession) -> None:
        super().__init__(calls, session)
        self._waited = session.waited

    def time(self, until: Duration | datetime, *, name: str = "time") -> TimeWait:
        wait = super().time(until, name=name)
        self._waited.append(RecordedWait("time", until, {}))
        return wait

    def event(
        self,
        kind: str,
        *,
        match: Mapping[str, Any] | None = None,
        where: Where | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        past: bool = True,
    ) -> EventWait:
        wait = super().event(kind, match=match, where=where, timeout=timeout, name=name, past=past)
        self._waited.append(RecordedWait("event", kind, _drop_none(match=match, timeout=timeout)))
        return wait

    def trigger(
        self,
        name: str,
        *,
        type: TriggerType = "webhook",
        timeout: Duration | None = None,
        payload: Any = None,
        schema: Mapping[str, Any] | None = None,
        signed: str | None = None,
        signed_id: SignedId = "trigger",
    ) -> PendingTrigger:
        pending = super().trigger(
            name, type=type, timeout=timeout, payload=payload, schema=schema, signed=signed, signed_id=signed_id
        )
        options = _drop_none(timeout=timeout, payload=payload, schema=schema, signed=signed)
        self._waited.append(RecordedWait("trigger", name, options))
        return pending


def _drop_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
