"""The records a history consists of, and the fields of events that the rules read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from ...core.events import RESERVED_PREFIXES, Event


class Effect(msgspec.Struct, frozen=True):
    """One execution of a handler, from a log that is independent of the engine."""

    run: str  # empty for a plain job
    step: str
    job: str
    attempt: int
    key: str  # the idempotency key that the handler saw


class Trigger(msgspec.Struct, frozen=True):
    """What starts a step: the event kinds and the mode. Only for steps without `when`."""

    kinds: tuple[str, ...]
    mode: str = "once"


class RunHistory(msgspec.Struct, frozen=True):
    """A run: the columns of its row and its stream."""

    id: str
    flow: str
    status: str
    closed: bool
    events: Sequence[Event]


class History(msgspec.Struct, frozen=True):
    """Everything that is known afterwards.

    `is_finished`: no work is in progress, so every run and job must have ended. `is_undisturbed`: nothing happened
    that could cost a worker its lease, so every attempt must have been recorded to its end before the next one.
    """

    runs: Sequence[RunHistory] = ()
    queues: Mapping[str, Sequence[Event]] = {}
    effects: Sequence[Effect] = ()
    acknowledged: Collection[str] = ()  # runs and jobs whose start was acknowledged to the caller
    triggers: Mapping[str, Mapping[str, Trigger]] = {}  # flow -> step -> what starts it
    is_finished: bool = True
    is_undisturbed: bool = False
    trigger_streams: Mapping[str, Sequence[Event]] = {}


class Violation(msgspec.Struct, frozen=True):
    """A broken rule: which one, where, and by which event."""

    rule: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.message}"


def meta_of(event: Event, name: str) -> Any:
    """Return one field of an event's meta."""
    return (event.meta or {}).get(name)


def started_job(event: Event) -> str:
    """Return the job whose attempt a `step.started` or `job.active` event records."""
    return event.subject if event.kind == "job.active" else str(meta_of(event, "jobId"))


def instance_of(event: Event) -> tuple[str, int]:
    """Return the step instance of an event: step and number."""
    return event.step or "", (event.meta or {}).get("n", 1)


def is_final(event: Event) -> bool:
    """Return whether a failure is the last one, without another retry."""
    return isinstance(event.data, dict) and not event.data.get("willRetry")


def is_user_kind(kind: str) -> bool:
    """Return whether user code emits events of this kind."""
    return kind != "log" and not kind.startswith(RESERVED_PREFIXES)
