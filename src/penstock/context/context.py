"""`ctx` of an `async def` handler: identity, events, state, live output, durable calls and waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Protocol, Unpack, overload

from ..core.argument_checks import check_tags, checked
from ..core.durations import Duration
from ..core.errors import BadArgument
from ..core.events import BadEmit
from ..core.payload import show_stored
from ..core.retry import RetryOption
from ..core.text import shorten, to_text
from ..durable.calls import require_name_and_function
from ..durable.child_runs import ChildRequest
from ..ports.store import ChildRow, ChildState
from .blobs import BlobView
from .launch_requests import JobLaunch, LaunchedId, RunLaunch
from .state import DONE, AlreadyDone, StateView

if TYPE_CHECKING:
    from ..durable.call_recorder import CallRecorder
    from ..durable.calls import DurableCall, RunCall
    from ..durable.child_runs import ChildCall, ChildFailure, OnCallTimeout, OnChildFailure
    from ..durable.session import DurableSession
    from ..durable.waits import Waits
    from .call_types import CallManyOptions, CallOptions, I, NoInput, R

LEVELS = ("debug", "info", "warning", "error")


class AttemptChannel(Protocol):
    """The attempt behind a `ctx`."""

    @property
    def is_stopped(self) -> bool:
        """Whether the attempt must stop."""
        ...

    def check(self) -> None:
        """Raise ContextClosed once the attempt is over."""
        ...

    def bind_thread(self) -> None:
        """Take note that the handler's own code runs on this thread."""
        ...

    def state_view(self, prefix: str) -> StateView:
        """Return the state under a prefix, with the attempt's own writes on top."""
        ...

    @property
    def blobs(self) -> BlobView:
        """The blob store."""
        ...

    @property
    def session(self) -> DurableSession:
        """The journal, the durable calls and the waits of the attempt."""
        ...

    async def list_children(self) -> list[ChildRow]:
        """Return the children of the attempt's job."""
        ...

    async def remove_job(self, id: str) -> bool:
        """Delete a job that no worker holds."""
        ...

    def emit(self, kind: str, data: Any, correlation_id: str | None, tags: Any = None) -> None: ...

    def launch(self, launch: JobLaunch | RunLaunch) -> str:
        """Enqueue a job or start a run when the attempt commits, and return its id."""
        ...

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None: ...

    def progress(self, value: Any) -> None: ...

    def partial(self, chunk: Any) -> None: ...


class CorrelationId(str):
    """A string that can also be called, as `ctx.correlation_id()` in the first spec."""

    __slots__ = ()

    def __call__(self) -> str:
        return str(self)


class LogChannel(Protocol):
    """Where log lines go."""

    def check(self) -> None: ...

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None: ...


class Log:
    """`ctx.log("…")`, `ctx.log.warning("…", order=7)`: a line in the run's stream, with run, step and attempt."""

    def __init__(self, channel: LogChannel, fields: Mapping[str, Any] | None = None) -> None:
        self._channel = channel
        self._fields = fields or {}

    def child(self, **fields: Any) -> Log:
        """Return a log whose lines have these fields too: `log = ctx.log.child(order=7)`.

        A line's own fields win over those of its log, and a child's over its parent's.
        """
        return Log(self._channel, {**self._fields, **fields})

    def __call__(self, message: object, level: str = "info", **fields: Any) -> AlreadyDone:
        if not isinstance(level, str) or (level := "warning" if level == "warn" else level) not in LEVELS:
            raise BadArgument(f"unknown log level {shorten(level)}; use one of: {', '.join(LEVELS)}")
        self._channel.check()
        self._channel.log(level, to_text(message), {**self._fields, **fields} if self._fields else fields)
        return DONE

    def debug(self, message: object, **fields: Any) -> AlreadyDone:
        """Write a debug line.

        Args:
            message: The text.
        """
        return self(message, "debug", **fields)

    def info(self, message: object, **fields: Any) -> AlreadyDone:
        """Write an info line.

        Args:
            message: The text.
        """
        return self(message, "info", **fields)

    def warning(self, message: object, **fields: Any) -> AlreadyDone:
        """Write a warning.

        Args:
            message: The text.
        """
        return self(message, "warning", **fields)

    warn = warning

    def error(self, message: object, **fields: Any) -> AlreadyDone:
        """Write an error line.

        Args:
            message: The text.
        """
        return self(message, "error", **fields)


