"""`ctx` for `def` handlers, which run on a thread: nothing is awaited, every call waits for its answer there."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from ..core.durations import Duration
from ..core.errors import BadArgument, CallFailed, ReplayError
from ..core.events import Event
from ..core.retry import Retries, RetryPolicy
from ..durable.call_recorder import CallRecorder
from ..durable.calls import DurableCall, RunCall, check_run, value_of, with_name_and_function
from ..durable.triggers import Trigger, TriggerWait
from ..durable.waits import TriggerType, Waits
from .context import Context
from .state import SyncStateView

T = TypeVar("T")


class SyncContext:
    """The handle of one attempt, for `def` handlers."""

    def __init__(self, inner: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop
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
        self.awaited: Any = None

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

    def children_values(self) -> dict[str, Any]:
        """What the children returned, each under its key, `bull:<queue>:<id>`."""
        return self._answer(self._inner.children_values())

    def failed_children(self) -> dict[str, str]:
        """Why children failed whose failure this job goes on without, each under its key."""
        return self._answer(self._inner.failed_children())

    def remove_children(self) -> int:
        """Deletes the children that have not begun, and says how many."""
        return self._answer(self._inner.remove_children())

    # Durable calls

    @with_name_and_function
    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        retry: Retries | None = None,
        timeout: None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls a function once, on this thread, and records what it gives. A thread cannot be stopped: no timeout."""
        if timeout is not None:
            raise BadArgument(
                f"ctx.run({name!r}, timeout={timeout!r}) of a `def` handler: a thread cannot be stopped; give the "
                "function a timeout of its own, or make the handler async"
            )
        check_run(name, fn)
        calls = self._calls
        call = calls.call(name, "run")
        if call.entry is not None:
            return value_of(call.entry)
        with calls.exclusive(call.key):
            self._answer(calls.flush_urgent())
            try:
                value = _tried(call.key, lambda: fn(*args, **kwargs), RetryPolicy.of(retry), calls)
            except CallFailed as problem:
                calls.keep(call, None, str(problem))
                self._answer(calls.flush())
                raise
            entry = calls.keep(call, value)
            self._answer(calls.flush())
        return value_of(entry)

    @property
    def wait(self) -> SyncWaits:
        """Waits for a time, an event or a trigger: `ctx.wait.time("1h")`."""
        return SyncWaits(self._inner.wait, self._calls, self._answer)

    @property
    def branch(self) -> Branches:
        """Durable calls for `ctx.all` and `ctx.first`, which make them: `ctx.branch.event("order.paid")`."""
        return Branches(self._inner)

    def all(self, calls: Sequence[DurableCall[Any]]) -> list[Any]:
        """The values of several branches, once all are there."""
        return self._answer(self._calls.all(calls))

    def first(self, calls: Mapping[str, DurableCall[Any]], *, name: str = "first") -> tuple[str, Any]:
        """The name and the value of whichever branch is there first."""
        call = self._calls.call(name, "first")
        return self._answer(self._calls.first_of(calls, call))

    def now(self) -> datetime:
        return self._inner.now()

    def uuid(self) -> str:
        return self._inner.uuid()

    def random(self) -> float:
        return self._inner.random()

    @property
    def _calls(self) -> CallRecorder:
        return self._inner.calls

    def _answer(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def _tried(name: str, fn: Callable[[], Any], retry: RetryPolicy, calls: CallRecorder) -> Any:
    failures = 0
    while True:
        try:
            value = fn()
        except ReplayError:
            raise
        except Exception as problem:
            failures += 1
            if retry.attempts == 1:
                raise
            delay = retry.next_delay_ms(problem, failures, calls.rng)
            if delay is None:
                message = f"{name} failed for good after {failures} tries: {type(problem).__name__}: {problem}"
                raise CallFailed(message) from problem
            calls.pause_thread(delay)
            continue
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError(f"{name} is given an async function by a `def` handler: make the handler async, too")
        return value


class SyncWaits:
    """`ctx.wait` of a `def` handler."""

    def __init__(self, waits: Waits, calls: CallRecorder, answer: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._waits = waits
        self._calls = calls
        self._answer = answer

    def time(self, until: Duration | datetime, *, name: str = "time") -> None:
        """Sleeps for a time, or until a moment."""
        self._answer(self._calls.one(self._waits.time(until, name=name)))

    def event(
        self,
        kind: str,
        *,
        match: Mapping[str, Any] | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        past: bool = True,
    ) -> Event:
        """Sleeps until an event of a kind comes whose data contains `match`."""
        gate = self._waits.event(kind, match=match, timeout=timeout, name=name, past=past)
        event: Event = self._answer(self._calls.one(gate))
        return event

    def trigger(
        self,
        name: str,
        *,
        type: TriggerType = "webhook",
        timeout: Duration | None = None,
        schema: Mapping[str, Any] | None = None,
        signed: str | None = None,
    ) -> SyncTrigger:
        """Makes a one-time trigger."""
        pending = self._waits.trigger(name, type=type, timeout=timeout, schema=schema, signed=signed)
        return SyncTrigger(self._answer(pending.registered()), self._calls, self._answer)


class SyncTrigger:
    """A one-time way to resume this step from outside."""

    def __init__(
        self, trigger: Trigger, calls: CallRecorder, answer: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._trigger = trigger
        self._calls = calls
        self._answer = answer
        self.id = trigger.id
        self.name = trigger.name

    @property
    def token(self) -> str:
        return self._trigger.token

    @property
    def url(self) -> str:
        return self._trigger.url

    def wait(self) -> Any:
        """Sleeps until the trigger is fired and gives what was sent with it."""
        return self._answer(self._calls.one(self._trigger.wait()))

    @property
    def branch(self) -> TriggerWait:
        """The wait as a branch of `ctx.all` or `ctx.first`."""
        return self._trigger.wait()


class Branches:
    """Durable calls that are not made yet."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.time = ctx.wait.time
        self.event = ctx.wait.event

    @with_name_and_function
    def run(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> RunCall:
        """The function is called on a thread of its own."""
        check_run(name, fn)
        return self._ctx.run(name, asyncio.to_thread, fn, *args, **kwargs)
