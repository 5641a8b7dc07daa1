"""Durable calls of a handler in a child process: each becomes a frame, and the worker answers it from its journal."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar, Token, copy_context
from datetime import UTC, datetime
from typing import Any

import msgspec

from ..core.clock import datetime_to_ms
from ..core.durations import Duration, to_ms
from ..core.errors import BadArgument, ConcurrentDurableCall
from ..core.events import Event
from ..core.payload import pack, to_plain
from ..core.retry import RetryOption, RetryPolicy
from ..core.task_ready import TaskReady
from ..core.text import shorten
from ..durable.calls import check_run_arguments
from ..durable.child_runs import ChildFailure, ChildRequest
from ..durable.task_graph import Activity, find_activity
from ..ports import frames
from .errors import to_error_frame
from .wire import PendingCall, Wire, find_site

running_function: ContextVar[str | None] = ContextVar("penstock_host_function", default=None)
_BUSY_CHECK_S = 0.01


class HostFunction:
    """A function of the handler that the worker may ask for."""

    def __init__(
        self, name: str, fn: Callable[[Any], Any], inbox: queue.SimpleQueue[Any] | None, *, is_data: bool
    ) -> None:
        self.name = name
        self.fn = fn
        self.inbox = inbox  # of the thread that waits for its result, and calls it
        self.is_data = is_data  # it returns parts of a blob: no value that is recorded

    def enter(self) -> Token[str | None] | None:
        """Take note that it runs, so that durable calls inside it are refused."""
        return None if self.is_data else running_function.set(self.name)

    def pack(self, value: Any) -> Any:
        """Return a result for a frame."""
        return value if self.is_data else msgspec.Raw(pack(value, self.name))


def _leave(token: Token[str | None] | None) -> None:
    if token is not None:
        running_function.reset(token)


class Attempt:
    """The calls of one attempt: of an `async def` handler with a loop, of a `def` handler without."""

    def __init__(self, wire: Wire, loop: asyncio.AbstractEventLoop | None) -> None:
        self.wire = wire
        self.loop = loop
        self.main: asyncio.Task[Any] | None = None
        self.stop: BaseException | None = None  # why the handler must stop
        self.has_seen_stop = False  # the handler's loop runs, and has cancelled it
        self._functions: dict[int, HostFunction] = {}
        self._branches: set[asyncio.Task[Any]] = set()
        self._unanswered: dict[asyncio.Future[Any], int] = {}
        self._executing: set[asyncio.Task[None]] = set()
        self._is_concurrent = False  # the worker knows that the handler does several things at once

    def cancel_soon(self) -> None:
        """Cancel an `async def` handler when its loop runs. Called on the thread that reads frames."""
        if self.loop is not None and self.main is not None:
            self.loop.call_soon_threadsafe(self._cancel_main)

    def _cancel_main(self) -> None:
        self.has_seen_stop = True
        if self.main is not None:
            self.main.cancel()

    def add_function(
        self,
        name: str,
        fn: Callable[[Any], Any],
        inbox: queue.SimpleQueue[Any] | None = None,
        *,
        is_data: bool = False,
    ) -> int:
        """Return the number by which the worker asks for a function."""
        number = next(self.wire.numbers)
        self._functions[number] = HostFunction(name, fn, inbox, is_data=is_data)
        return number

    def check_caller(self, name: str) -> None:
        """Raise if a durable call is made inside the function of another one."""
        running = running_function.get()
        if running is not None:
            raise ConcurrentDurableCall(
                f"{name} was called inside the function of {running}. A replay does not call that function again, so "
                "its calls would be missing. Make durable calls in the handler, or in a function that the handler "
                "awaits itself"
            )

    def note_caller(self) -> None:
        """Send `Concurrent` before the first frame of another task or thread than the handler's own."""
        if self._is_concurrent:
            return
        if self.loop is None:
            is_own = threading.current_thread() is threading.main_thread()
        else:
            task = asyncio.current_task(self.loop)
            is_own = task is self.main or task in self._executing
        if not is_own:
            self.wire.send(frames.Concurrent())
            self._is_concurrent = True  # not before: another thread would send its own frame first

    # Requests

    def request(self, request: frames.Request, site: str | None = None) -> Any:
        """Return the answer to a request; blocks the calling thread."""
        self.note_caller()
        return self._wait(self.wire.call(request, site))

    def ask(self, request: frames.Request, site: str | None = None) -> Coroutine[Any, Any, Any]:
        """Return the answer to a durable call. For a `def` handler, the coroutine blocks and never yields."""
        return self._ask_blocking(request, site) if self.loop is None else self._ask_on_loop(request, site)

    async def _ask_blocking(self, request: frames.Request, site: str | None) -> Any:
        self.note_caller()
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for number in _functions_of(request):
            function = self._functions.get(number)
            if function is not None and function.inbox is not None:
                function.inbox = inbox
        call = self.wire.call(request, site)
        call.future.add_done_callback(lambda _: inbox.put(None))
        while (frame := inbox.get()) is not None:
            self._execute_here(frame)
        return call.future.result()

    async def _ask_on_loop(self, request: frames.Request, site: str | None) -> Any:
        task = asyncio.current_task()
        assert task is not None
        assert self.loop is not None
        others = any(not branch.done() for branch in self._branches)  # one that has ended is discarded a moment later
        is_branch = task is not self.main or bool(self._unanswered) or others
        call = self.wire.call(request, site, is_branch)
        answer = asyncio.wrap_future(call.future)
        self._unanswered[answer] = call.id
        if task is not self.main:
            self._branches.add(task)
            task.add_done_callback(self._branches.discard)
        self.loop.call_soon(self._report_if_blocked)
        try:
            return await answer
        finally:
            del self._unanswered[answer]
            self.loop.call_soon(self._report_if_blocked)

    def _report_if_blocked(self, is_sure: bool = False) -> None:
        """Tell the worker when every branch waits for an answer."""
        if not self._branches or not self._unanswered or self.stop is not None:
            return
        assert self.main is not None
        assert self.loop is not None
        activity = find_activity((self.main, *self._branches), self._unanswered)
        if activity is Activity.BLOCKED and is_sure:
            self.wire.send(frames.Blocked(list(self._unanswered.values())))
        elif activity is Activity.BUSY:
            self.loop.call_later(_BUSY_CHECK_S, self._report_if_blocked)
        else:
            self.loop.call_soon(self._report_if_blocked, activity is Activity.BLOCKED)

    @staticmethod
    def _wait(call: PendingCall) -> Any:
        return call.future.result()

    # Functions that the worker asks for

    def execute(self, frame: frames.Execute) -> None:
        """Call a function where its caller waits for it: on that thread, on the loop, or on a thread of its own."""
        function = self._functions.get(frame.function)
        if function is not None and function.inbox is not None:
            function.inbox.put(frame)
        elif self.loop is not None:
            self.loop.call_soon_threadsafe(self._start, frame)
        else:
            threading.Thread(
                target=copy_context().run, args=(self._execute_here, frame), name="penstock-branch", daemon=True
            ).start()

    def _start(self, frame: frames.Execute) -> None:
        assert self.loop is not None
        task = self.loop.create_task(self._execute(frame))
        self._executing.add(task)
        task.add_done_callback(self._executing.discard)

    async def _execute(self, frame: frames.Execute) -> None:
        function = self._functions[frame.function]
        token = function.enter()
        try:
            value = function.fn(frame.value)
            value = await value if inspect.isawaitable(value) else value
            self.wire.send(frames.Executed(frame.id, function.pack(value)))
        except Exception as problem:
            self._send_failure(frame.id, problem)
        finally:
            _leave(token)

    def _execute_here(self, frame: frames.Execute) -> None:
        function = self._functions[frame.function]
        token = function.enter()
        try:
            value = function.fn(frame.value)
            if inspect.iscoroutine(value):
                value.close()
                raise TypeError(f"{function.name} got an async function in a `def` handler; make the handler async")
            self.wire.send(frames.Executed(frame.id, function.pack(value)))
        except Exception as problem:
            self._send_failure(frame.id, problem)
        finally:
            _leave(token)

    def _send_failure(self, id: int, problem: Exception) -> None:
        self.wire.raised[id] = problem
        self.wire.send(frames.Executed(id, error=to_error_frame(problem)))

    async def end_tasks(self) -> None:
        """Cancel what the handler has left running on the loop."""
        this = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not this]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _functions_of(request: frames.Request) -> list[int]:
    """Return the functions of the handler that a request may execute."""
    match request:
        case frames.StatePatch(function=number) | frames.BlobPut(function=number):
            return [number]
        case frames.AwaitCall(call):
            calls: Sequence[frames.DurableCallFrame] = [call]
        case frames.AwaitAll(found):
            calls = found
        case frames.AwaitFirst(named):
            calls = list(named.values())
        case _:
            return []
    numbers = [one.function for one in calls if isinstance(one, frames.RunFunction)]
    return [*numbers, *(one.where for one in calls if isinstance(one, frames.WaitEvent) and one.where is not None)]


