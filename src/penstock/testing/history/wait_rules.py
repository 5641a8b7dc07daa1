"""The rules of waits: a gate is opened once, by one thing, while its step is under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...core.events import Event
from .event_facts import instance, is_final
from .facts import RunHistory, Violation

AWAITS = ("step.await.time", "step.await.event", "step.await.trigger")
OPENED = ("step.resumed", "step.await.timeout")
_TRIGGER_ENDS = ("trigger.fired", "trigger.timeout")

Gate = tuple[str, int, str]  # step, n, the durable call


def check_waits(run: RunHistory, *, calm: bool = False) -> Iterator[Violation]:
    """Whatever a step waited for came once or ran out once; nothing of it comes after the step's or the run's end."""
    opened: dict[Gate, Event] = {}
    ended: dict[tuple[str, int], Event] = {}
    asleep: dict[tuple[str, int], bool] = {}  # instances that went to sleep -> whether anything has come since
    for event in run.events:
        here = instance(event)
        if event.kind in AWAITS or event.kind in OPENED:
            yield from _check_gate(run, event, opened, ended)
        if event.kind in OPENED:
            asleep[here] = True
        elif event.kind in AWAITS:
            if calm and asleep.get(here) is False and not _same_sleep(event, run.events):
                yield Violation("wasted", run.id, f"{event.id}: {here[0]}#{here[1]} was woken, and nothing had come")
            asleep[here] = False
        elif event.kind == "step.completed" or (event.kind == "step.failed" and is_final(event)):
            ended[here] = event
            asleep.pop(here, None)
        elif event.kind == "step.redriven":
            ended.pop(here, None)


def _same_sleep(event: Event, events: Sequence[Event]) -> bool:
    """Whether the event before it is of the same going to sleep: several gates are held in one write."""
    attempt = (event.meta or {}).get("attempt")
    before = [e for e in events if e.seq < event.seq and instance(e) == instance(event) and e.kind in AWAITS]
    return bool(before) and (before[-1].meta or {}).get("attempt") == attempt


def _check_gate(
    run: RunHistory, event: Event, opened: dict[Gate, Event], ended: dict[tuple[str, int], Event]
) -> Iterator[Violation]:
    here = instance(event)
    gate = (*here, str(event.data["wait"]))
    what = f"{event.id} {event.kind} of {gate[2]} in {gate[0]}#{gate[1]}"
    if gate in opened:
        yield Violation("waits", run.id, f"{what} follows {opened[gate].kind} ({opened[gate].id})")
    if here in ended:
        yield Violation("waits", run.id, f"{what} follows {ended[here].kind} ({ended[here].id})")
    if event.kind in OPENED:
        opened[gate] = event


def check_trigger(stream: str, events: Sequence[Event]) -> Iterator[Violation]:
    """A trigger is registered once, and fired or given up once."""
    kinds = Counter(event.kind for event in events)
    if kinds["trigger.registered"] != 1:
        yield Violation("trigger", stream, f"was registered {kinds['trigger.registered']} times")
    if sum(kinds[kind] for kind in _TRIGGER_ENDS) > 1:
        yield Violation("trigger", stream, f"was opened more than once: {[event.kind for event in events]}")
