"""What `ctx.run` is given: a name, then a function that has not been called. A slip is told in a sentence."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from ..core.errors import AttemptTimeout, BadArgument, CallFailed, ReplayError
from ..core.payload import unpack
from ..core.retry import RetryPolicy
from .journal import JournalCall, JournalEntry

if TYPE_CHECKING:
    from .call_recorder import CallRecorder


Run = TypeVar("Run", bound=Callable[..., Any])
_LIKE = 'ctx.run("charge", charge, 7)'


def with_name_and_function(method: Run) -> Run:
    """For a `run(self, name, fn, …)`: what is left out is named. Type checkers see the method as it is."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 3 and len(args) + ("name" in kwargs) + ("fn" in kwargs) < 3:
            raise _incomplete(args[1:])
        return method(*args, **kwargs)

    return cast(Run, call)


def check_run(name: Any, fn: Any) -> None:
    """A name and a function, in this order."""
    if not isinstance(name, str):
        raise BadArgument(f"ctx.run({_shown(name)}, …): give its name first, then the function: {_LIKE}")
    if callable(fn):
        return
    shown, like = _shown(fn), f"ctx.run({name!r}, charge, 7)"
    if inspect.iscoroutine(fn):
        fn.close()  # nobody will await it, and Python would complain of that instead
        raise BadArgument(
            f"ctx.run({name!r}, {shown}): this is called already, and would be called again by a handler that is run "
            f"again: give the function itself, then its arguments: ctx.run({name!r}, {fn.__name__}, …)"
        )
    raise BadArgument(
        f"ctx.run({name!r}, {shown}): give the function itself, then its arguments, so that it is called once: {like}"
    )


def _incomplete(given: tuple[object, ...]) -> BadArgument:
    if not given:
        return BadArgument(f"ctx.run(): give a name, a function and its arguments: {_LIKE}")
    if isinstance(given[0], str):
        return BadArgument(f"ctx.run({given[0]!r}): the function is missing, give it after the name: {_LIKE}")
    return BadArgument(f"ctx.run({_shown(given[0])}): the name is missing, give it before the function: {_LIKE}")


def _shown(value: object) -> str:
    """As it stands in the code, as far as that can be told."""
    if inspect.iscoroutine(value):
        return f"{value.__name__}(…)"
    name = getattr(value, "__name__", None) if callable(value) else None
    shown = name if isinstance(name, str) else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


T = TypeVar("T")
log = logging.getLogger("penstock.worker")


class CallOutcome(NamedTuple):
    """How a function ended, of which nothing is recorded yet."""

    at: int
    value: Any = None
    failure: Exception | None = None


class DurableCall(Generic[T]):
    """A durable call that has not been awaited yet."""

    def __init__(self, calls: CallRecorder, name: str) -> None:
        self.name = name
        self.awaited = False
        self._calls = calls

    def __del__(self) -> None:
        if not getattr(self, "awaited", True):
            whose = self._calls.journal.about
            log.warning("%s: %s was never awaited, so it did nothing: write `await` before it", whose, self.name)

    def __await__(self) -> Generator[Any, None, T]:
        return self._calls.one(self).__await__()

    async def begin(self) -> None:
        """Does what there is to do; a gate only looks whether it is open."""

    def done(self) -> bool:
        raise NotImplementedError

    def result(self) -> T:
        """The value, or the recorded error raised, once it is done."""
        raise NotImplementedError


class WaitCall(DurableCall[T]):
    """A call that waits for something outside; see waits."""

    topic: str | None = None  # the kind of event that opens it
    shared = False  # another gate that is held with it has the same topic

    @property
    def due(self) -> int | None:
        """When it opens by itself, or gives up."""
        raise NotImplementedError

    @property
    def resolved_at(self) -> int:
        """When it was opened, once it is done; the first one wins."""
        raise NotImplementedError

    def hold(self) -> None:
        """Keeps what must be written for the handler to sleep on it."""
        raise NotImplementedError

    def watch(self) -> None:
        """Keeps what must be written for it to be opened while functions run beside it."""

    def let_go(self) -> None:
        """Another gate won."""
        raise NotImplementedError

    def forgo(self) -> None:
        """The same after it was watched: the unit is refused if it was opened meanwhile, so the earlier one wins."""
        self.let_go()


class RunCall(DurableCall[Any]):
    """`ctx.run`: a function called once; its value is recorded before the handler goes on."""

    def __init__(
        self, calls: CallRecorder, call: JournalCall, fn: Callable[[], Any], retry: RetryPolicy, timeout: float | None
    ) -> None:
        super().__init__(calls, call.key)
        self._call = call
        self._entry = call.entry
        self._fn = fn
        self._retry = retry
        self._timeout = timeout

    def done(self) -> bool:
        return self._entry is not None

    def result(self) -> Any:
        assert self._entry is not None
        return value_of(self._entry)

    async def begin(self) -> None:
        if self._entry is None:
            await self._calls.flush_urgent()
            try:
                value = await self._tried()
            except CallFailed as problem:
                self._entry = self._calls.keep(self._call, None, str(problem))
                await self._calls.flush()
                raise
            self._entry = self._calls.keep(self._call, value)
            await self._calls.flush()

    async def outcome(self) -> CallOutcome:
        """Calls the function and records nothing: it may yet lose."""
        try:
            value = await self._tried()
        except Exception as problem:
            return CallOutcome(self._calls.now_ms, failure=problem)
        return CallOutcome(self._calls.now_ms, value)

    def take(self, outcome: CallOutcome) -> None:
        """Keeps how the function ended; a failure that is the step's own is raised."""
        if outcome.failure is not None and not isinstance(outcome.failure, CallFailed):
            raise outcome.failure
        error = str(outcome.failure) if outcome.failure is not None else None
        self._entry = self._calls.keep(self._call, outcome.value, error)

    async def _tried(self) -> Any:
        failures = 0
        while True:
            try:
                return await self._once()
            except ReplayError:
                raise
            except Exception as problem:
                failures += 1
                if self._retry.attempts == 1:
                    raise  # the step's own policy decides, and the call is made again with it
                delay = self._retry.next_delay_ms(problem, failures, self._calls.rng)
                if delay is None:
                    message = f"{self.name} failed for good after {failures} tries: {type(problem).__name__}: {problem}"
                    raise CallFailed(message) from problem
            await self._calls.pause(delay)

    async def _once(self) -> Any:
        try:
            async with asyncio.timeout(self._timeout) as limit:
                value = self._fn()
                return await value if inspect.isawaitable(value) else value
        except TimeoutError:
            if not limit.expired():
                raise
            raise AttemptTimeout(f"{self.name} ran longer than its timeout of {self._timeout:g} s") from None


def value_of(entry: JournalEntry) -> Any:
    """The recorded value of a call, or its recorded failure."""
    if entry.error is not None:
        raise CallFailed(entry.error)
    return unpack(bytes(entry.value))


def tell_apart(gates: Sequence[WaitCall[Any]]) -> None:
    """Gates for one kind of event must know of each other: one event is to open one of them."""
    topics = Counter(gate.topic for gate in gates)
    for gate in gates:
        gate.shared = topics[gate.topic] > 1