class HostCall(TaskReady[Any]):
    """A durable call; nothing happens until it is awaited."""

    def __init__(self, attempt: Attempt, frame: frames.DurableCallFrame) -> None:
        self.frame = frame
        self.site = find_site()
        self._attempt = attempt

    def _open(self) -> Coroutine[Any, Any, Any]:
        return self.ask()

    async def ask(self) -> Any:
        """Make the call and return its value."""
        return self.read(await self._attempt.ask(frames.AwaitCall(self.frame), self.site))

    def read(self, value: Any) -> Any:
        """Return the value of an answer as the handler gets it."""
        match self.frame:
            case frames.WaitEvent():
                return msgspec.convert(value, Event)
            case frames.CallRun(on_failure="return", many=many):
                return [_read_failure(one) for one in value] if many else _read_failure(value)
            case _:
                return value


def _read_failure(value: Any) -> Any:
    """Return a failed child run as a ChildFailure; other results as they are."""
    if isinstance(value, dict) and {"run", "flow", "status"} <= value.keys() <= {*ChildFailure.__struct_fields__}:
        return ChildFailure(**value)
    return value


class HostCalls:
    """`ctx.calls`: makes durable calls and awaits them, as CallRecorder does in the worker."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def run(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        retry: RetryOption | None,
        timeout: Duration | None,
    ) -> HostCall:
        """Build a `ctx.run`. Its function is called by the task or the thread that awaits it."""
        check_run_arguments(name, fn)
        self._attempt.check_caller(name)
        inbox: queue.SimpleQueue[Any] | None = queue.SimpleQueue() if self._attempt.loop is None else None
        number = self._attempt.add_function(name, lambda _: fn(*args, **kwargs), inbox)
        policy = None if retry is None else msgspec.to_builtins(RetryPolicy.parse(retry))
        return HostCall(self._attempt, frames.RunFunction(name, number, policy, to_span(timeout)))

    def run_on_thread(self, name: str, fn: Callable[[Any], Any]) -> HostCall:
        """Build a `ctx.branch.run`: a function that gets a thread of its own."""
        self._attempt.check_caller(name)
        return HostCall(self._attempt, frames.RunFunction(name, self._attempt.add_function(name, fn)))

    async def await_call(self, call: HostCall) -> Any:
        return await call.ask()

    async def await_all(self, calls: Sequence[HostCall]) -> list[Any]:
        found = _check_calls("ctx.all", calls)
        values = await self._attempt.ask(frames.AwaitAll([call.frame for call in found]), find_site())
        return [call.read(value) for call, value in zip(found, values, strict=True)]

    async def await_first(self, calls: Mapping[str, HostCall], name: str) -> tuple[str, Any]:
        if not isinstance(calls, Mapping):
            raise BadArgument(f"ctx.first requires durable calls by name, got {shorten(calls)}")
        _check_calls("ctx.first", list(calls.values()))
        request = frames.AwaitFirst({key: call.frame for key, call in calls.items()}, name)
        key, value = await self._attempt.ask(request, find_site())
        return key, calls[key].read(value)

    def next_call(self, name: str, _kind: str) -> str:
        self._attempt.check_caller(name)
        return name

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._value("now") / 1000, UTC)

    def uuid(self) -> str:
        return str(self._value("uuid"))

    def random(self) -> float:
        return float(self._value("random"))

    def _value(self, of: Any) -> Any:
        self._attempt.check_caller(f"ctx.{of}")
        return self._attempt.request(frames.RecordedValue(of))


def _check_calls(function: str, calls: Any) -> list[HostCall]:
    if not isinstance(calls, Sequence):
        raise BadArgument(f"{function} requires a list of durable calls, got {shorten(calls)}")
    for call in calls:
        if not isinstance(call, HostCall):
            raise BadArgument(
                f"{function} requires durable calls, got a {type(call).__name__}. Pass each call without `await`, such "
                "as ctx.run(…) or ctx.wait.event(…). In a `def` handler, pass ctx.branch.run(…) or ctx.branch.event(…)"
            )
    return list(calls)


class HostChildCalls:
    """Builds `ctx.call` and `ctx.call_many`."""

    def __init__(self, attempt: Attempt, find_flow: Callable[[Any], str]) -> None:
        self._attempt = attempt
        self._find_flow = find_flow

    def call(
        self, request: ChildRequest, *, name: str | None, timeout: Duration | None, on_failure: Any, on_timeout: Any
    ) -> HostCall:
        self._attempt.check_caller("ctx.call")
        inputs = [to_plain(one, "the input") for one in request.inputs]
        frame = frames.CallRun(
            self._find_flow(request.flow),
            inputs if request.is_many else inputs[0],
            request.is_many,
            request.key,
            to_span(timeout),
            on_failure,
            on_timeout,
            name,
            request.priority,
            request.correlation_id,
            dict(request.tags) if request.tags is not None else None,
        )
        return HostCall(self._attempt, frame)


class HostWaits:
    """`ctx.wait`: what a handler can wait for."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def time(self, until: Duration | datetime, *, name: str = "time") -> HostCall:
        """Wait for a duration (`"1h"`), or until a moment."""
        self._attempt.check_caller(name)
        if isinstance(until, datetime):
            return HostCall(self._attempt, frames.WaitTime(until_ms=datetime_to_ms(until), name=name))
        return HostCall(self._attempt, frames.WaitTime(to_ms(until), name=name))

    def event(
        self,
        kind: str,
        *,
        match: Mapping[str, Any] | None = None,
        where: Callable[[Event], Any] | None = None,
        timeout: Duration | None = None,
        name: str | None = None,
        past: bool = True,
    ) -> HostCall:
        """Wait for an event, from any run or from outside."""
        self._attempt.check_caller(name or kind)
        if match is not None and not isinstance(match, Mapping):
            raise BadArgument(
                "match must be a mapping of the fields the event's data must contain, such as {'order': 7}, got "
                f"{shorten(match)}"
            )
        if where is not None and not callable(where):
            raise BadArgument(f"where must be a function of the event that returns true or false, got {shorten(where)}")
        pattern = to_plain(dict(match), f"the match of {kind}") if match is not None else None
        number = self._add_filter(where) if where is not None else None
        return HostCall(self._attempt, frames.WaitEvent(kind, pattern, to_span(timeout), name, past, number))

    def _add_filter(self, where: Callable[[Event], Any]) -> int:
        inbox: queue.SimpleQueue[Any] | None = queue.SimpleQueue() if self._attempt.loop is None else None

        def accept(value: Any) -> Any:
            verdict = where(msgspec.convert(value, Event))
            return _to_bool(verdict) if inspect.isawaitable(verdict) else bool(verdict)

        return self._attempt.add_function("where", accept, inbox)

    def trigger(
        self,
        name: str,
        *,
        type: Any = "webhook",
        timeout: Duration | None = None,
        payload: Any = None,
        schema: Mapping[str, Any] | None = None,
        signed: str | None = None,
        signed_id: Any = "trigger",
    ) -> PendingHostTrigger:
        """Create a one-time trigger. Send its `url` or `token` to the caller, then await its `wait()`."""
        self._attempt.check_caller(name)
        if not isinstance(type, str) or type not in ("webhook", "user", "api"):
            raise BadArgument(f"type must be 'webhook', 'user' or 'api', got {shorten(type)}")
        if schema is not None and not isinstance(schema, Mapping):
            raise BadArgument(f"schema must be a JSON schema, such as {{'type': 'object'}}, got {shorten(schema)}")
        kind: Any = type
        plain = to_plain(dict(schema), f"the schema of trigger {name!r}") if schema is not None else None
        shown = to_plain(payload, f"the payload of trigger {name!r}")
        request = frames.NewTrigger(name, kind, to_span(timeout), shown, plain, signed, signed_id)
        return PendingHostTrigger(self._attempt, request)