class Context:
    """The handle of one attempt. Await `ctx.state` and durable calls; other calls may be awaited or not.

    Attributes:
        job_id: The id of the job.
        queue: The queue the job was claimed from.
        attempt: The number of this attempt, from 1. A resume after a wait keeps it.
        run_id: The id of the run; None for a plain job.
        flow: The name of the flow; None for a plain job.
        step: The name of the step; None for a plain job.
        n: Which instance of the step this is, from 1: a step with `mode="each"` has several.
        correlation_id: The correlation id of the run or job.
        awaited: The event, or the data of the trigger, that a declared wait waited for.
    """

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
        # The attempt does not know its handle: a cycle would keep both in memory until a garbage collection.
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
        self.awaited: Any = None

    # Most handlers use few of these: each is built on first use.

    @cached_property
    def state(self) -> StateView:
        """Keys the steps of this run share; for a plain job, the same as `shared`."""
        return self.shared if self.run_id is None else self._channel.state_view(f"run/{self.run_id}/")

    @cached_property
    def shared(self) -> StateView:
        """Keys the whole application shares."""
        return self._channel.state_view("shared/")

    @property
    def blob(self) -> BlobView:
        """Files and other large data, in the blob store of the setting `blob_url`."""
        self._channel.check()
        return self._channel.blobs

    @cached_property
    def log(self) -> Log:
        """Write to the run's stream and to Python's logging."""
        return Log(self._channel)

    @property
    def logger(self) -> Log:
        return self.log

    def emit(
        self, kind: str | Mapping[str, Any], data: Any = None, *, tags: Collection[str] | None = None
    ) -> AlreadyDone:
        """Emit an event. It appears, and starts the steps that listen to it, once, when this attempt commits.

        Also accepts a mapping: `{"kind": …, "data": …, "tags": […]}` and
        `{"type": "log"|"progress"|"partial", "data": …}`.

        Args:
            kind: Kind of the event: dotted words such as "order.paid".
            data: Any JSON value.
            tags: Words to filter events by, such as ["audit", "eu"].
        """
        self._channel.check()
        if isinstance(kind, str):
            self._channel.emit(kind, data, None, tags)
        elif isinstance(kind, Mapping):
            self._emit_mapping(kind)
        else:
            raise BadEmit(f"emit requires a kind and data, or a dict with 'kind', got {shorten(kind)}")
        return DONE

    @checked
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
    ) -> LaunchedId:
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
        self._channel.check()
        launch = JobLaunch(queue, input, key, name, delay, at, priority, retry, correlation_id, order_key)
        return LaunchedId(self._channel.launch(launch))

    @checked
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
    ) -> LaunchedId:
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
        self._channel.check()
        launch = RunLaunch(flow, input, key, delay, at, priority, correlation_id, tags)
        return LaunchedId(self._channel.launch(launch))

    def progress(self, value: Any) -> AlreadyDone:
        """Report progress; shown live.

        Args:
            value: A number up to 100, or any JSON value.
        """
        self._channel.check()
        self._channel.progress(value)
        return DONE

    def partial(self, chunk: Any) -> AlreadyDone:
        """Send a piece of output before the end; shown live.

        Args:
            chunk: Any JSON value.
        """
        self._channel.check()
        self._channel.partial(chunk)
        return DONE

    @checked
    def idempotency_key(self, name: str = "") -> str:
        """Return a key that is the same for every attempt of this step.

        Pass it to other services, so that their effects happen once.

        Args:
            name: Your word for the call, if a step makes several.
        """
        return f"{self._scope}.{name}" if name else self._scope

    @property
    def cancelled(self) -> bool:
        """Whether this attempt must stop: its run was cancelled, its lease was lost or its time is up."""
        return self._channel.is_stopped

    # Children of a job in a tree of jobs

    async def children_values(self) -> dict[str, Any]:
        """Return what the children returned, each under its key, `bull:<queue>:<id>`."""
        self._channel.check()
        rows = await self._channel.list_children()
        return {row.key: show_stored(row.value) for row in rows if row.value is not None}

    async def failed_children(self) -> dict[str, str]:
        """Return the errors of children whose failure this job ignores, each under its key."""
        self._channel.check()
        rows = await self._channel.list_children()
        return {row.key: row.reason or "" for row in rows if row.state is ChildState.IGNORED}

    async def remove_children(self) -> int:
        """Delete the children that have not started, and return how many.

        A job that runs early because a child failed ("continue") cannot complete while other children are pending.
        """
        self._channel.check()
        rows = [row for row in await self._channel.list_children() if row.state is ChildState.UNPROCESSED]
        return sum([await self._channel.remove_job(row.id) for row in rows])

    # Durable calls: made once; a replay of the handler gets the recorded results

    @require_name_and_function
    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        retry: RetryOption | None = None,
        timeout: Duration | None = None,
        **kwargs: Any,
    ) -> RunCall:
        """Call a function once and record its value; a replay of the handler gets the recorded value.

        Args:
            name: Name of the durable call, unique in the handler.
            fn: The function, async or not, followed by its arguments.
            retry: Retry the function here; its final failure is recorded and raised as CallFailed. Without it, a
                failure fails the attempt, and the step's own retry policy decides.
            timeout: Fail the call with AttemptTimeout after this duration.
        """
        return self.calls.run(name, fn, args, kwargs, retry, timeout)

    @overload
    def call(
        self, flow: str, input: Any = None, *, on_failure: OnChildFailure = "raise", **options: Unpack[CallOptions]
    ) -> ChildCall[Any]: ...

    @overload
    def call(
        self,
        flow: NoInput[Coroutine[Any, Any, R]],
        input: None = None,
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallOptions],
    ) -> ChildCall[R]: ...

    @overload
    def call(
        self,
        flow: Callable[Concatenate[I, ...], Coroutine[Any, Any, R]],
        input: I,
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallOptions],
    ) -> ChildCall[R]: ...

    @overload
    def call(
        self,
        flow: NoInput[R],
        input: None = None,
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallOptions],
    ) -> ChildCall[R]: ...

    @overload
    def call(
        self,
        flow: Callable[Concatenate[I, ...], R],
        input: I,
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallOptions],
    ) -> ChildCall[R]: ...

    @overload
    def call(
        self,
        flow: str | Callable[..., Any],
        input: Any = None,
        *,
        result: type[R],
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallOptions],
    ) -> ChildCall[R]: ...

    @overload
    def call(
        self,
        flow: Callable[..., Coroutine[Any, Any, R]],
        input: Any = None,
        *,
        on_failure: Literal["return"],
        **options: Unpack[CallOptions],
    ) -> ChildCall[R | ChildFailure]: ...

    @overload
    def call(
        self,
        flow: Callable[..., R],
        input: Any = None,
        *,
        on_failure: Literal["return"],
        **options: Unpack[CallOptions],
    ) -> ChildCall[R | ChildFailure]: ...

    @overload
    def call(
        self,
        flow: str | Callable[..., Any],
        input: Any = None,
        *,
        result: type[R],
        on_failure: Literal["return"],
        **options: Unpack[CallOptions],
    ) -> ChildCall[R | ChildFailure]: ...

    @checked
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
    ) -> ChildCall[Any]:
        """Start a run of a flow and wait for its end; the step uses no slot meanwhile. Return the run's result.

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
        self._channel.check()
        options = check_tags(tags, "tags") if tags is not None else None
        request = ChildRequest(flow, [input], False, key, priority, correlation_id, options, result)
        return self._channel.session.child_calls.call(
            request, name=name, timeout=timeout, on_failure=on_failure, on_timeout=on_timeout
        )

    @overload
    def call_many(
        self,
        flow: str,
        inputs: Iterable[Any],
        *,
        on_failure: OnChildFailure = "raise",
        **options: Unpack[CallManyOptions],
    ) -> ChildCall[list[Any]]: ...

    @overload
    def call_many(
        self,
        flow: NoInput[Coroutine[Any, Any, R]],
        inputs: Iterable[None],
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallManyOptions],
    ) -> ChildCall[list[R]]: ...

    @overload
    def call_many(
        self,
        flow: Callable[Concatenate[I, ...], Coroutine[Any, Any, R]],
        inputs: Iterable[I],
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallManyOptions],
    ) -> ChildCall[list[R]]: ...

    @overload
    def call_many(
        self,
        flow: NoInput[R],
        inputs: Iterable[None],
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallManyOptions],
    ) -> ChildCall[list[R]]: ...

    @overload
    def call_many(
        self,
        flow: Callable[Concatenate[I, ...], R],
        inputs: Iterable[I],
        *,
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallManyOptions],
    ) -> ChildCall[list[R]]: ...

    @overload
    def call_many(
        self,
        flow: str | Callable[..., Any],
        inputs: Iterable[Any],
        *,
        result: type[R],
        on_failure: Literal["raise"] = "raise",
        **options: Unpack[CallManyOptions],
    ) -> ChildCall[list[R]]: ...

    @overload
    def call_many(
        self,
        flow: Callable[..., Coroutine[Any, Any, R]],
        inputs: Iterable[Any],
        *,
        on_failure: Literal["return"],
        **options: Unpack[CallManyOptions],
    ) -> ChildCall[list[R | ChildFailure]]: ...

    @overload
    def call_many(
        self,
        flow: Callable[..., R],
        inputs: Iterable[Any],
        *,
        on_failure: Literal["return"],
        **options: Unpack[CallManyOptions],
    ) -> ChildCall[list[R | ChildFailure]]: ...

    @overload
    def call_many(
        self,
        flow: str | Callable[..., Any],
        inputs: Iterable[Any],
        *,
        result: type[R],
        on_failure: Literal["return"],
        **options: Unpack[CallManyOptions],
    ) -> ChildCall[list[R | ChildFailure]]: ...

    @checked
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
    ) -> ChildCall[Any]:
        """Start a run of a flow for each input, wait until all have ended, and return their results in order.

        It is one durable call: ten thousand runs cost as much each as ten.

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
        self._channel.check()
        options = check_tags(tags, "tags") if tags is not None else None
        if not isinstance(inputs, Iterable) or isinstance(inputs, str | bytes | Mapping):
            raise BadArgument(f"inputs must be a list with the input of each run, got {shorten(inputs)}")
        request = ChildRequest(flow, list(inputs), True, None, priority, correlation_id, options, result)
        return self._channel.session.child_calls.call(
            request, name=name, timeout=timeout, on_failure=on_failure, on_timeout=on_timeout
        )

    @property
    def wait(self) -> Waits:
        """Wait for a time, an event or a trigger; the step uses no slot meanwhile: `await ctx.wait.time("1h")`."""
        return self._channel.session.waits

    async def all(self, calls: Sequence[DurableCall[Any]]) -> list[Any]:
        """Return the values of several durable calls, in order, once all are done.

        Args:
            calls: Durable calls that were not awaited yet: `ctx.run(…)`, `ctx.call(…)`, `ctx.wait.event(…)`.
        """
        return await self.calls.await_all(calls)

    @checked
    def first(
        self, calls: Mapping[str, DurableCall[Any]], *, name: str = "first"
    ) -> Coroutine[Any, Any, tuple[str, Any]]:
        """Return the name and the value of the durable call that is done first; cancel the other waits.

        Args:
            calls: Durable calls that were not awaited yet, by name.
            name: Name of this choice, if a handler makes several.
        """
        recorder = self.calls
        return recorder.await_first(calls, recorder.next_call(name, "first"))

    @property
    def calls(self) -> CallRecorder:
        """The durable calls of the attempt."""
        return self._channel.session.calls

    def now(self) -> datetime:
        """Return the current time; a replay of the handler gets the same."""
        return self.calls.now()

    def uuid(self) -> str:
        """Return a new UUID; a replay of the handler gets the same."""
        return self.calls.uuid()

    def random(self) -> float:
        """Return a random number from 0 up to 1; a replay of the handler gets the same."""
        return self.calls.random()

    def _emit_mapping(self, event: Mapping[str, Any]) -> None:
        if "kind" in event:
            self._channel.emit(event["kind"], event.get("data"), event.get("correlationId"), event.get("tags"))
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
            case _:
                raise BadEmit(
                    "emit requires a kind and data, a dict with 'kind', or a dict whose 'type' is 'log', "
                    f"'progress' or 'partial', got {shorten(dict(event))}"
                )
