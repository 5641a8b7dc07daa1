"""What an event does to an entity. Pure: it asks for the answers of user code and gets them from its caller.

`transit` is a generator. It yields what user code must answer (a condition, the actions of a transition, the hooks of a
new status, the fallback) and returns how the event ended. It reads no clock and calls nothing, so any driver, also a
test, gives the same answers and gets the same path.
"""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from ..core.errors import EntityCycle
from ..handlers.entity_machine import Machine, Transition

MAX_AUTOMATIC = 100  # transitions without an event, after one event


class AskCondition(msgspec.Struct, frozen=True):
    """Do all conditions of a transition hold? Answer with True or False."""

    transition: Transition
    status: str


class RunActions(msgspec.Struct, frozen=True):
    """Call the actions of a transition; before the first one of an event, its hooks. Answer with None, or with the
    reason of a rejection."""

    transition: Transition
    status: str
    is_first: bool


class StatusChanged(msgspec.Struct, frozen=True):
    """Call the hooks of a change of the status. Answer with None, or with the reason of a rejection."""

    before: str
    after: str


class CallFallback(msgspec.Struct, frozen=True):
    """Call the fallback. Answer with None, or with the reason of a rejection."""

    status: str


Question = AskCondition | RunActions | StatusChanged | CallFallback
Answer = bool | str | None


class Moved(msgspec.Struct, frozen=True):
    """The entity went along a path of states; the first is where it was. `rejected` is why it ended in `failed`."""

    path: tuple[str, ...]
    rejected: str | None = None


class Kept(msgspec.Struct, frozen=True):
    """The fallback took the event; the status is the same."""


class RefusedEvent(msgspec.Struct, frozen=True):
    """Nothing changed."""

    reason: str
    code: str  # final, no_transition, unmet or rejected


Ending = Moved | Kept | RefusedEvent
Transit = Generator[Question, Answer, Ending]


def transit(machine: Machine, status: str, event: str) -> Transit:
    """Handle one event of an entity in a state."""
    if status in machine.finals:
        return refuse_final(status)
    candidates = machine.candidates(status, event)
    chosen = yield from _choose(candidates, status)
    if chosen is None:
        return (yield from _fall_back(machine, status, event, bool(candidates)))
    path = [status]
    step: Transition | None = chosen
    while step is not None:
        if len(path) > MAX_AUTOMATIC:
            raise EntityCycle(_describe_cycle(event, path))
        rejected = yield RunActions(step, path[-1], len(path) == 1)
        if not isinstance(rejected, str):
            path.append(step.to)
            rejected = yield StatusChanged(path[-2], path[-1])
        if isinstance(rejected, str):
            return (yield from _reject(machine, path, rejected))
        step = yield from _choose(machine.automatic(path[-1]), path[-1])
    return Moved(tuple(path))


def refuse_final(status: str) -> RefusedEvent:
    """Return why a final state refuses an event."""
    return RefusedEvent(f"state {status!r} is final and accepts no event", "final")


def _choose(candidates: list[Transition], status: str) -> Generator[Question, Answer, Transition | None]:
    """Return the first transition whose conditions hold."""
    for one in candidates:
        if not one.conditions or (yield AskCondition(one, status)):
            return one
    return None


def _fall_back(machine: Machine, status: str, event: str, has_candidates: bool) -> Transit:
    if machine.has_fallback:
        rejected = yield CallFallback(status)
        if isinstance(rejected, str):
            return (yield from _reject(machine, [status], rejected))
        return Kept()
    if not has_candidates:
        known = ", ".join(machine.accepted(status)) or "none"
        reason = f"state {status!r} has no transition for event {event!r}; it accepts: {known}"
        return RefusedEvent(reason, "no_transition")
    reason = f"no condition for event {event!r} in state {status!r} holds"
    if machine.fails_unmet and machine.failed is not None:
        yield StatusChanged(status, machine.failed)
        return Moved((status, machine.failed), reason)
    return RefusedEvent(reason, "unmet")


def _reject(machine: Machine, path: list[str], reason: str) -> Transit:
    """End a rejected event: in the failed state if the definition says so, else without any change."""
    if not machine.fails_rejected or machine.failed is None:
        return RefusedEvent(reason, "rejected")
    if path[-1] != machine.failed:
        yield StatusChanged(path[-1], machine.failed)  # its answer cannot reject the failure
        path = [*path, machine.failed]
    return Moved(tuple(path), reason)


def _describe_cycle(event: str, path: list[str]) -> str:
    last = path[-1]
    before = len(path) - 2 - path[-2::-1].index(last) if last in path[:-1] else 0
    cycle = " → ".join(path[before:])
    return (
        f"event {event!r} caused {MAX_AUTOMATIC} transitions in a row: {cycle}. Add a condition to one of them, or "
        "one of these states to states.idles"
    )
