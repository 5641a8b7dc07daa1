"""Declared waits: `wait=` of a step, or `await` in its config, and how an attempt runs them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

from ..core.durations import Duration, is_number, ms_to_duration, to_ms
from ..core.errors import AwaitTimeout, BadArgument, BadDuration, DefinitionError, SettingError
from ..core.events import BadEmit, Event, check_kind
from ..core.options import rename_keys
from ..core.payload import pack, unpack
from ..core.text import shorten
from .session import DurableSession
from .trigger_signatures import SignedId, check_signed
from .waits import TriggerType

AwaitType = Literal["time", "event", "trigger"]
_ALIASES = {"event_kind": "event", "kind": "event", "trigger_type": "trigger"}


@dataclass(frozen=True)
class Await:
    """A wait that is part of a step's definition, so that diagrams show it.

    Args:
        type: `"event"` and `"trigger"` wait before the handler runs, `"time"` waits after it and holds its result.
        event: The kind of event to wait for.
        match: What the event's data must contain, or a function of the step's input that returns it.
        where: A function of the event that accepts or rejects it. A second parameter gets the `WaitContext`, with the
            step's input as `ctx.input`.
        trigger: Who fires the trigger: `"webhook"` (a service), `"user"` or `"api"`. Only recorded with its events.
        name: Name of the durable call.
        payload: What to show to the person who answers a trigger: any JSON value, or a function of the step's input
            that returns it.
        schema: JSON schema the data of a trigger must match.
        signed: Environment variable with the secret that callers sign a trigger's data with.
        signed_id: Which id a signed call must have: `trigger`, the id of the trigger, or `any`, for senders that choose
            their ids.
        announce: Called once with the trigger (its `id`, `token` and `url`) and the input, to send the URL to someone.
        delay: How long to wait, or a function of the handler's result that returns it.
        timeout: Fail with AwaitTimeout after this duration, or continue with `on_timeout`.
        on_timeout: The step that runs instead when the wait expires.
    """

    type: AwaitType
    event: str | None = None
    match: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None
    where: Callable[..., bool] | None = None
    trigger: TriggerType = "webhook"
    name: str | None = None
    payload: Any = None
    schema: Mapping[str, Any] | None = None
    signed: str | None = None
    signed_id: SignedId = "trigger"
    announce: Callable[..., Any] | None = None
    delay: Duration | Callable[[Any], Duration] | None = None
    timeout: Duration | None = None
    on_timeout: str | None = None

    def __post_init__(self) -> None:
        if self.type not in ("time", "event", "trigger"):
            raise DefinitionError(f"the type of a wait must be 'time', 'event' or 'trigger', got {shorten(self.type)}")
        if self.type == "event":
            try:
                check_kind(self.event or "")
            except BadEmit as problem:
                raise DefinitionError(f"a wait of type 'event' requires event=: {problem}") from None
        if self.type == "time" and self.delay is None:
            raise DefinitionError(
                "a wait of type 'time' requires delay=, either a duration or a function that takes the result"
            )
        if self.type == "time" and (self.timeout is not None or self.on_timeout is not None):
            raise DefinitionError("a wait of type 'time' cannot have a timeout; its delay is the whole wait")
        if self.announce is not None and self.type != "trigger":
            raise DefinitionError(f"the option announce requires a wait of type 'trigger', got type {self.type!r}")
        if self.payload is not None and self.type != "trigger":
            raise DefinitionError(f"the option payload requires a wait of type 'trigger', got type {self.type!r}")
        if self.signed is not None and self.type != "trigger":
            raise DefinitionError(f"the option signed requires a wait of type 'trigger', got type {self.type!r}")
        try:
            check_signed(self.signed, self.signed_id)
        except (BadArgument, SettingError) as problem:
            raise DefinitionError(f"a wait of type 'trigger': {problem}") from None
        if self.on_timeout is not None and self.timeout is None:
            raise DefinitionError(f'on_timeout={shorten(self.on_timeout)} requires timeout=, such as "1h"')
        check_where(self.where)
        for name, value in (("timeout", self.timeout), ("delay", None if callable(self.delay) else self.delay)):
            try:
                to_ms(value if value is not None else 0)
            except BadDuration as problem:
                raise DefinitionError(f"the {name} of an await: {problem}") from None

    def describe(self) -> dict[str, Any]:
        """Return the wait as diagrams and the registry show it."""
        shown: dict[str, Any] = {
            "type": self.type,
            "eventKind": self.event,
            "triggerType": self.trigger if self.type == "trigger" else None,
            "name": self.name,
            "onTimeout": self.on_timeout,
        }
        for key, span in (("delay", self.delay), ("timeout", self.timeout)):
            if span is not None and not callable(span):
                shown[key] = to_ms(span)
        return {key: value for key, value in shown.items() if value is not None}


_KEYS = {*(field.name for field in fields(Await)), "delay_ms", "timeout_ms"}
_CAMEL_KEYS = frozenset(("eventKind", "triggerType", "onTimeout", "signedId"))


def read_await(value: Await | Mapping[str, Any] | None, option: str = "wait", *, has_ms: bool = False) -> Await | None:
    """Read a wait: `{type, eventKind, where, match, delay, triggerType, timeout, onTimeout}`.

    Numbers are milliseconds with `has_ms` and in a mapping with camelCase keys, else seconds; `delayMs` and `timeoutMs`
    are always milliseconds. `option` is its name in errors.
    """
    if value is None or isinstance(value, Await):
        return value
    if not isinstance(value, Mapping):
        raise DefinitionError(
            f'`{option}` must be a mapping whose `type` is time, event or trigger, such as {{"type": "time", '
            f'"delay": "1h"}}, got {shorten(value)}'
        )
    options = rename_keys(value, _KEYS, option, aliases=_ALIASES)
    has_ms = has_ms or not _CAMEL_KEYS.isdisjoint(value)
    for name in ("delay", "timeout"):
        ms = options.pop(f"{name}_ms", None)
        if ms is not None:
            if not is_number(ms):
                raise DefinitionError(f"{option}.{name}_ms must be a number of milliseconds, got {shorten(ms)}")
            options[name] = ms_to_duration(ms)
        elif has_ms and name in options:
            options[name] = _in_ms(options[name])
    return Await(**{"type": "event" if "event" in options else "", **options})


def _in_ms(value: Any) -> Any:
    """Return a duration whose number, or the number its function returns, counts milliseconds."""
    if callable(value):
        return lambda result: _in_ms(value(result))
    if inspect.isawaitable(value):
        return _await_ms(value)
    return ms_to_duration(value) if is_number(value) else value


async def _await_ms(value: Awaitable[Any]) -> Any:
    return _in_ms(await value)


async def _settle(value: Any) -> Any:
    """Return a value that a function returned; one of another language must be awaited."""
    return await value if inspect.isawaitable(value) else value


@dataclass(frozen=True)
class WaitContext:
    """The second argument of `where(event, ctx)`: the step that waits, without anything that acts."""

    input: Any
    run_id: str | None = None
    flow: str | None = None
    step: str | None = None
    n: int = 1
    correlation_id: str = ""


def check_where(where: Any) -> None:
    """Raise DefinitionError for a `where` that cannot be called with the event, or with the event and the ctx."""
    if where is None:
        return
    if not callable(where) or inspect.iscoroutinefunction(where):
        shown = "an async function" if callable(where) else shorten(where)
        raise DefinitionError(f"`where` must be a `def` function or a lambda of (event) or (event, ctx), got {shown}")
    names = _parameters(where)
    if names is None:
        return
    if not 1 <= len(names) <= 2:
        raise DefinitionError(f"`where` must take (event) or (event, ctx), got ({', '.join(names)})")
    if len(names) == 2 and names[1] not in ("ctx", "context"):
        raise DefinitionError(
            f"the second parameter of `where` must be named ctx, got {names[1]!r}; the step's input is ctx.input"
        )


def _parameters(fn: Callable[..., Any]) -> list[str] | None:
    """Return the names of the parameters without a default; None if they are not known."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in parameters if one.kind in kinds and one.default is one.empty]


