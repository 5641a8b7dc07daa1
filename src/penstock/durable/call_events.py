"""Events of `ctx.run` calls. They go with the commit that records the call, so that a call costs no commit more.

`call.completed` and `call.failed` contain when the call started. `call.started` is written before the end, and only if
something is committed meanwhile or the function runs longer than SHOWN_AFTER_S: a short call needs no second event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from ..core.clock import to_iso
from ..core.retry import read_error_attribute
from ..ports.unit import NewEvent
from ..telemetry.tracing import AttemptSpan, CallSpan
from .journal import Journal, encode

SHOWN_AFTER_S = 0.25
MAX_ERROR_CHARS = 2_000


class CallEventSession(Protocol):
    """The attempt, as the events of its calls see it."""

    @property
    def journal(self) -> Journal: ...

    @property
    def now_ms(self) -> int: ...

    @property
    def span(self) -> AttemptSpan | None:
        """The span of the attempt; None if nobody traces."""
        ...

    def build_call_event(self, kind: str, data: bytes) -> NewEvent:
        """Build an event of a durable call, for the stream of the run or the queue."""
        ...

    def build_plain_call_event(self, kind: str, sample: str, data: bytes) -> NewEvent:
        """Build the same event faster: `data` differs from `sample` in times and numbers only."""
        ...

    async def send_events(self, events: Sequence[NewEvent]) -> None:
        """Commit events on their own, while a function runs."""
        ...

    def redact_text(self, text: str) -> str:
        """Hide secrets in a text."""
        ...


class CallTimer:
    """When a call started, and how often its function was tried."""

    __slots__ = ("key", "span", "started_ms", "tries")

    def __init__(self, key: str, started_ms: int, span: CallSpan | None = None) -> None:
        self.span = span
        self.key = key
        self.started_ms = started_ms
        self.tries = 0


class CallEvents:
    """Adds the events of an attempt's calls to its next commit."""

    def __init__(self, session: CallEventSession) -> None:
        self._session = session
        self._unseen: dict[str, CallTimer] = {}  # calls that run and have no `call.started` yet
        self._alarm: asyncio.TimerHandle | None = None
        self._showing: asyncio.Task[None] | None = None

    def start(self, key: str) -> CallTimer:
        """Take note that a function is about to run."""
        attempt = self._session.span
        span = attempt.start_call(key) if attempt is not None else None
        timer = self._unseen[key] = CallTimer(key, self._session.now_ms, span)
        return timer

    def show_later(self) -> None:
        """Show the running calls if one of them takes long. Call it on the event loop's thread."""
        if self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(SHOWN_AFTER_S, self._show)

    def add_started(self) -> None:
        """Add `call.started` for the calls that run: a commit is on its way."""
        if self._unseen:
            self._session.journal.writes.events += self._take_started()

    def complete(self, timer: CallTimer, size: int) -> None:
        """Add `call.completed`: the value, of `size` bytes, is recorded."""
        self._unseen.pop(timer.key, None)
        if timer.span is not None:
            timer.span.end()
        session = self._session
        started, passed = timer.started_ms, session.now_ms - timer.started_ms
        # Written as text: the names of calls have no character that JSON escapes.
        sample = f'{{"call":"{timer.key.rpartition("#")[0]}","startedAt":"","duration":0,"tries":0,"size":0}}'
        data = (
            f'{{"call":"{timer.key}","startedAt":"{to_iso(started)}","duration":{passed if passed > 0 else 0},'
            f'"tries":{timer.tries},"size":{size}}}'
        )
        event = session.build_plain_call_event("call.completed", sample, data.encode())
        session.journal.writes.events.append(event)

    def fail(self, timer: CallTimer, problem: BaseException) -> None:
        """Add `call.failed`: the function failed and is not tried again here."""
        self._unseen.pop(timer.key, None)
        if timer.span is not None:
            timer.span.end(problem)
        text = self._session.redact_text(_text(problem))[:MAX_ERROR_CHARS]
        data = {**self._data(timer), "error": text or type(problem).__name__, "name": type(problem).__name__}
        code = read_error_attribute(problem, "code")
        if code is not None:
            data["code"] = self._session.redact_text(_text(code))[:MAX_ERROR_CHARS]
        self._add("call.failed", data)

    def drop(self, timer: CallTimer) -> None:
        """Forget a call that was interrupted: nothing of it is recorded."""
        self._unseen.pop(timer.key, None)
        if timer.span is not None:
            timer.span.end(is_recorded=False)

    def close(self) -> None:
        """Stop the alarm."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._showing is not None:
            self._showing.cancel()

    def _add(self, kind: str, data: dict[str, Any]) -> None:
        self._session.journal.writes.events.append(self._session.build_call_event(kind, encode(data)))

    def _take_started(self) -> list[NewEvent]:
        timers = list(self._unseen.values())
        self._unseen.clear()
        data = [encode({"call": timer.key, "startedAt": to_iso(timer.started_ms)}) for timer in timers]
        return [self._session.build_call_event("call.started", one) for one in data]

    def _data(self, timer: CallTimer) -> dict[str, Any]:
        passed = max(self._session.now_ms - timer.started_ms, 0)  # the store's clock may go back
        return {
            "call": timer.key,
            "startedAt": to_iso(timer.started_ms),
            "duration": passed,
            "tries": timer.tries,
        }

    def _show(self) -> None:
        self._alarm = None
        if self._unseen:
            sending = self._session.send_events(self._take_started())
            self._showing = asyncio.get_running_loop().create_task(sending, name="penstock-call-started")


def _text(value: object) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()
    except Exception:  # an error without a usable text must be recorded too
        return ""
