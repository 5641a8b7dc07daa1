"""The rules of the plain jobs of one queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.events import Event
from ...ports.unit import DELIVERIES
from .attempts import OWN_KINDS, Attempts, check_stream
from .event_facts import is_final, is_users
from .facts import Violation

_JOB_ENDS = ("job.completed", "job.cancelled")


def check_queue(stream: str, events: Sequence[Event], *, settled: bool = True, calm: bool = False) -> list[Violation]:
    """The rules of the plain jobs of one queue."""
    found = list(check_stream(stream, events))
    if stream.endswith(f":{DELIVERIES}"):
        return [*found, *_check_deliveries(stream, events)]
    attempts = Attempts(stream, calm)
    added: set[str] = set()
    for event in events:
        if event.kind == "job.added":
            if event.subject in added:
                found.append(Violation("completion", stream, f"{event.subject} was added twice"))
            added.add(event.subject)
        elif event.kind == "job.active":
            found += attempts.started(event)
        elif event.kind in OWN_KINDS or is_users(event.kind):
            found += attempts.spoke(event)
        if event.kind in _JOB_ENDS or (event.kind == "job.failed" and is_final(event)):
            found += attempts.end(event)
    if settled:
        found += [Violation("stuck", stream, f"{job} never ended") for job in sorted(added - attempts.ended.keys())]
    return found


def _check_deliveries(stream: str, events: Sequence[Event]) -> Iterator[Violation]:
    """The engine's own jobs say nothing but that they failed; one that is given up leaves a step asleep."""
    for event in events:
        if event.kind == "job.failed" and is_final(event):
            yield Violation("stuck", stream, f"{event.subject} was given up: {event.data.get('error')}")