async def _to_bool(verdict: Any) -> bool:
    return bool(await verdict)


class PendingHostTrigger(TaskReady["HostTrigger"]):
    """`ctx.wait.trigger(…)` before it is awaited."""

    def __init__(self, attempt: Attempt, request: frames.NewTrigger) -> None:
        self._attempt = attempt
        self._request = request
        self._site = find_site()

    def _open(self) -> Coroutine[Any, Any, HostTrigger]:
        return self.register()

    async def register(self) -> HostTrigger:
        """Commit the trigger's wait and return the trigger."""
        found = await self._attempt.ask(self._request, self._site)
        return HostTrigger(self._attempt, found["id"], found["name"])


class HostTrigger:
    """A one-time way to resume this step from outside: `id`, `url`, and `wait()` for the data sent to it."""

    def __init__(self, attempt: Attempt, id: str, name: str) -> None:
        self._attempt = attempt
        self._secrets: dict[str, str] | None = None
        self.id = id
        self.name = name

    @property
    def token(self) -> str:
        return self._read("token")

    @property
    def url(self) -> str:
        return self._read("url")

    def wait(self) -> HostCall:
        """Suspend until the trigger is fired and return the data sent with it."""
        return HostCall(self._attempt, frames.WaitTrigger(self.id))

    def _read(self, what: str) -> str:
        if self._secrets is None:
            self._secrets = self._attempt.request(frames.TriggerToken(self.id))
        return self._secrets[what]


def to_span(value: Duration | None) -> int | None:
    """Return a duration in milliseconds."""
    return None if value is None else to_ms(value)
