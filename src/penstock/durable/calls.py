"""Durable calls: `RunCall` for `ctx.run`, `WaitCall` for what a handler waits for."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar, Token
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from ..core.errors import AttemptTimeout, BadArgument, CallFailed, ReplayError
from ..core.payload import unpack
from ..core.retry import RetryPolicy
from ..core.task_ready import TaskReady
from ..core.text import shorten
from ..core.tracebacks import describe_error
from .call_events import CallTimer
from .journal import JournalCall, JournalEntry

if TYPE_CHECKING:
    from .call_recorder import CallRecorder

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])
log = logging.getLogger("penstock.worker")
_PLAIN = frozenset((type(None), bool, int, float, str, list, dict))  # what most functions return is not awaitable
_EXAMPLE = 'ctx.run("charge", charge, 7)'


# The recorder and the name of the call whose function runs here. Tasks and threads that it starts inherit it.
running_function: ContextVar[tuple[object, str] | None] = ContextVar("penstock_function", default=None)


def leave_function(token: Token[tuple[object, str] | None]) -> None:
    """Allow durable calls again after `enter_function`."""
    running_function.reset(token)


class DurableCall(TaskReady[T]):
    """A durable call; nothing happens until it is awaited."""

    def __init__(self, calls: CallRecorder, name: str) -> None:
        self.name = name
        self.awaited = False
        self._calls = calls

    def __del__(self) -> None:
        if not getattr(self, "awaited", True):
            about = self._calls.journal.about
            log.warning("%s: %s was never awaited, so it did nothing; add `await` before it", about, self.name)

    def _open(self) -> Coroutine[Any, Any, T]:
        return self._calls.await_call(self)

    async def start(self) -> None:
        """Do the work. A wait only checks whether it is over."""

    def is_done(self) -> bool:
        """Return whether the result is known."""
        raise NotImplementedError

    def result(self) -> T:
        """Return the value, or raise the recorded error, once the call is done."""
        raise NotImplementedError


class WaitCall(DurableCall[T]):
    """A durable call that waits for something outside the handler."""

    event_kind: str | None = None  # the kind of event that resolves it
    shared = False  # another wait of the same suspension is for the same kind of event

    @property
    def due(self) -> int | None:
        """When it resolves by itself or expires, in milliseconds; None for never."""
        raise NotImplementedError

    @property
    def resolved_at(self) -> int:
        """When it was resolved, in milliseconds; `ctx.first` picks the earliest."""
        raise NotImplementedError

    def suspend(self) -> None:
        """Add to the next commit what the store needs to resume the handler."""
        raise NotImplementedError

    def register(self) -> None:
        """Add to the next commit what the store needs to resolve it while functions of a `ctx.first` run."""

    def cancel(self) -> None:
        """Cancel it: another call won the `ctx.first`."""
        raise NotImplementedError

    def cancel_if_pending(self) -> None:
        """Cancel it after `register`. The commit is refused if it was resolved meanwhile, so the earlier one wins."""
        self.cancel()


class CallOutcome(NamedTuple):
    """The result of a function that is not recorded yet."""

    at: int
    timer: CallTimer
    value: Any = None
    failure: Exception | None = None


class RunCall(DurableCall[Any]):
    """`ctx.run`: calls a function once and records its value before the handler continues."""

    def __init__(
        self, calls: CallRecorder, call: JournalCall, fn: Callable[[], Any], retry: RetryPolicy, timeout_s: float | None
    ) -> None:
        super().__init__(calls, call.key)
        self._call = call
        self._entry = call.entry
        self._fn = fn
        self._retry = retry
        self._timeout_s = timeout_s

    def is_done(self) -> bool:
        return self._entry is not None

    def result(self) -> Any:
        assert self._entry is not None
        return read_value(self._entry)

    async def start(self) -> None:
        if self._entry is None:
            calls = self._calls
            calls.begin(self._call)
            if calls.is_urgent:
                await calls.flush_urgent()
            if not calls.branches.try_acquire():
                await calls.branches.acquire()
            timer = calls.events.start(self.name)
            try:
                value = await self._call_with_retries(timer)
            except CallFailed as problem:
                self._entry = calls.record_failure(self._call, timer, problem)
                await calls.flush()
                raise
            except Exception as problem:
                calls.events.fail(timer, problem)
                raise
            except BaseException:
                calls.events.drop(timer)
                raise
            finally:
                calls.branches.release()
            self._entry = calls.record_value(self._call, timer, value)
            await calls.flush()

    async def run_unrecorded(self) -> CallOutcome:
        """Call the function without recording its outcome: it may lose a `ctx.first`."""
        self._calls.begin(self._call)
        await self._calls.branches.acquire()
        timer = self._calls.events.start(self.name)
        try:
            value = await self._call_with_retries(timer)
        except Exception as problem:
            return CallOutcome(self._calls.now_ms, timer, failure=problem)
        finally:
            self._calls.branches.release()
            self._calls.events.drop(timer)
        return CallOutcome(self._calls.now_ms, timer, value)

    def accept(self, outcome: CallOutcome) -> None:
        """Record the outcome of the function that won. A failure the step's own retry policy handles is raised."""
        failure = outcome.failure
        if isinstance(failure, CallFailed):
            self._entry = self._calls.record_failure(self._call, outcome.timer, failure)
        elif failure is not None:
            self._calls.events.fail(outcome.timer, failure)
            raise failure
        else:
            self._entry = self._calls.record_value(self._call, outcome.timer, outcome.value)

    def _call_with_retries(self, timer: CallTimer) -> Coroutine[Any, Any, Any]:
        """Call the function. Without retries here, the step's own policy decides: its next attempt calls it again."""
        return self._call_once(timer) if self._retry.attempts == 1 else self._retry_call(timer)

    async def _retry_call(self, timer: CallTimer) -> Any:
        while True:
            try:
                return await self._call_once(timer)
            except ReplayError:
                raise
            except Exception as problem:
                delay = self._retry.next_delay_ms(problem, timer.tries, self._calls.rng)
                if delay is None:
                    raise call_failed(self.name, timer.tries, problem) from problem
            await self._calls.sleep(delay)

    async def _call_once(self, timer: CallTimer) -> Any:
        timer.tries += 1
        token = running_function.set((self._calls, self.name))
        leave_span = timer.span.activate() if timer.span is not None else None
        try:
            if self._timeout_s is not None:
                return await self._call_with_timeout(self._timeout_s)
            value = self._fn()
            if type(value) in _PLAIN or not inspect.isawaitable(value):
                return value
            self._calls.events.show_later()
            return await value
        finally:
            if leave_span is not None:
                leave_span()
            running_function.reset(token)

    async def _call_with_timeout(self, timeout_s: float) -> Any:
        self._calls.events.show_later()
        try:
            async with asyncio.timeout(timeout_s) as limit:
                value = self._fn()
                return await value if inspect.isawaitable(value) else value
        except TimeoutError as late:
            if not limit.expired():
                raise
            problem = AttemptTimeout(f"{self.name} ran longer than its timeout of {timeout_s:g} s")
            # Its cause is the cancellation, whose traceback ends where the function was.
            raise problem.with_traceback(getattr(late.__cause__, "__traceback__", None)) from None


