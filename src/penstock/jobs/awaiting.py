"""Standing at declared gates, so that the handler need not know of them.

An event or a trigger is waited for before the handler runs; time passes after it, its result and what it emitted held.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..core.errors import AwaitTimeout
from ..core.events import Event
from ..core.payload import pack, unpack
from .await_config import Await
from .sleeping import Sleeping


class Diverted(BaseException):
    """The wait's time is up and another step takes over."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step


class Held(Protocol):
    """The attempt, as a declared wait sees it."""

    @property
    def sleeping(self) -> Sleeping: ...

    def hold_emits(self) -> list[tuple[str, bytes, str | None]]:
        """Takes back what the handler emitted."""
        ...

    def give_emits(self, emits: list[tuple[str, bytes, str | None]]) -> None:
        """As if the handler had emitted it now."""
        ...


async def before(wait: Await, value: Any, attempt: Held) -> Any:
    """Stands at the gate; gives the event, or what the trigger was fired with."""
    try:
        if wait.type == "event":
            return await _event(wait, value, attempt.sleeping)
        trigger = await attempt.sleeping.waits.trigger(
            wait.name or "await", type=wait.trigger, timeout=wait.timeout, schema=wait.schema, signed=wait.signed
        )
        if wait.announce is not None:
            await attempt.sleeping.calls.run("await announce", wait.announce, (trigger, value), {}, None, None)
        return await trigger.wait()
    except AwaitTimeout:
        if wait.on_timeout is None:
            raise
        raise Diverted(wait.on_timeout) from None


async def _event(wait: Await, value: Any, sleeping: Sleeping) -> Event:
    assert wait.event is not None
    match = wait.match(value) if callable(wait.match) else wait.match
    deadline: int | None = None
    while True:
        gate = sleeping.waits.event(wait.event, match=match, timeout=wait.timeout, name=wait.name or "await")
        gate.deadline = deadline
        event: Event = await gate
        if wait.where is None or _fits(wait.where, event, value):
            return event
        deadline = gate.due  # an event that was not the one does not give more time


def _fits(where: Callable[..., bool], event: Event, value: Any) -> bool:
    code = getattr(where, "__code__", None)
    return bool(where(event) if code is not None and code.co_argcount == 1 else where(event, value))


async def after(wait: Await, attempt: Held, call: Callable[[], Awaitable[Any]]) -> Any:
    """Runs the handler once, holds what it gave and emitted, and lets time pass."""
    sleeping = attempt.sleeping
    slot = sleeping.calls.call("await result", "result")
    if slot.entry is None:
        result = unpack(pack(await call(), "the result"))
        held = [[kind, unpack(data), corr] for kind, data, corr in attempt.hold_emits()]
        kept = {"result": result, "emits": held}
        sleeping.calls.keep(slot, kept)
    else:
        kept = unpack(bytes(slot.entry.value))
    delay = wait.delay(kept["result"]) if callable(wait.delay) else wait.delay
    assert delay is not None
    await sleeping.waits.time(delay, name="await")
    attempt.give_emits([(kind, pack(data), corr) for kind, data, corr in kept["emits"]])
    return kept["result"]