class TimeoutHandover(BaseException):
    """The wait expired, and another step takes over."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class EmittingAttempt(Protocol):
    """The attempt, as a declared wait sees it."""

    @property
    def session(self) -> DurableSession: ...

    def take_emits(self) -> list[tuple[str, bytes, str | None, list[str]]]:
        """Take back what the handler emitted."""
        ...

    def restore_emits(self, emits: list[tuple[str, bytes, str | None, list[str]]]) -> None:
        """Emit again what was taken back."""
        ...


async def wait_before(wait: Await, ctx: WaitContext, attempt: EmittingAttempt) -> Any:
    """Wait before the handler runs, and return the event, or the data the trigger was fired with."""
    session = attempt.session
    try:
        if wait.type == "event":
            return await _wait_for_event(wait, ctx, session)
        trigger = await session.waits.trigger(
            wait.name or "await",
            type=wait.trigger,
            timeout=wait.timeout,
            payload=await _settle(wait.payload(ctx.input)) if callable(wait.payload) else wait.payload,
            schema=wait.schema,
            signed=wait.signed,
            signed_id=wait.signed_id,
        )
        if wait.announce is not None:
            await session.calls.run("await announce", wait.announce, (trigger, ctx.input), {}, None, None)
        return await trigger.wait()
    except AwaitTimeout:
        if wait.on_timeout is None:
            raise
        raise TimeoutHandover(wait.on_timeout) from None


async def _wait_for_event(wait: Await, ctx: WaitContext, session: DurableSession) -> Event:
    assert wait.event is not None
    match = await _settle(wait.match(ctx.input)) if callable(wait.match) else wait.match
    where = wait.where
    accepts = None if where is None else lambda event: _accepts(where, event, ctx)
    return await session.waits.event(
        wait.event, match=match, where=accepts, timeout=wait.timeout, name=wait.name or "await"
    )


def _accepts(where: Callable[..., Any], event: Event, ctx: WaitContext) -> Any:
    names = _parameters(where)
    return where(event) if names is not None and len(names) == 1 else where(event, ctx)


async def wait_after(wait: Await, attempt: EmittingAttempt, run: Callable[[], Awaitable[Any]]) -> Any:
    """Run the handler once, hold its result and its emits for the delay, then return the result."""
    session = attempt.session
    call = session.calls.next_call("await result", "result")
    if call.entry is None:
        result = unpack(pack(await run(), "the result"))
        emits = [[kind, unpack(data), correlation, tags] for kind, data, correlation, tags in attempt.take_emits()]
        held = {"result": result, "emits": emits}
        session.calls.record(call, held)
    else:
        held = unpack(bytes(call.entry.value))
    delay = await _settle(wait.delay(held["result"])) if callable(wait.delay) else wait.delay
    assert delay is not None
    await session.waits.time(delay, name="await")
    attempt.restore_emits([(kind, pack(data), *more) for kind, data, *more in held["emits"]])  # older ones have no tags
    return held["result"]
