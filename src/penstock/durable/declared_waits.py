"""Declared waits: `wait=` of a step, or `await` in its config, and how an attempt runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

from ..core.durations import Duration, ms_to_duration, to_ms
from ..core.errors import AwaitTimeout, BadArgument, BadDuration, DefinitionError, SettingError
from ..core.events import BadEmit, Event, check_kind
from ..core.options import rename_keys
from ..core.payload import pack, unpack
from ..core.text import shorten
from .session import DurableSession
from .signed_calls import SignedId, check_signed
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
        where: A function of the event (and the input) that accepts or rejects the event.
        trigger: Who fires the trigger: `"webhook"` (a service), `"user"` or `"api"`. Only recorded with its events.
        name: Name of the durable call.
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
    schema: Mapping[str, Any] | None = None
    signed: str | None = None
    signed_id: SignedId = "trigger"
    announce: Callable[..., Any] | None = None
    delay: Duration | Callable[[Any], Duration] | None = None
    timeout: Duration | None = None
    on_timeout: str | None = None

    def __post_init__(self) -> None:
        if self.type not in ("time", "event", "trigger"):
            raise DefinitionError(
                f"the type of an await must be 'time', 'event' or 'trigger', got {shorten(self.type)}"
            )
        if self.type == "event":
            try:
                check_kind(self.event or "")
            except BadEmit as problem:
                raise DefinitionError(f"an `await` of type 'event' requires the kind of an event: {problem}") from None
        if self.type == "time" and self.delay is None:
            raise DefinitionError(
                "an `await` of type 'time' requires a delay, either a duration or a function of the result"
            )
        if self.type == "time" and (self.timeout is not None or self.on_timeout is not None):
            raise DefinitionError("an `await` of type 'time' cannot have a timeout; its delay is the whole wait")
        if self.announce is not None and self.type != "trigger":
            raise DefinitionError(f"the option announce requires an `await` of type 'trigger', got type {self.type!r}")
        if self.signed is not None and self.type != "trigger":
            raise DefinitionError(f"the option signed requires an `await` of type 'trigger', got type {self.type!r}")
        try:
            check_signed(self.signed, self.signed_id)
        except (BadArgument, SettingError) as problem:
            raise DefinitionError(f"an `await` of type 'trigger': {problem}") from None
        if self.on_timeout is not None and self.timeout is None:
            raise DefinitionError(f"onTimeout={shorten(self.on_timeout)} requires a timeout")
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


def read_await(value: Await | Mapping[str, Any] | None, option: str = "wait") -> Await | None:
    """Read a wait as the specs write it: `{type, eventKind, where, match, delay, triggerType, timeout, onTimeout}`.

    Numbers are seconds, as everywhere; `delayMs` and `timeoutMs` are milliseconds. `option` is its name in errors.
    """
    if value is None or isinstance(value, Await):
        return value
    if not isinstance(value, Mapping):
        raise DefinitionError(
            f'`{option}` must be a mapping whose `type` is time, event or trigger, such as {{"type": "time", '
            f'"delay": "1h"}}, got {shorten(value)}'
        )
    options = rename_keys(value, _KEYS, option, aliases=_ALIASES)
    for name in ("delay", "timeout"):
        ms = options.pop(f"{name}_ms", None)
        if ms is not None:
            if isinstance(ms, bool) or not isinstance(ms, int | float):
                raise DefinitionError(f"{option}.{name}_ms must be a number of milliseconds, got {shorten(ms)}")
            options[name] = ms_to_duration(ms)
    return Await(**{"type": "event" if "event" in options else "", **options})


class TimeoutHandover(BaseException):
    """The wait expired, and another step takes over."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class EmittingAttempt(Protocol):
    """The attempt, as a declared wait sees it."""

    @property
    def session(self) -> DurableSession: ...

    def take_emits(self) -> list[tuple[str, bytes, str | None]]:
        """Take back what the handler emitted."""
        ...

    def restore_emits(self, emits: list[tuple[str, bytes, str | None]]) -> None:
        """Emit again what was taken back."""
        ...


async def wait_before(wait: Await, value: Any, attempt: EmittingAttempt) -> Any:
    """Wait before the handler runs, and return the event, or the data the trigger was fired with."""
    session = attempt.session
    try:
        if wait.type == "event":
            return await _wait_for_event(wait, value, session)
        trigger = await session.waits.trigger(
            wait.name or "await",
            type=wait.trigger,
            timeout=wait.timeout,
            schema=wait.schema,
            signed=wait.signed,
            signed_id=wait.signed_id,
        )
        if wait.announce is not None:
            await session.calls.run("await announce", wait.announce, (trigger, value), {}, None, None)
        return await trigger.wait()
    except AwaitTimeout:
        if wait.on_timeout is None:
            raise
        raise TimeoutHandover(wait.on_timeout) from None


async def _wait_for_event(wait: Await, value: Any, session: DurableSession) -> Event:
    assert wait.event is not None
    match = wait.match(value) if callable(wait.match) else wait.match
    deadline: int | None = None
    while True:
        call = session.waits.event(wait.event, match=match, timeout=wait.timeout, name=wait.name or "await")
        call.deadline = deadline
        event: Event = await call
        if wait.where is None or _accepts(wait.where, event, value):
            return event
        deadline = call.due  # a rejected event does not extend the timeout


def _accepts(where: Callable[..., bool], event: Event, value: Any) -> bool:
    code = getattr(where, "__code__", None)
    return bool(where(event) if code is not None and code.co_argcount == 1 else where(event, value))


async def wait_after(wait: Await, attempt: EmittingAttempt, run: Callable[[], Awaitable[Any]]) -> Any:
    """Run the handler once, hold its result and its emits for the delay, then return the result."""
    session = attempt.session
    call = session.calls.next_call("await result", "result")
    if call.entry is None:
        result = unpack(pack(await run(), "the result"))
        emits = [[kind, unpack(data), correlation] for kind, data, correlation in attempt.take_emits()]
        held = {"result": result, "emits": emits}
        session.calls.record(call, held)
    else:
        held = unpack(bytes(call.entry.value))
    delay = wait.delay(held["result"]) if callable(wait.delay) else wait.delay
    assert delay is not None
    await session.waits.time(delay, name="await")
    attempt.restore_emits([(kind, pack(data), correlation) for kind, data, correlation in held["emits"]])
    return held["result"]
