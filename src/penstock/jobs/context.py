"""`ctx`: what a handler can ask and say while it runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..core.errors import PenstockError, StaleAttempt
from ..core.events import RESERVED
from .state import DONE, Done, StateView, SyncStateView

LEVELS = ("debug", "info", "warning", "error")


class Voice(Protocol):
    """What an attempt does with what its handler says."""

    def emit(self, kind: str, data: Any, correlation_id: str | None) -> None: ...

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None: ...

    def progress(self, value: Any) -> None: ...

    def partial(self, chunk: Any) -> None: ...


class CorrelationId(str):
    """A string that may also be called, as the first spec's `ctx.correlation_id()` does."""

    __slots__ = ()

    def __call__(self) -> str:
        return str(self)


class Log:
    """`ctx.log("…")`, `ctx.log.warning("…", order=7)`: to the run's stream, with run, step and attempt known."""

    def __init__(self, say: Callable[[str, str, Mapping[str, Any]], None]) -> None:
        self._say = say

    def __call__(self, message: object, level: str = "info", **fields: Any) -> Done:
        if level == "warn":
            level = "warning"
        if level not in LEVELS:
            raise ValueError(f"{level!r} is not a log level: use {', '.join(LEVELS)}")
        self._say(level, str(message), fields)
        return DONE

    def debug(self, message: object, **fields: Any) -> Done:
        return self(message, "debug", **fields)

    def info(self, message: object, **fields: Any) -> Done:
        return self(message, "info", **fields)

    def warning(self, message: object, **fields: Any) -> Done:
        return self(message, "warning", **fields)

    warn = warning

    def error(self, message: object, **fields: Any) -> Done:
        return self(message, "error", **fields)


class Context:
    """The handle of one attempt. In an `async def` handler, `ctx.state` is awaited; the rest may be."""

    state: StateView
    """Keys this run's steps share; outside a run, the same as `shared`."""
    shared: StateView
    """Keys the whole application shares."""

    def __init__(
        self,
        *,
        voice: Voice,
        state: StateView,
        shared: StateView,
        job_id: str,
        queue: str,
        attempt: int,
        scope: str,
        run_id: str | None = None,
        flow: str | None = None,
        step: str | None = None,
        n: int = 1,
        correlation_id: str = "",
    ) -> None:
        self._voice = voice
        self._scope = scope
        self._reason: str | None = None
        self._open = True
        self.state = state
        self.shared = shared
        self.job_id = job_id
        self.queue = queue
        self.attempt = attempt
        self.run_id = run_id
        self.flow = flow
        self.step = step
        self.n = n
        self.correlation_id = CorrelationId(correlation_id)
        self.log = self.logger = Log(self._log)

    def emit(self, kind: str | Mapping[str, Any], data: Any = None) -> Done:
        """Says that something happened. It appears, and starts what listens to it, when this attempt commits, once.

        Also takes the specs' dicts: `{"kind": …, "data": …}` and `{"type": "log"|"progress"|"partial", "data": …}`.
        """
        self.check()
        if isinstance(kind, str):
            self._voice.emit(kind, data, None)
        else:
            self._emit_mapping(kind)
        return DONE

    def progress(self, value: Any) -> Done:
        """How far it is, a number up to 100 or anything JSON; seen live."""
        self.check()
        self._voice.progress(value)
        return DONE

    def partial(self, chunk: Any) -> Done:
        """A piece of output before the end; seen live."""
        self.check()
        self._voice.partial(chunk)
        return DONE

    def idempotency_key(self, name: str = "") -> str:
        """The same for every attempt of this step: hand it to the outside world to make effects happen once."""
        return f"{self._scope}.{name}" if name else self._scope

    @property
    def cancelled(self) -> bool:
        """Whether this attempt is to stop: its run was cancelled, its lease lost or its time is up."""
        return self._reason is not None

    def stop(self, reason: str) -> None:
        """Marks the attempt as cancelled; called by the worker."""
        self._reason = reason

    def close(self) -> None:
        """Ends the handle with its attempt; called by the worker."""
        self._open = False

    def _log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        self.check()
        self._voice.log(level, message, fields)

    def check(self) -> None:
        """Raises StaleAttempt once the attempt is over."""
        if not self._open:
            raise StaleAttempt(
                f"attempt {self.attempt} of {self.job_id} is over, its ctx can record nothing more: "
                "await or join what you start inside a handler"
            )

    def _emit_mapping(self, event: Mapping[str, Any]) -> None:
        if "kind" in event:
            self._voice.emit(event["kind"], event.get("data"), event.get("correlationId"))
            return
        match event.get("type"):
            case "log":
                data = event.get("data")
                entry = data if isinstance(data, Mapping) else {"msg": data}
                self.log(entry.get("msg", entry.get("message", "")), str(entry.get("level", "info")))
            case "progress":
                self.progress(event.get("data"))
            case "partial":
                self.partial(event.get("data"))
            case other:
                raise BadEmit(
                    f"emit got {dict(event)!r}: give a kind and data, a dict with 'kind', "
                    f"or one with 'type' log, progress or partial (not {other!r})"
                )


class BadEmit(PenstockError):
    """What was emitted is no event."""

    code = "bad_emit"


_KIND = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def check_kind(kind: str) -> str:
    """The kind itself, or BadEmit: it is no kind, or one that only the engine writes."""
    if not isinstance(kind, str) or not _KIND.fullmatch(kind) or len(kind) > 256:
        raise BadEmit(f"{kind!r} is not an event kind: write dotted words such as 'order.paid'")
    if kind.startswith(RESERVED):
        raise BadEmit(f"{kind!r} begins with a word the engine keeps for itself ({', '.join(RESERVED)}): rename it")
    return kind


class SyncContext:
    """The same handle for `def` handlers, which run on a thread: nothing is awaited."""

    def __init__(self, inner: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self.state = SyncStateView(inner.state, loop)
        self.shared = SyncStateView(inner.shared, loop)
        self.job_id = inner.job_id
        self.queue = inner.queue
        self.attempt = inner.attempt
        self.run_id = inner.run_id
        self.flow = inner.flow
        self.step = inner.step
        self.n = inner.n
        self.correlation_id = inner.correlation_id
        self.log = self.logger = inner.log

    def emit(self, kind: str | Mapping[str, Any], data: Any = None) -> None:
        self._inner.emit(kind, data)

    def progress(self, value: Any) -> None:
        self._inner.progress(value)

    def partial(self, chunk: Any) -> None:
        self._inner.partial(chunk)

    def idempotency_key(self, name: str = "") -> str:
        return self._inner.idempotency_key(name)

    @property
    def cancelled(self) -> bool:
        return self._inner.cancelled
