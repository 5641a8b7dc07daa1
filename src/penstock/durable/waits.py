"""`ctx.wait`: gates that hold a step for a time, an event or a trigger. Nothing is kept in memory meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from ..core.clock import datetime_ms, iso
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument
from ..core.events import Event, check_kind
from ..core.json_match import index_key
from ..core.payload import pack, to_plain, unpack
from ..ports.unit import NewWait, SettleWait
from .call_recorder import CallRecorder
from .calls import WaitCall
from .journal import RESULT, JournalCall, encode
from .triggers import PendingTrigger, Trigger
from .wait_records import EVENT, TIME, TRIGGER, WaitBody, WaitResult, decode_result, recorded_wait_id, sortable_wait_id
from .wait_session import WaitSession, expire, late, timeout_of

T = TypeVar("T")
TriggerType = Literal["webhook", "user", "api"]
_event = msgspec.json.Decoder(Event).decode


class _Recorded(WaitCall[T]):
    """A gate whose opening is a call of its own in the journal."""

    kind = ""

    def __init__(self, calls: CallRecorder, session: WaitSession, call: JournalCall) -> None:
        super().__init__(calls, call.key)
        self._session = session
        self._call = call
        self._journal = session.journal
        recorded = unpack(bytes(call.entry.value)) if call.entry is not None else None
        self._opened: dict[str, Any] | None = recorded
        found = self._journal.recall(call.key + RESULT)
        self._result: WaitResult | None = decode_result(found) if found is not None else None

    def done(self) -> bool:
        return self._result is not None

    @property
    def _id(self) -> str:
        assert self._opened is not None
        return recorded_wait_id(self.kind, self._journal.scope, self._call.key, self._opened)

    @property
    def due(self) -> int | None:
        return self._opened["due"] if self._opened is not None else None

    @property
    def resolved_at(self) -> int:
        assert self._result is not None
        return self._result.at

    def let_go(self) -> None:
        if self._opened is not None and self._result is None:
            self._journal.kept.waits.append(SettleWait(self._id, "cancelled", lenient=True))

    def _settle(self, result: WaitResult) -> None:
        self._result = result
        self._journal.memo(self._call.key + RESULT, result)

    def _body(self) -> WaitBody:
        assert self._opened is not None
        body = self._session.new_wait_body(self._call.key)
        body.at = self._opened["at"]
        return body

    def _open(self, due: int | None) -> None:
        id = sortable_wait_id(self.kind, self._journal.scope, self._call.key)
        self._opened = {"at": self._calls.now_ms, "due": due, "id": id}
        self._calls.keep(self._call, self._opened)


class TimeWait(_Recorded[None]):
    """Opens by itself."""

    kind = TIME

    def __init__(self, calls: CallRecorder, session: WaitSession, call: JournalCall, until: Callable[[], int]) -> None:
        super().__init__(calls, session, call)
        self._until = until

    async def begin(self) -> None:
        if self._opened is None:
            self._open(self._until())
        assert self._opened is not None
        due, now = self._opened["due"], self._calls.now_ms
        if self._result is None and due <= now:
            self._settle(WaitResult(due))
            if self._call.entry is not None:  # it was slept on
                self._journal.kept.waits.append(SettleWait(self._id, "resolved", lenient=True))
                said = {"wait": self.name, "reason": "Time reached", "awaitDuration": now - self._opened["at"]}
                self._session.say("step.resumed", said)

    def result(self) -> None:
        return None

    def hold(self) -> None:
        assert self.due is not None
        body = self._body()
        gate = NewWait(
            self._id, self._session.run, self._journal.scope, TIME, encode(body), self.due, self._session.job
        )
        self._journal.kept.waits.append(gate)
        self._session.say("step.await.time", {"wait": self.name, "resumeAt": iso(self.due)})


class EventWait(_Recorded[Event]):
    """Opened by an event of a kind that holds what it asks for."""

    kind = EVENT

    def __init__(
        self,
        calls: CallRecorder,
        session: WaitSession,
        call: JournalCall,
        event: str,
        match: Any,
        timeout_ms: int | None,
        past: bool,
    ) -> None:
        super().__init__(calls, session, call)
        self._event = self.topic = event
        self._match = match
        self._timeout = timeout_ms
        self._past = past
        self.deadline: int | None = None  # instead of the whole timeout, when it is not the first of its kind

    async def begin(self) -> None:
        now = self._calls.now_ms
        if self._opened is None:
            due = now + self._timeout if self._timeout is not None else None
            self._open(due if self.deadline is None else self.deadline)
        elif self._result is None and self.due is not None and self.due <= now:
            await expire(self._session, self, self._gate(), self._opened["at"])

    def settle(self, result: WaitResult) -> None:
        self._settle(result)

    def result(self) -> Event:
        assert self._result is not None
        if self._result.timeout:
            raise late(self.name, self._opened)
        return _event(bytes(self._result.value))

    def hold(self) -> None:
        self.watch()
        said = {"wait": self.name, "eventKind": self._event, "match": self._match, **timeout_of(self._timeout)}
        self._session.say("step.await.event", said)

    def watch(self) -> None:
        kept = self._journal.kept
        kept.waits.append(self._gate())
        if self._past:
            kept.jobs.append(self._session.look_back(self._id))

    def forgo(self) -> None:
        if self._result is None:
            self._journal.kept.waits.append(self._gate())  # refuses the unit if an event has opened it
            self.let_go()

    def _gate(self) -> NewWait:
        session, scope = self._session, self._journal.scope
        body = self._body()
        body.match = self._match
        body.taken = self._taken()
        body.shared = self.shared
        filed = index_key(self._match)
        return NewWait(
            self._id, session.run, scope, EVENT, encode(body), self.due, session.job, self._event, filed
        )  # fmt: skip

    def _taken(self) -> list[str]:
        """The events this step has had: the next wait for their kind is for another."""
        results = [decode_result(v) for k, v in self._journal.recalled("").items() if k.endswith(RESULT)]
        return [found.ref for found in results if found.ref is not None]


class Waits:
    """The gates a handler can stand before."""

    def __init__(self, calls: CallRecorder, session: WaitSession) -> None:
        self._calls = calls
        self._session = session

    def time(self, until: Duration | datetime, *, name: str = "time") -> TimeWait:
        """Sleeps for a time (`"1h"`), or until a moment. Nothing is held meanwhile."""
        call = self._calls.call(name, TIME)

        def when() -> int:
            return datetime_ms(until) if isinstance(until, datetime) else self._calls.now_ms + to_ms(until)

        return TimeWait(self._calls, self._session, call, when)

    def event(
        self,
        kind: str,
        *,
        match: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        past: bool = True,
    ) -> EventWait:
        """Sleeps until an event of a kind comes, from any run or from outside, whose data contains `match`.

        An event that came since the run began counts too, unless this step has had it already or `past` is False.
        Raises AwaitTimeout when `timeout` is over."""
        check_kind(kind)
        if match is not None and not isinstance(match, Mapping):
            raise BadArgument(f"match={match!r}: give names and the values the event must have, such as {{'order': 7}}")
        pattern = to_plain(dict(match) if match is not None else {}, f"the match of {kind}")
        calls = self._calls
        call = calls.call(name, EVENT) if name is not None else calls.call_anywhere(kind, EVENT)
        limit = to_ms(timeout) if timeout is not None else None
        return EventWait(self._calls, self._session, call, kind, pattern, limit, past)

    def trigger(
        self,
        name: str,
        *,
        type: TriggerType = "webhook",
        timeout: Duration | None = None,
        schema: Mapping[str, Any] | None = None,
        signed: str | None = None,
    ) -> PendingTrigger:
        """Makes a one-time trigger; its `url` or `token` is for whoever is to fire it, `wait()` sleeps until then.

        What is sent must fit the JSON `schema`. `signed` names the environment variable that holds the secret by which
        callers sign what they send."""
        if type not in ("webhook", "user", "api"):
            raise BadArgument(f"type={type!r}: a trigger is a 'webhook', a 'user' or an 'api' one")
        call = self._calls.call(name, TRIGGER)
        body = self._session.new_wait_body(call.key)
        body.name, body.type, body.signed = name, type, signed
        body.schema = to_plain(dict(schema), f"the schema of trigger {name!r}") if schema is not None else None
        pack(body.schema, f"the schema of trigger {name!r}")
        limit = to_ms(timeout) if timeout is not None else None
        return PendingTrigger(self._calls, Trigger(self._calls, self._session, call, body, limit))
