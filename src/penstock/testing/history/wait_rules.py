"""The rules of waits: a wait ends once, for one reason, before its step ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...core.events import Event
from .records import RunHistory, Violation, instance_of, is_final

WAIT_STARTED_KINDS = ("step.await.time", "step.await.event", "step.await.trigger")
WAIT_ENDED_KINDS = ("step.resumed", "step.await.timeout", "step.await.cancelled")
_TRIGGER_ENDED_KINDS = ("trigger.fired", "trigger.timeout")

WaitKey = tuple[str, int, str]  # step, n, the durable call


def check_waits(run: RunHistory, *, is_undisturbed: bool = False) -> Iterator[Violation]:
    """Check that each wait is resolved or expires at most once, and never after its step has ended."""
    waits_ended: dict[WaitKey, Event] = {}
    steps_ended: dict[tuple[str, int], Event] = {}
    suspended: dict[tuple[str, int], bool] = {}  # suspended instance -> whether a wait of it has ended since
    for event in run.events:
        instance = instance_of(event)
        if event.kind in WAIT_STARTED_KINDS or event.kind in WAIT_ENDED_KINDS:
            yield from _check_wait(run, event, waits_ended, steps_ended)
        if event.kind in WAIT_ENDED_KINDS:
            suspended[instance] = True
        elif event.kind in WAIT_STARTED_KINDS:
            if is_undisturbed and suspended.get(instance) is False and not _is_same_suspension(event, run.events):
                yield Violation(
                    "wasted", run.id, f"{event.id}: {instance[0]}#{instance[1]} resumed, but no wait had ended"
                )
            suspended[instance] = False
        elif event.kind == "step.completed" or (event.kind == "step.failed" and is_final(event)):
            steps_ended[instance] = event
            suspended.pop(instance, None)
        elif event.kind == "step.redriven":
            steps_ended.pop(instance, None)


def _is_same_suspension(event: Event, events: Sequence[Event]) -> bool:
    """Return whether the wait before this one belongs to the same suspension: one write may start several waits."""
    attempt = (event.meta or {}).get("attempt")
    before = [
        e for e in events if e.seq < event.seq and instance_of(e) == instance_of(event) and e.kind in WAIT_STARTED_KINDS
    ]
    return bool(before) and (before[-1].meta or {}).get("attempt") == attempt


def _check_wait(
    run: RunHistory, event: Event, waits_ended: dict[WaitKey, Event], steps_ended: dict[tuple[str, int], Event]
) -> Iterator[Violation]:
    instance = instance_of(event)
    wait = (*instance, str(event.data["wait"]))
    what = f"{event.id} {event.kind} of {wait[2]} in {wait[0]}#{wait[1]}"
    if wait in waits_ended:
        yield Violation("waits", run.id, f"{what} follows {waits_ended[wait].kind} ({waits_ended[wait].id})")
    if instance in steps_ended:
        yield Violation("waits", run.id, f"{what} follows {steps_ended[instance].kind} ({steps_ended[instance].id})")
    if event.kind in WAIT_ENDED_KINDS:
        waits_ended[wait] = event


def check_trigger(stream: str, events: Sequence[Event]) -> Iterator[Violation]:
    """Check that a trigger is registered once, and fires or expires at most once."""
    kinds = Counter(event.kind for event in events)
    if kinds["trigger.registered"] != 1:
        yield Violation("trigger", stream, f"was registered {kinds['trigger.registered']} times")
    if sum(kinds[kind] for kind in _TRIGGER_ENDED_KINDS) > 1:
        yield Violation("trigger", stream, f"ended more than once: {[event.kind for event in events]}")