def call_failed(name: str, failures: int, problem: Exception) -> CallFailed:
    """Build the error of a `ctx.run` whose retries are used up."""
    why = describe_error(type(problem).__name__, str(problem))
    return CallFailed(f"{name} failed after {failures} attempt{'s' if failures != 1 else ''}: {why}")


def read_value(entry: JournalEntry) -> Any:
    """Return the recorded value of a call, or raise its recorded failure."""
    if entry.error is not None:
        raise CallFailed(entry.error)
    return unpack(bytes(entry.value))


def mark_shared_kinds(waits: Sequence[WaitCall[Any]]) -> None:
    """Mark waits for the same kind of event: one event must resolve only one of them."""
    kinds = Counter(wait.event_kind for wait in waits)
    for wait in waits:
        wait.shared = kinds[wait.event_kind] > 1


# The arguments of `ctx.run`: a name, then a function that has not been called yet.


def require_name_and_function(method: Method) -> Method:
    """Decorate a `run(self, name, fn, …)` to raise BadArgument for a missing one. Its type stays the same."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 3 and len(args) + ("name" in kwargs) + ("fn" in kwargs) < 3:
            raise _missing_argument(args[1:])
        return method(*args, **kwargs)

    return cast(Method, call)


def check_run_arguments(name: Any, fn: Any) -> None:
    """Raise BadArgument unless these are a name and a function, in this order."""
    if not isinstance(name, str):
        raise BadArgument(f"the first argument of ctx.run must be a name, got {_show(name)}; for example: {_EXAMPLE}")
    if callable(fn):
        return
    shown = _show(fn)
    if inspect.iscoroutine(fn):
        fn.close()  # nothing will await it, and Python would warn about that instead
        raise BadArgument(
            f"the second argument of ctx.run({name!r}) must be a function, got the coroutine {shown}. Pass the "
            f"function without calling it, then its arguments: ctx.run({name!r}, {fn.__name__}, …)"
        )
    raise BadArgument(
        f"the second argument of ctx.run({name!r}) must be a function, got {shown}. Pass the function itself, "
        f"then its arguments: ctx.run({name!r}, charge, 7)"
    )


def _missing_argument(args: tuple[object, ...]) -> BadArgument:
    if not args:
        return BadArgument(f"ctx.run() requires a name, a function and its arguments, for example: {_EXAMPLE}")
    if isinstance(args[0], str):
        return BadArgument(f"ctx.run({args[0]!r}) requires a function after the name, for example: {_EXAMPLE}")
    return BadArgument(f"ctx.run({_show(args[0])}) requires a name before the function, for example: {_EXAMPLE}")


def _show(value: object) -> str:
    """Return a value as it is written in the code, as far as that is known."""
    if inspect.iscoroutine(value):
        return f"{value.__name__}(…)"
    name = getattr(value, "__name__", None) if callable(value) else None
    return name if isinstance(name, str) else shorten(value)
