"""The rules of the plain jobs in one queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...core.events import Event
from ...ports.unit import DELIVERIES
from .attempts import ATTEMPT_KINDS, Attempts, check_stream
from .records import Violation, is_final, is_user_kind

_JOB_ENDS = ("job.completed", "job.cancelled")


def check_queue(
    stream: str, events: Sequence[Event], *, is_finished: bool = True, is_undisturbed: bool = False
) -> list[Violation]:
    """Check the plain jobs in one queue."""
    found = list(check_stream(stream, events))
    if stream.endswith(f":{DELIVERIES}"):
        return [*found, *_check_deliveries(stream, events)]
    attempts = Attempts(stream, is_undisturbed)
    added: set[str] = set()
    for event in events:
        if event.kind == "job.added":
            if event.subject in added:
                found.append(Violation("completion", stream, f"{event.subject} was added twice"))
            added.add(event.subject)
        elif event.kind == "job.active":
            found += attempts.check_start(event)
        elif event.kind in ATTEMPT_KINDS or is_user_kind(event.kind):
            found += attempts.check_record(event)
        if event.kind in _JOB_ENDS or (event.kind == "job.failed" and is_final(event)):
            found += attempts.check_end(event)
    if is_finished:
        found += [Violation("stuck", stream, f"{job} never ended") for job in sorted(added - attempts.ended.keys())]
    return found


def _check_deliveries(stream: str, events: Sequence[Event]) -> Iterator[Violation]:
    """Check the engine's own jobs: they record only failures, and one that fails for good leaves a step suspended."""
    for event in events:
        if event.kind == "job.failed" and is_final(event):
            yield Violation("stuck", stream, f"{event.subject} failed for good: {event.data.get('error')}")
