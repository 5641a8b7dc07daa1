"""Declared waits as people write them: `wait=` of a step, or `await` in its config."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ..core.durations import Duration, from_ms, to_ms
from ..core.errors import AwaitTimeout, BadDuration, DefinitionError
from ..core.events import BadEmit, Event, check_kind
from ..core.near_match import check_keys
from ..core.payload import pack, unpack
from .session import DurableSession
from .waits import TriggerType

AwaitType = Literal["time", "event", "trigger"]
_KEYS = {
    *("type", "event", "eventKind", "kind", "match", "where", "trigger", "triggerType", "name", "schema", "signed"),
    *("announce", "delay", "delayMs", "timeout", "timeoutMs", "onTimeout", "on_timeout"),
}


@dataclass(frozen=True)
class Await:
    """A wait that is part of a step's definition, so that diagrams show it.

    `match` is what the event must contain, or a function of the step's input that gives it; `where` is a function of
    the event (and the input), asked when one has come. `delay` may be a function of the handler's result. `announce` is
    called once with the trigger (its `id`, `token` and `url`) and the input, to tell whoever is to fire it.
    """

    type: AwaitType
    event: str | None = None
    match: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None
    where: Callable[..., bool] | None = None
    trigger: TriggerType = "webhook"
    name: str | None = None
    schema: Mapping[str, Any] | None = None
    signed: str | None = None
    announce: Callable[..., Any] | None = None
    delay: Duration | Callable[[Any], Duration] | None = None
    timeout: Duration | None = None
    on_timeout: str | None = None

    def __post_init__(self) -> None:
        if self.type not in ("time", "event", "trigger"):
            raise DefinitionError(f"await type {self.type!r}: write 'time', 'event' or 'trigger'")
        if self.type == "event":
            try:
                check_kind(self.event or "")
            except BadEmit as problem:
                raise DefinitionError(f"an await of type 'event' needs the event's kind: {problem}") from None
        if self.type == "time" and self.delay is None:
            raise DefinitionError("an await of type 'time' needs a delay: a duration, or a function of the result")
        if self.type == "time" and (self.timeout is not None or self.on_timeout is not None):
            raise DefinitionError("an await of type 'time' has no timeout: its delay is all there is to wait for")
        if self.announce is not None and self.type != "trigger":
            raise DefinitionError(f"announce tells of a trigger, and an await of type {self.type!r} has none")
        if self.on_timeout is not None and self.timeout is None:
            raise DefinitionError(f"onTimeout={self.on_timeout!r} without a timeout would never be run: give both")
        for name, value in (("timeout", self.timeout), ("delay", None if callable(self.delay) else self.delay)):
            try:
                to_ms(value if value is not None else 0)
            except BadDuration as problem:
                raise DefinitionError(f"the {name} of an await: {problem}") from None

    def describe(self) -> dict[str, Any]:
        """What a diagram or a registry says of it."""
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


def read_await(value: Await | Mapping[str, Any] | None, option: str = "wait") -> Await | None:
    """A wait as the specs write it: `{type, eventKind, where, match, delay, triggerType, timeout, onTimeout}`.

    Numbers are seconds, as everywhere; `delayMs` and `timeoutMs` are milliseconds. `option` is what it is called there.
    """
    if value is None or isinstance(value, Await):
        return value
    if not isinstance(value, Mapping):
        raise DefinitionError(
            f"{option} is {value!r}: give a mapping with a type of time, event or trigger, such as "
            '{"type": "time", "delay": "1h"}'
        )
    check_keys(value, _KEYS, option)
    return Await(
        type=value.get("type", "event" if "eventKind" in value else ""),
        event=value.get("eventKind", value.get("event", value.get("kind"))),
        match=value.get("match"),
        where=value.get("where"),
        trigger=value.get("triggerType", value.get("trigger", "webhook")),
        name=value.get("name"),
        schema=value.get("schema"),
        signed=value.get("signed"),
        announce=value.get("announce"),
        delay=_span(value, "delay"),
        timeout=_span(value, "timeout"),
        on_timeout=value.get("onTimeout", value.get("on_timeout")),
    )


def _span(value: Mapping[str, Any], key: str) -> Any:
    ms = value.get(f"{key}Ms")
    if ms is not None and (isinstance(ms, bool) or not isinstance(ms, int | float)):
        raise DefinitionError(f"{key}Ms={ms!r} of an await: give a number of milliseconds")
    return from_ms(ms) if ms is not None else value.get(key)


class TimeoutHandover(BaseException):
    """The wait's time is up and another step takes over."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class EmittingAttempt(Protocol):
    """The attempt, as a declared wait sees it."""

    @property
    def session(self) -> DurableSession: ...

    def hold_emits(self) -> list[tuple[str, bytes, str | None]]:
        """Takes back what the handler emitted."""
        ...

    def give_emits(self, emits: list[tuple[str, bytes, str | None]]) -> None:
        """As if the handler had emitted it now."""
        ...


async def before(wait: Await, value: Any, attempt: EmittingAttempt) -> Any:
    """Stands at the gate; gives the event, or what the trigger was fired with."""
    try:
        if wait.type == "event":
            return await _event(wait, value, attempt.session)
        trigger = await attempt.session.waits.trigger(
            wait.name or "await", type=wait.trigger, timeout=wait.timeout, schema=wait.schema, signed=wait.signed
        )
        if wait.announce is not None:
            await attempt.session.calls.run("await announce", wait.announce, (trigger, value), {}, None, None)
        return await trigger.wait()
    except AwaitTimeout:
        if wait.on_timeout is None:
            raise
        raise TimeoutHandover(wait.on_timeout) from None


async def _event(wait: Await, value: Any, session: DurableSession) -> Event:
    assert wait.event is not None
    match = wait.match(value) if callable(wait.match) else wait.match
    deadline: int | None = None
    while True:
        gate = session.waits.event(wait.event, match=match, timeout=wait.timeout, name=wait.name or "await")
        gate.deadline = deadline
        event: Event = await gate
        if wait.where is None or _fits(wait.where, event, value):
            return event
        deadline = gate.due  # an event that was not the one does not give more time


def _fits(where: Callable[..., bool], event: Event, value: Any) -> bool:
    code = getattr(where, "__code__", None)
    return bool(where(event) if code is not None and code.co_argcount == 1 else where(event, value))


async def after(wait: Await, attempt: EmittingAttempt, call: Callable[[], Awaitable[Any]]) -> Any:
    """Runs the handler once, holds what it gave and emitted, and lets time pass."""
    session = attempt.session
    slot = session.calls.call("await result", "result")
    if slot.entry is None:
        result = unpack(pack(await call(), "the result"))
        held = [[kind, unpack(data), corr] for kind, data, corr in attempt.hold_emits()]
        kept = {"result": result, "emits": held}
        session.calls.keep(slot, kept)
    else:
        kept = unpack(bytes(slot.entry.value))
    delay = wait.delay(kept["result"]) if callable(wait.delay) else wait.delay
    assert delay is not None
    await session.waits.time(delay, name="await")
    attempt.give_emits([(kind, pack(data), corr) for kind, data, corr in kept["emits"]])
    return kept["result"]
