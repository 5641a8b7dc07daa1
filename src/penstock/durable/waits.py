"""`ctx.wait`: waits for a time, an event or a trigger. A waiting step uses no memory and no slot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from ..core.argument_checks import checked
from ..core.clock import datetime_to_ms, to_iso
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument
from ..core.events import Event, check_kind
from ..core.json_match import index_key
from ..core.payload import pack, to_plain, unpack
from ..core.text import shorten
from ..ports.unit import NewWait, SettleWait
from .call_recorder import CallRecorder
from .calls import WaitCall
from .journal import RESULT, Journal, JournalCall, encode
from .trigger_signatures import SignedId, check_signed
from .trigger_waits import PendingTrigger, Trigger
from .wait_records import (
    EVENT,
    TIME,
    TRIGGER,
    WaitBody,
    WaitResult,
    WaitSession,
    decode_result,
    expire_wait,
    read_end,
    sortable_wait_id,
    timeout_fields,
)

T = TypeVar("T")
TriggerType = Literal["webhook", "user", "api"]
_decode_event = msgspec.json.Decoder(Event).decode


class RecordedWait(WaitCall[T]):
    """A wait whose start is a call of its own in the journal."""

    kind = ""

    def __init__(self, calls: CallRecorder, session: WaitSession, call: JournalCall) -> None:
        super().__init__(calls, call.key)
        self._session = session
        self._call = call
        self._journal = session.journal
        recorded = unpack(bytes(call.entry.value)) if call.entry is not None else None
        self._started: dict[str, Any] | None = recorded
        found = self._journal.read_memo(call.key + RESULT)
        self._result: WaitResult | None = decode_result(found) if found is not None else None

    def is_done(self) -> bool:
        return self._result is not None

    @property
    def due(self) -> int | None:
        return self._started["due"] if self._started is not None else None

    @property
    def resolved_at(self) -> int:
        assert self._result is not None
        return self._result.at

    def cancel(self) -> None:
        if self._started is not None and self._result is None:
            self._journal.writes.waits.append(SettleWait(self._id, "cancelled", lenient=True))

    def record_result(self, result: WaitResult) -> None:
        """Record how the wait ended with the next commit."""
        self._result = result
        self._journal.add_memo(self._call.key + RESULT, result)

    @property
    def _id(self) -> str:
        assert self._started is not None
        return str(self._started["id"])

    def _new_body(self) -> WaitBody:
        assert self._started is not None
        body = self._session.new_wait_body(self._call.key)
        body.at = self._started["at"]
        return body

    def _new_id(self) -> str:
        return sortable_wait_id(self.kind, self._journal.scope, self._call.key)

    def _record_start(self, due: int | None) -> None:
        self._calls.begin(self._call)
        self._started = {"at": self._calls.now_ms, "due": due, "id": self._new_id()}
        self._calls.record(self._call, self._started)


class TimeWait(RecordedWait[None]):
    """Resolves by itself when its time comes."""

    kind = TIME

    def __init__(self, calls: CallRecorder, session: WaitSession, call: JournalCall, until: Callable[[], int]) -> None:
        super().__init__(calls, session, call)
        self._until = until

    async def start(self) -> None:
        if self._started is None:
            self._record_start(self._until())
        assert self._started is not None
        due, now = self._started["due"], self._calls.now_ms
        if self._result is None and due <= now:
            self.record_result(WaitResult(due))
            if self._call.entry is not None:  # the handler suspended on it
                self._journal.writes.waits.append(SettleWait(self._id, "resolved", lenient=True))
                data = {"wait": self.name, "reason": "Time reached", "awaitDuration": now - self._started["at"]}
                self._session.add_step_event("step.resumed", data, awaitType=TIME)

    def result(self) -> None:
        assert self._result is not None
        read_end(self._result, self.name, self._started)

    def suspend(self) -> None:
        assert self.due is not None
        session, body = self._session, encode(self._new_body())
        wait = NewWait(self._id, session.run, self._journal.scope, TIME, body, self.due, session.job)
        self._journal.writes.waits.append(wait)
        session.add_step_event("step.await.time", {"wait": self.name, "resumeAt": to_iso(self.due)})


Where = Callable[[Event], Any]
"""Accepts or rejects an event that a wait matches; it may be async."""


class EventWait(RecordedWait[Event]):
    """Resolved by an event of one kind whose data contains `match` and that `where` accepts.

    `where` is code of the handler, so the worker that resumes the handler calls it. After a rejection the wait is
    registered again as another one, `<key>~2`, which looks back for events that came meanwhile. The verdicts are
    recorded: a replay does not call `where` again.
    """

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
        where: Where | None = None,
    ) -> None:
        super().__init__(calls, session, call)
        self._event = self.event_kind = event
        self._match = match
        self._timeout_ms = timeout_ms
        self._past = past
        self._where = where
        self.rejected = 0  # how many events `where` has rejected
        self._is_accepted = where is None
        while (verdict := self._journal.read_memo(_verdict_memo(call.key, self.rejected))) is not None:
            self._apply_verdict(bool(unpack(verdict)))
            if self._is_accepted:
                break

    async def start(self) -> None:
        now = self._calls.now_ms
        if self._started is None:
            self._record_start(now + self._timeout_ms if self._timeout_ms is not None else None)
            return
        await self._accept_or_reject()
        if self._result is None and self.due is not None and self.due <= now:
            await expire_wait(self._session, self.record_result, self._new_wait(), self._started["at"])

    def is_done(self) -> bool:
        return self._result is not None and (self._is_accepted or _is_final(self._result))

    def result(self) -> Event:
        assert self._result is not None
        return _decode_event(read_end(self._result, self.name, self._started))

    def suspend(self) -> None:
        self.register()
        data: dict[str, Any] = {"wait": self._key, "eventKind": self._event, "match": self._match}
        if self.rejected:
            data["rejected"] = self.rejected
        self._session.add_step_event("step.await.event", {**data, **timeout_fields(self._timeout_ms, self.due)})

    def register(self) -> None:
        writes = self._journal.writes
        writes.waits.append(self._new_wait())
        if self._past:
            writes.jobs.append(self._session.look_back_job(self._id))
        elif self.rejected:  # no wait was pending since the event that was rejected
            assert self._started is not None
            writes.jobs.append(self._session.look_back_job(self._id, str(self._started["id"])))

    def cancel_if_pending(self) -> None:
        if self._result is None:
            self._journal.writes.waits.append(self._new_wait())  # refused if an event has resolved it
            self.cancel()

    def record_result(self, result: WaitResult) -> None:
        self._result = result
        self._journal.add_memo(self._key + RESULT, result)

    @property
    def _key(self) -> str:
        """The key of the wait that is registered: another one after each rejected event."""
        return _round_key(self._call.key, self.rejected)

    @property
    def _id(self) -> str:
        return super()._id if not self.rejected else sortable_wait_id(EVENT, self._journal.scope, self._key)

    async def _accept_or_reject(self) -> None:
        while self._where is not None and self._result is not None and not self.is_done():
            verdict = self._where(_decode_event(bytes(self._result.value)))
            verdict = bool(await verdict if inspect.isawaitable(verdict) else verdict)
            self._journal.add_memo(_verdict_memo(self._call.key, self.rejected), verdict)
            self._apply_verdict(verdict)

    def _apply_verdict(self, is_accepted: bool) -> None:
        if is_accepted:
            self._is_accepted = True
            return
        self.rejected += 1
        found = self._journal.read_memo(self._key + RESULT)
        self._result = decode_result(found) if found is not None else None

    def _new_body(self) -> WaitBody:
        body = super()._new_body()
        body.key = self._key
        return body

    def _new_wait(self) -> NewWait:
        session, scope = self._session, self._journal.scope
        body = self._new_body()
        body.match = self._match
        body.taken = self._taken_events()
        body.shared = self.shared
        index = index_key(self._match)
        return NewWait(
            self._id, session.run, scope, EVENT, encode(body), self.due, session.job, self._event, index
        )  # fmt: skip

    def _taken_events(self) -> list[str]:
        """Return the events this step has received: a later wait for their kind needs another event."""
        results = [decode_result(v) for k, v in self._journal.list_memos().items() if k.endswith(RESULT)]
        return [found.ref for found in results if found.ref is not None]


def find_pending_wait(journal: Journal, key: str, id: str) -> str | None:
    """Return the id of the wait of a recorded call that may be pending; None if it has ended."""
    rejected = 0
    while (found := journal.read_memo(_round_key(key, rejected) + RESULT)) is not None:
        verdict = journal.read_memo(_verdict_memo(key, rejected))
        if verdict is None or unpack(verdict) or _is_final(decode_result(found)):
            return None
        rejected += 1
    return id if not rejected else sortable_wait_id(EVENT, journal.scope, _round_key(key, rejected))


def _is_final(result: WaitResult) -> bool:
    """Return whether a wait ended without an event for `where` to judge."""
    return result.timeout or result.cancelled or result.manual is not None


def _round_key(key: str, rejected: int) -> str:
    return f"{key}~{rejected + 1}" if rejected else key


def _verdict_memo(key: str, rejected: int) -> str:
    return f"~where:{key}:{rejected}"


class Waits:
    """`ctx.wait`: what a handler can wait for."""

    def __init__(self, calls: CallRecorder, session: WaitSession) -> None:
        self._calls = calls
        self._session = session

    @checked
    def time(self, until: Duration | datetime, *, name: str = "time") -> TimeWait:
        """Wait for a duration (`"1h"`), or until a moment.

        Args:
            until: A duration, or a datetime with a time zone.
            name: Name of the durable call, unique in the handler.
        """
        call = self._calls.next_call(name, TIME)

        def due() -> int:
            return datetime_to_ms(until) if isinstance(until, datetime) else self._calls.now_ms + to_ms(until)

        return TimeWait(self._calls, self._session, call, due)

    @checked
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
        """Wait for an event, from any run or from outside.

        Args:
            kind: The event's kind, such as `"order.paid"`.
            match: What the event's data must contain. The store compares it, so prefer it to `where`.
            where: Function of an event that matches; if it returns false, the wait continues with the next event. It is
                called once for each event: its answer is recorded.
            timeout: Raise AwaitTimeout after this duration.
            name: Name of the durable call; without one, waits for a kind are identified by their order.
            past: Also accept an event that came since the run started, unless this step has already received it.
        """
        check_kind(kind)
        if match is not None and not isinstance(match, Mapping):
            raise BadArgument(
                "match must be a mapping of the fields the event's data must contain, such as {'order': 7}, got "
                f"{shorten(match)}"
            )
        if where is not None and not callable(where):
            raise BadArgument(f"where must be a function of the event that returns true or false, got {shorten(where)}")
        pattern = to_plain(dict(match) if match is not None else {}, f"the match of {kind}")
        calls = self._calls
        call = calls.next_call(name, EVENT) if name is not None else calls.next_call_by_order(kind, EVENT)
        timeout_ms = to_ms(timeout) if timeout is not None else None
        return EventWait(calls, self._session, call, kind, pattern, timeout_ms, past, where)

    @checked
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
        """Create a one-time trigger. Send its `url` or `token` to the caller, then await its `wait()`.

        Args:
            name: Name of the durable call, unique in the handler.
            type: Who fires it: a `webhook`, a `user` or an `api` client.
            timeout: `wait()` raises AwaitTimeout after this duration.
            payload: What to show to the person who answers: any JSON value. `app.waits.get` and the event
                `step.await.trigger` have it.
            schema: JSON schema the sent data must match.
            signed: Environment variable with the secret that callers sign with.
            signed_id: Which id a signed call must have: `trigger`, the id of this trigger, or `any`, for senders that
                choose their ids.
        """
        if not isinstance(type, str) or type not in ("webhook", "user", "api"):
            raise BadArgument(f"type must be 'webhook', 'user' or 'api', got {shorten(type)}")
        check_signed(signed, signed_id)
        if schema is not None and not isinstance(schema, Mapping):
            raise BadArgument(f"schema must be a JSON schema, such as {{'type': 'object'}}, got {shorten(schema)}")
        call = self._calls.next_call(name, TRIGGER)
        body = self._session.new_wait_body(call.key)
        body.name, body.type, body.signed, body.signed_id = name, type, signed, signed_id
        body.schema = to_plain(dict(schema), f"the schema of trigger {name!r}") if schema is not None else None
        pack(body.schema, f"the schema of trigger {name!r}")
        body.payload = unpack(pack(payload, f"the payload of trigger {name!r}"))
        timeout_ms = to_ms(timeout) if timeout is not None else None
        return PendingTrigger(self._calls, Trigger(self._calls, self._session, call, body, timeout_ms))
