"""`ctx` of a `def` handler, which runs on a thread: every call blocks that thread until its answer is there."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Literal, TypeVar, Unpack, overload

from ..core.durations import Duration
from ..core.errors import BadArgument, CallFailed, ConcurrentDurableCall, ReplayError, Suspension
from ..core.events import Event
from ..core.retry import RetryOption, RetryPolicy
from ..core.text import shorten
from ..durable.call_events import CallTimer
from ..durable.call_recorder import CallRecorder
from ..durable.calls import (
    DurableCall,
    RunCall,
    call_failed,
    check_run_arguments,
    leave_function,
    read_value,
    require_name_and_function,
)
from ..durable.child_runs import ChildFailure, OnCallTimeout, OnChildFailure
from ..durable.journal import JournalCall, JournalEntry
from ..durable.trigger_signatures import SignedId
from ..durable.trigger_waits import Trigger, TriggerWait
from ..durable.waits import TriggerType, Waits, Where
from .blobs import SyncBlobView
from .context import Context
from .state import SyncStateView

if TYPE_CHECKING:
    from .call_types import CallManyOptions, CallOptions, I, NoInput, R

T = TypeVar("T")


class SyncContext:
    """The handle of one attempt, for `def` handlers. It has the attributes of `Context`."""

    def __init__(self, inner: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop
        self._lock = threading.Lock()
        self._thread: int | None = None  # the handler's own thread
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

    @property
    def blob(self) -> SyncBlobView:
        """Files and other large data, in the blob store of the setting `blob_url`."""
        return SyncBlobView(self._inner.blob, self._loop)

    def emit(self, kind: str | Mapping[str, Any], data: Any = None, *, tags: Collection[str] | None = None) -> None:
        """Emit an event. It appears, and starts the steps that listen to it, once, when this attempt commits.

        Args:
            kind: Kind of the event: dotted words such as "order.paid".
            data: Any JSON value.
            tags: Words to filter events by, such as ["audit", "eu"].
        """
        self._inner.emit(kind, data, tags=tags)

    def enqueue(
        self,
        queue: str | Callable[..., Any],
        input: Any = None,
        *,
        key: str | None = None,
        name: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        retry: RetryOption | None = None,
        correlation_id: str | None = None,
        order_key: str | None = None,
    ) -> str:
        """Enqueue a job and return its id. The job is added once, when this attempt commits; nothing waits for it.

        Args:
            queue: A queue's name, or a function marked with `@job`.
            input: What the handler receives: any JSON value, dataclass, msgspec or pydantic model.
            key: Idempotency key. It becomes the job's id; a key that exists adds nothing. Default: an id that is the
                same in every attempt.
            name: Name of the job, if several handlers share the queue.
            delay: How long to wait before the job is due, such as "10m".
            at: When the job is due, a datetime with a time zone. Instead of `delay`.
            priority: Lower runs first. Default 0, or what the handler declares.
            retry: Retry policy of this job instead of the handler's.
            correlation_id: Stored with the job and its events. Default: the one of this run or job.
            order_key: Jobs of the queue with the same key run one at a time, in the order in which they were committed.
        """
        return self._inner.enqueue(
            queue,
            input,
            key=key,
            name=name,
            delay=delay,
            at=at,
            priority=priority,
            retry=retry,
            correlation_id=correlation_id,
            order_key=order_key,
        )

    def start(
        self,
        flow: str | Callable[..., Any],
        input: Any = None,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Start a run of a flow and return its id. It starts once, when this attempt commits; nothing waits for it.

        Args:
            flow: A flow's name, or the function marked with `@flow`.
            input: What the first step receives: any JSON value, dataclass, msgspec or pydantic model.
            key: Idempotency key. It becomes the run's id; a key that exists starts nothing. Default: an id that is
                the same in every attempt.
            delay: How long to wait before the first step is due, such as "10m".
            at: When the first step is due, a datetime with a time zone. Instead of `delay`.
            priority: Of the run's steps; lower runs first.
            correlation_id: Stored with every event of the run. Default: the one of this run or job.
            tags: Names and values to find the run by.
        """
        return self._inner.start(
            flow,
            input,
            key=key,
            delay=delay,
            at=at,
            priority=priority,
            correlation_id=correlation_id,
            tags=tags,
        )

    def progress(self, value: Any) -> None:
        """Report progress; shown live.

        Args:
            value: A number up to 100, or any JSON value.
        """
        self._inner.progress(value)

    def partial(self, chunk: Any) -> None:
        """Send a piece of output before the end; shown live.

        Args:
            chunk: Any JSON value.
        """
        self._inner.partial(chunk)

    def idempotency_key(self, name: str = "") -> str:
        """Return a key that is the same for every attempt of this step.

        Args:
            name: Your word for the call, if a step makes several.
        """
        return self._inner.idempotency_key(name)

    @property
    def cancelled(self) -> bool:
        """Whether this attempt must stop: its run was cancelled, its lease was lost or its time is up."""
        return self._inner.cancelled

    def children_values(self) -> dict[str, Any]:
        """Return what the children returned, each under its key, `bull:<queue>:<id>`."""
        return self._block_on(self._inner.children_values())

    def failed_children(self) -> dict[str, str]:
        """Return the errors of children whose failure this job ignores, each under its key."""
        return self._block_on(self._inner.failed_children())

    def remove_children(self) -> int:
        """Delete the children that have not started, and return how many."""
        return self._block_on(self._inner.remove_children())

    # Durable calls

    @require_name_and_function
    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        retry: RetryOption | None = None,
        timeout: None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function once, on this thread, and record its value.

        Args:
            name: Name of the durable call, unique in the handler.
            fn: The function, followed by its arguments.
            retry: Retry the function here; its final failure is recorded and raised as CallFailed.
            timeout: Not available: a thread cannot be stopped.
        """
        if timeout is not None:
            raise BadArgument(
                f"ctx.run({name!r}) cannot use timeout={shorten(timeout)} in a `def` handler, because a running thread "
                "cannot be stopped. Set a timeout inside the function, or make the handler async"
            )
        check_run_arguments(name, fn)
        calls = self._calls
        if calls.has_suspended and self._is_other_thread():
            raise Suspension("the handler waits; this thread's work runs again when it resumes")
        with self._lock:  # the handler may use several threads: then its calls have no order
            if self._is_other_thread():
                calls.journal.is_concurrent = True
            call = calls.next_call(name, "run")
        if call.entry is not None:
            return read_value(call.entry)
        calls.begin(call)
        timer = self._block_on(_start(calls, call.key))
        try:
            token = calls.enter_function(call.key)
            leave_span = timer.span.activate() if timer.span is not None else None
            try:
                value = _call_with_retries(timer, lambda: fn(*args, **kwargs), RetryPolicy.parse(retry), calls)
            finally:
                if leave_span is not None:
                    leave_span()
                leave_function(token)
        except Exception as problem:
            self._block_on(_fail(calls, call, timer, problem))
            raise
        except BaseException:
            self._post(_drop, calls, timer)
            raise
        return read_value(self._block_on(_complete(calls, call, timer, value)))

    @overload
    def call(
        self, flow: str, input: Any = None, *, on_failure: OnChildFailure = "raise", **options: Unpack[CallOptions]
    ) -> Any: ...

    @overload
    def call(
        self,
        flow: NoInput[Coroutine[Any, Any, R]],
        input: None = None,
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallOptions],
    ) -> R: ...

    @overload
    def call(
        self,
        flow: Callable[Concatenate[I, ...], Coroutine[Any, Any, R]],
        input: I,
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallOptions],
    ) -> R: ...

    @overload
    def call(
        self,
        flow: NoInput[R],
        input: None = None,
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallOptions],
    ) -> R: ...

    @overload
    def call(
        self,
        flow: Callable[Concatenate[I, ...], R],
        input: I,
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallOptions],
    ) -> R: ...

    @overload
    def call(
        self,
        flow: str | Callable[..., Any],
        input: Any = None,
        *,
        result: type[R],
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallOptions],
    ) -> R: ...

    @overload
    def call(
        self,
        flow: Callable[..., Coroutine[Any, Any, R]],
        input: Any = None,
        *,
        on_failure: Literal["return"],
        **options: Unpack[CallOptions],
    ) -> R | ChildFailure: ...

    @overload
    def call(
        self,
        flow: Callable[..., R],
        input: Any = None,
        *,
        on_failure: Literal["return"],
        **options: Unpack[CallOptions],
    ) -> R | ChildFailure: ...

    @overload
    def call(
        self,
        flow: str | Callable[..., Any],
        input: Any = None,
        *,
        result: type[R],
        on_failure: Literal["return"],
        **options: Unpack[CallOptions],
    ) -> R | ChildFailure: ...

    def call(
        self,
        flow: str | Callable[..., Any],
        input: Any = None,
        *,
        key: str | None = None,
        result: Any = None,
        timeout: Duration | None = None,
        on_failure: OnChildFailure = "raise",
        on_timeout: OnCallTimeout = "cancel",
        name: str | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Any:
        """Start a run of a flow, wait for its end and return its result.

        Args:
            flow: A flow's name, or the function marked with `@flow`.
            input: What the first step receives: any JSON value, dataclass, msgspec or pydantic model.
            key: Id of the child run. Default: an id that is the same in every attempt.
            result: Type to which the result is converted. Default: what the function returns, if it is the flow's only
                step.
            timeout: Raise AwaitTimeout after this duration.
            on_failure: "raise" ChildFailed if the run fails or is cancelled, or "return" a ChildFailure.
            on_timeout: What happens to the run at the timeout: "cancel" it, or "abandon" it.
            name: Name of the durable call; without one, calls of a flow are identified by their order.
            priority: Of the run's steps; lower runs first.
            correlation_id: Stored with every event of the run. Default: the one of this run.
            tags: Names and values to find the run by.
        """
        start: Callable[..., DurableCall[Any]] = self._inner.call
        call = start(
            flow,
            input,
            key=key,
            result=result,
            timeout=timeout,
            on_failure=on_failure,
            on_timeout=on_timeout,
            name=name,
            priority=priority,
            correlation_id=correlation_id,
            tags=tags,
        )
        return self._block_on(self._calls.await_call(call))

    @overload
    def call_many(
        self,
        flow: str,
        inputs: Iterable[Any],
        *,
        on_failure: OnChildFailure = "raise",
        **options: Unpack[CallManyOptions],
    ) -> list[Any]: ...

    @overload
    def call_many(
        self,
        flow: NoInput[Coroutine[Any, Any, R]],
        inputs: Iterable[None],
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallManyOptions],
    ) -> list[R]: ...

    @overload
    def call_many(
        self,
        flow: Callable[Concatenate[I, ...], Coroutine[Any, Any, R]],
        inputs: Iterable[I],
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallManyOptions],
    ) -> list[R]: ...

    @overload
    def call_many(
        self,
        flow: NoInput[R],
        inputs: Iterable[None],
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallManyOptions],
    ) -> list[R]: ...

    @overload
    def call_many(
        self,
        flow: Callable[Concatenate[I, ...], R],
        inputs: Iterable[I],
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallManyOptions],
    ) -> list[R]: ...

    @overload
    def call_many(
        self,
        flow: str | Callable[..., Any],
        inputs: Iterable[Any],
        *,
        result: type[R],
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallManyOptions],
    ) -> list[R]: ...

    @overload
    def call_many(
        self,
        flow: Callable[..., Coroutine[Any, Any, R]],
        inputs: Iterable[Any],
        *,
        on_failure: Literal["return"],
        **options: Unpack[CallManyOptions],
    ) -> list[R | ChildFailure]: ...

    @overload
    def call_many(
        self,
        flow: Callable[..., R],
        inputs: Iterable[Any],
        *,
        on_failure: Literal["return"],
        **options: Unpack[CallManyOptions],
    ) -> list[R | ChildFailure]: ...

    @overload
    def call_many(
        self,
        flow: str | Callable[..., Any],
        inputs: Iterable[Any],
        *,
        result: type[R],
        on_failure: Literal["return"],
        **options: Unpack[CallManyOptions],
    ) -> list[R | ChildFailure]: ...

    def call_many(
        self,
        flow: str | Callable[..., Any],
        inputs: Iterable[Any],
        *,
        result: Any = None,
        timeout: Duration | None = None,
        on_failure: OnChildFailure = "raise",
        on_timeout: OnCallTimeout = "cancel",
        name: str | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Start a run of a flow for each input, wait until all have ended, and return their results in order.

        Args:
            flow: A flow's name, or the function marked with `@flow`.
            inputs: What the first step of each run receives.
            result: Type to which each result is converted. Default: what the function returns, if it is the flow's
                only step.
            timeout: Raise AwaitTimeout after this duration.
            on_failure: "raise" ChildFailed for the first failed run, once all have ended, or "return" a ChildFailure
                in the place of each.
            on_timeout: What happens to the open runs at the timeout: "cancel" them, or "abandon" them.
            name: Name of the durable call; without one, calls of a flow are identified by their order.
            priority: Of the runs' steps; lower runs first.
            correlation_id: Stored with every event of the runs. Default: the one of this run.
            tags: Names and values to find the runs by.
        """
        start: Callable[..., DurableCall[Any]] = self._inner.call_many
        call = start(
            flow,
            inputs,
            result=result,
            timeout=timeout,
            on_failure=on_failure,
            on_timeout=on_timeout,
            name=name,
            priority=priority,
            correlation_id=correlation_id,
            tags=tags,
        )
        results: list[Any] = self._block_on(self._calls.await_call(call))
        return results

    @property
    def wait(self) -> SyncWaits:
        """Wait for a time, an event or a trigger: `ctx.wait.time("1h")`."""
        return SyncWaits(self._inner.wait, self._calls, self._block_on_wait)

    @property
    def branch(self) -> BranchCalls:
        """Build durable calls for `ctx.all` and `ctx.first`: `ctx.branch.event("order.paid")`."""
        return BranchCalls(self._inner)

    def all(self, calls: Sequence[DurableCall[Any]]) -> list[Any]:
        """Return the values of several branches, in order, once all are done.

        Args:
            calls: Branches: `ctx.branch.run(…)`, `ctx.branch.event(…)`.
        """
        return self._block_on_wait(self._calls.await_all(calls))

    def first(self, calls: Mapping[str, DurableCall[Any]], *, name: str = "first") -> tuple[str, Any]:
        """Return the name and the value of the branch that is done first; cancel the other waits.

        Args:
            calls: Branches by name.
            name: Name of this choice, if a handler makes several.
        """
        call = self._calls.next_call(name, "first")
        return self._block_on_wait(self._calls.await_first(calls, call))

    def now(self) -> datetime:
        """Return the current time; a replay of the handler gets the same."""
        return self._inner.now()

    def uuid(self) -> str:
        """Return a new UUID; a replay of the handler gets the same."""
        return self._inner.uuid()

    def random(self) -> float:
        """Return a random number from 0 up to 1; a replay of the handler gets the same."""
        return self._inner.random()

    @property
    def _calls(self) -> CallRecorder:
        return self._inner.calls

    def bind_thread(self) -> None:
        """Take note of the thread that the handler runs on."""
        self._thread = threading.get_ident()
        self._inner._channel.bind_thread()

    def _is_other_thread(self) -> bool:
        return self._thread is not None and threading.get_ident() != self._thread

    def _block_on(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _block_on_wait(self, call: Coroutine[Any, Any, T]) -> T:
        """Block on a call that may suspend the handler: only the handler's own thread can leave it."""
        if self._is_other_thread():
            call.close()
            raise self._calls.journal.make_error(
                ConcurrentDurableCall,
                "ctx.wait was called on a thread that the handler started. Call it on the handler's own thread; to "
                "wait for several things at once, use ctx.all or ctx.first, or make the handler `async def`",
            )
        return self._block_on(call)

    def _post(self, fn: Callable[..., None], *args: Any) -> None:
        self._loop.call_soon_threadsafe(fn, *args)


# The journal belongs to the event loop's thread: the handler's threads start and end their calls there.


async def _start(calls: CallRecorder, key: str) -> CallTimer:
    """Commit what the function must not run without, and take note that it starts."""
    calls.branches.active += 1
    try:
        await calls.flush_urgent()
        await calls.branches.acquire()
    except BaseException:
        calls.branches.finish_call()
        raise
    timer = calls.events.start(key)
    calls.events.show_later()
    return timer


async def _complete(calls: CallRecorder, call: JournalCall, timer: CallTimer, value: Any) -> JournalEntry:
    calls.branches.release()
    try:
        entry = calls.record_value(call, timer, value)
        await calls.flush()
        return entry
    finally:
        calls.branches.finish_call()


async def _fail(calls: CallRecorder, call: JournalCall, timer: CallTimer, problem: Exception) -> None:
    calls.branches.release()
    try:
        if isinstance(problem, CallFailed):
            calls.record_failure(call, timer, problem)
            await calls.flush()
        elif not isinstance(problem, ReplayError):
            calls.events.fail(timer, problem)
    finally:
        calls.branches.finish_call()


def _drop(calls: CallRecorder, timer: CallTimer) -> None:
    calls.branches.release()
    calls.events.drop(timer)
    calls.branches.finish_call()


def _call_with_retries(timer: CallTimer, fn: Callable[[], Any], retry: RetryPolicy, calls: CallRecorder) -> Any:
    while True:
        timer.tries += 1
        try:
            value = fn()
        except ReplayError:
            raise
        except Exception as problem:
            if retry.attempts == 1:
                raise
            delay = retry.next_delay_ms(problem, timer.tries, calls.rng)
            if delay is None:
                raise call_failed(timer.key, timer.tries, problem) from problem
            calls.sleep_thread(delay)
            continue
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError(f"{timer.key} got an async function in a `def` handler; make the handler async")
        return value


class SyncWaits:
    """`ctx.wait` of a `def` handler."""

    def __init__(self, waits: Waits, calls: CallRecorder, block_on: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._waits = waits
        self._calls = calls
        self._block_on = block_on

    def time(self, until: Duration | datetime, *, name: str = "time") -> None:
        """Wait for a duration, or until a moment.

        Args:
            until: A duration, or a datetime with a time zone.
            name: Name of the durable call, unique in the handler.
        """
        self._block_on(self._calls.await_call(self._waits.time(until, name=name)))

    def event(
        self,
        kind: str,
        *,
        match: Mapping[str, Any] | None = None,
        where: Where | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        past: bool = True,
    ) -> Event:
        """Wait for an event, from any run or from outside, and return it.

        Args:
            kind: The event's kind, such as `"order.paid"`.
            match: What the event's data must contain. The store compares it, so prefer it to `where`.
            where: Function of an event that matches; if it returns false, the wait continues with the next event. It is
                called once for each event, on the worker's event loop: its answer is recorded.
            timeout: Raise AwaitTimeout after this duration.
            name: Name of the durable call; without one, waits for a kind are identified by their order.
            past: Also accept an event that came since the run started, unless this step has already received it.
        """
        wait = self._waits.event(kind, match=match, where=where, timeout=timeout, name=name, past=past)
        event: Event = self._block_on(self._calls.await_call(wait))
        return event

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
    ) -> SyncTrigger:
        """Create a one-time trigger. Send its `url` or `token` to the caller, then call its `wait()`.

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
        pending = self._waits.trigger(
            name, type=type, timeout=timeout, payload=payload, schema=schema, signed=signed, signed_id=signed_id
        )
        return SyncTrigger(self._block_on(pending.register()), self._calls, self._block_on)


class SyncTrigger:
    """A one-time way to resume this step from outside."""

    def __init__(
        self, trigger: Trigger, calls: CallRecorder, block_on: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        self._trigger = trigger
        self._calls = calls
        self._block_on = block_on
        self.id = trigger.id
        self.name = trigger.name

    @property
    def token(self) -> str:
        return self._trigger.token

    @property
    def url(self) -> str:
        return self._trigger.url

    def wait(self) -> Any:
        """Suspend until the trigger is fired and return the data sent with it."""
        return self._block_on(self._calls.await_call(self._trigger.wait()))

    @property
    def branch(self) -> TriggerWait:
        """The wait as a branch of `ctx.all` or `ctx.first`."""
        return self._trigger.wait()


class BranchCalls:
    """Builds durable calls that are not made yet."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.time = ctx.wait.time
        self.event = ctx.wait.event
        self.call = ctx.call
        self.call_many = ctx.call_many

    @require_name_and_function
    def run(self, name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> RunCall:
        """Build a call of a function on its own thread.

        Args:
            name: Name of the durable call, unique in the handler.
            fn: The function, followed by its arguments.
        """
        check_run_arguments(name, fn)
        return self._ctx.run(name, asyncio.to_thread, fn, *args, **kwargs)
