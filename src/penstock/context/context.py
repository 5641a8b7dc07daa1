"""`ctx`: what a handler can ask and say while it runs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from ..core.durations import Duration
from ..core.events import BadEmit
from ..core.payload import unpack
from ..core.retry import Retries
from ..durable.calls import with_name_and_function
from ..ports.store import ChildRow, ChildState
from .state import DONE, Done, StateView

if TYPE_CHECKING:
    from ..durable.call_recorder import CallRecorder
    from ..durable.calls import DurableCall, RunCall
    from ..durable.session import DurableSession
    from ..durable.waits import Waits

LEVELS = ("debug", "info", "warning", "error")


class AttemptChannel(Protocol):
    """The attempt behind a handle: what it does with what its handler says."""

    @property
    def stopped(self) -> bool:
        """Whether the attempt is to stop."""
        ...

    def check(self) -> None:
        """Raises StaleAttempt once the attempt is over."""
        ...

    def view(self, prefix: str) -> StateView:
        """The state under a prefix, with the attempt's own writes laid over it."""
        ...

    @property
    def session(self) -> DurableSession:
        """The journal, the durable calls and the gates of the attempt."""
        ...

    async def children(self) -> list[ChildRow]:
        """What is known of the children of the attempt's job."""
        ...

    async def remove_job(self, id: str) -> bool:
        """Deletes a job that no worker holds."""
        ...

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

    def __init__(self, channel: AttemptChannel) -> None:
        self._channel = channel

    def __call__(self, message: object, level: str = "info", **fields: Any) -> Done:
        if level == "warn":
            level = "warning"
        if level not in LEVELS:
            raise ValueError(f"{level!r} is not a log level: use {', '.join(LEVELS)}")
        self._channel.check()
        self._channel.log(level, str(message), fields)
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

    def __init__(
        self,
        *,
        channel: AttemptChannel,
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
        # The attempt does not know its handle: a cycle would keep both until the collector comes round.
        self._channel = channel
        self._scope = scope
        self.job_id = job_id
        self.queue = queue
        self.attempt = attempt
        self.run_id = run_id
        self.flow = flow
        self.step = step
        self.n = n
        self.correlation_id = CorrelationId(correlation_id)
        self.awaited: Any = None  # the event, or what the trigger was fired with, that a declared wait was for

    # Most handlers use few of these: each is made when it is first asked for.

    @cached_property
    def state(self) -> StateView:
        """Keys this run's steps share; outside a run, the same as `shared`."""
        return self.shared if self.run_id is None else self._channel.view(f"run/{self.run_id}/")

    @cached_property
    def shared(self) -> StateView:
        """Keys the whole application shares."""
        return self._channel.view("shared/")

    @cached_property
    def log(self) -> Log:
        """Writes to the run's stream, and to Python's logging."""
        return Log(self._channel)

    @property
    def logger(self) -> Log:
        return self.log

    def emit(self, kind: str | Mapping[str, Any], data: Any = None) -> Done:
        """Says that something happened. It appears, and starts what listens to it, when this attempt commits, once.

        Also takes the specs' dicts: `{"kind": …, "data": …}` and `{"type": "log"|"progress"|"partial", "data": …}`.
        """
        self._channel.check()
        if isinstance(kind, str):
            self._channel.emit(kind, data, None)
        else:
            self._emit_mapping(kind)
        return DONE

    def progress(self, value: Any) -> Done:
        """How far it is, a number up to 100 or anything JSON; seen live."""
        self._channel.check()
        self._channel.progress(value)
        return DONE

    def partial(self, chunk: Any) -> Done:
        """A piece of output before the end; seen live."""
        self._channel.check()
        self._channel.partial(chunk)
        return DONE

    def idempotency_key(self, name: str = "") -> str:
        """The same for every attempt of this step: hand it to the outside world to make effects happen once."""
        return f"{self._scope}.{name}" if name else self._scope

    @property
    def cancelled(self) -> bool:
        """Whether this attempt is to stop: its run was cancelled, its lease lost or its time is up."""
        return self._channel.stopped

    # Children of a job that was added with `app.add_flow`

    async def children_values(self) -> dict[str, Any]:
        """What the children returned, each under its key, `bull:<queue>:<id>`."""
        self._channel.check()
        rows = await self._channel.children()
        return {row.key: unpack(row.value) for row in rows if row.value is not None}

    async def failed_children(self) -> dict[str, str]:
        """Why children failed whose failure this job goes on without, each under its key."""
        self._channel.check()
        rows = await self._channel.children()
        return {row.key: row.reason or "" for row in rows if row.state is ChildState.IGNORED}

    async def remove_children(self) -> int:
        """Deletes the children that have not begun, and says how many: a job that was run early for one that failed
        ("continue") cannot complete while others are waited for."""
        self._channel.check()
        rows = [row for row in await self._channel.children() if row.state is ChildState.UNPROCESSED]
        return sum([await self._channel.remove_job(row.id) for row in rows])

    # Durable calls: done once, however often the handler is run

    @with_name_and_function
    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        retry: Retries | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> RunCall:
        """Calls a function once and records what it gives; a re-run of the handler is given the same.

        With `retry` it is tried again here and now, and its final failure is recorded too, as CallFailed."""
        return self._channel.session.calls.run(name, fn, args, kwargs, retry, timeout)

    @property
    def wait(self) -> Waits:
        """Waits for a time, an event or a trigger, with nothing held meanwhile: `await ctx.wait.time("1h")`."""
        return self._channel.session.waits

    async def all(self, calls: Sequence[DurableCall[Any]]) -> list[Any]:
        """The values of several durable calls, once all are there."""
        return await self._channel.session.calls.all(calls)

    def first(
        self, calls: Mapping[str, DurableCall[Any]], *, name: str = "first"
    ) -> Coroutine[Any, Any, tuple[str, Any]]:
        """The name and the value of whichever durable call is there first; the other waits are given up."""
        recorder = self.calls
        return recorder.first_of(calls, recorder.call(name, "first"))

    @property
    def calls(self) -> CallRecorder:
        return self._channel.session.calls

    def now(self) -> datetime:
        """The time; the same for every run of the handler."""
        return self._channel.session.calls.now()

    def uuid(self) -> str:
        """A new id; the same for every run of the handler."""
        return self._channel.session.calls.uuid()

    def random(self) -> float:
        """A random number from 0 up to 1; the same for every run of the handler."""
        return self._channel.session.calls.random()

    def _emit_mapping(self, event: Mapping[str, Any]) -> None:
        if "kind" in event:
            self._channel.emit(event["kind"], event.get("data"), event.get("correlationId"))
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
