"""The attempt as its gates see it, and how a gate gives up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..core.durations import show_ms
from ..core.errors import AwaitTimeout
from ..ports.unit import NewJob, NewWait, SettleWait, WaitChange
from .call_recorder import CallSession
from .wait_records import TRIGGER, WaitBody, WaitResult, decode_body


class WaitSession(CallSession, Protocol):
    """The attempt, as waits see it."""

    @property
    def run(self) -> str: ...

    @property
    def job(self) -> str: ...

    def new_wait_body(self, key: str) -> WaitBody:
        """A gate's words, as far as the attempt knows them."""
        ...

    def say(self, kind: str, data: dict[str, Any], trigger: str | None = None) -> None:
        """Keeps an event of the step for the next commit."""
        ...

    def add_trigger_event(self, kind: str, id: str, data: dict[str, Any]) -> None:
        """Keeps an event on a trigger's own stream."""
        ...

    async def expire(self, gate: Sequence[WaitChange]) -> None:
        """Writes what the journal has kept with a gate that gave up, now. Begins the attempt anew if the gate was
        opened at the last moment."""
        ...

    def look_back(self, gate: str) -> NewJob:
        """A job that looks whether the event was there before the gate."""
        ...

    def url(self, token: str) -> str: ...


class _Settles(Protocol):
    def settle(self, result: WaitResult) -> None: ...


async def expire(session: WaitSession, call: _Settles, gate: NewWait, opened: int) -> None:
    """Gives up on a gate: recorded before the handler hears of it, so that nothing opens it any more."""
    now, trigger = session.now_ms, gate.kind == TRIGGER
    call.settle(WaitResult(now, timeout=True))
    said = {"wait": decode_body(gate.body).key, "awaitType": gate.kind, "duration": now - opened}
    session.say("step.await.timeout", said, gate.id if trigger else None)
    if trigger:
        session.add_trigger_event("trigger.timeout", gate.id, {"duration": now - opened})
    # It is opened once more first: it may never have been held, or have been cancelled when the run had ended and was
    # sent back to work. If something else has closed it, that refuses the unit.
    await session.expire([gate, SettleWait(gate.id, "expired", lenient=True)])


def late(name: str, opened: Mapping[str, Any] | None) -> AwaitTimeout:
    waited = opened["due"] - opened["at"] if opened is not None else 0
    return AwaitTimeout(f"{name} did not come within {show_ms(waited)}")


def timeout_of(timeout_ms: int | None) -> dict[str, int]:
    return {} if timeout_ms is None else {"timeout": timeout_ms}
