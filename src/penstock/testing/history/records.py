"""The records of a history, how it is read from a store, and the fields of events that the rules read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ...core.events import RESERVED_PREFIXES, Event, Streams
from ...ports.store import RunRow, Store

PAGE = 1000


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


async def read_history(
    store: Store,
    *,
    effects: Iterable[Effect] = (),
    acknowledged: Collection[str] = (),
    triggers: Mapping[str, Mapping[str, Trigger]] | None = None,
    is_finished: bool = True,
    is_undisturbed: bool = False,
    namespace: str = "nq",
) -> History:
    """Read the history from a store through its feed, so that a feed that skips events is caught as well."""
    streams: dict[str, list[Event]] = {}
    cursor = ""
    while items := await store.feed(cursor, PAGE):
        cursor = items[-1].cursor
        for item in items:
            streams.setdefault(item.stream, []).append(item.event)
    names = Streams(namespace)
    runs = [
        RunHistory(row.id, row.flow, row.status, row.closed, streams.pop(names.flow(row.id), []))
        for row in await _all_runs(store)
    ]
    queues = {name: events for name, events in streams.items() if name.startswith(names.queue(""))}
    trigger_streams = {
        name: events for name, events in streams.items() if name.startswith(names.stream_name("trigger", ""))
    }
    return History(
        runs, queues, list(effects), acknowledged, triggers or {}, is_finished, is_undisturbed, trigger_streams
    )


async def _all_runs(store: Store) -> list[RunRow]:
    rows: list[RunRow] = []
    while page := await store.runs(before=rows[-1].id if rows else None, limit=PAGE):
        rows += page
    return rows
