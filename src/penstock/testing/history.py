"""What must hold of every history, whatever happened while it was made: one pure function for every layer of tests.

    history = await read_history(store, effects=log.read(), acknowledged=ids)
    assert check(history) == []

Steps run at least once and are recorded exactly once; a worker that lost its lease can record nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..core.events import RESERVED, Event, Streams
from ..ports.store import RunRow, Store

TERMINAL = ("flow.completed", "flow.failed", "flow.cancelled", "flow.compensated")
# Kinds an attempt writes about itself: only the newest attempt of a job may.
_OWN_KINDS = frozenset(
    f"{family}.{what}"
    for family in ("step", "job")
    for what in ("completed", "failed", "cancelled", "progress", "partial")
) | {"log", "buffer.drop", "schema.error"}
_JOB_ENDS = ("job.completed", "job.cancelled")
PAGE = 1000


class Effect(msgspec.Struct, frozen=True):
    """One execution of a handler, as a log that the engine does not know tells it."""

    run: str  # empty for a plain job
    step: str
    job: str
    attempt: int
    key: str  # the idempotency key the handler was given


class Trigger(msgspec.Struct, frozen=True):
    """What starts a step: the kinds it listens to, and how. Only for steps without `when`."""

    kinds: tuple[str, ...]
    mode: str = "once"


class RunHistory(msgspec.Struct, frozen=True):
    """A run: what its row says, and its stream."""

    id: str
    flow: str
    status: str
    closed: bool
    events: Sequence[Event]


class History(msgspec.Struct, frozen=True):
    """Everything that can be known afterwards.

    `settled`: nothing more is under way, so everything must have ended. `calm`: nothing happened that could cost
    anyone a lease, so every attempt must have been recorded to its end before the next.
    """

    runs: Sequence[RunHistory] = ()
    queues: Mapping[str, Sequence[Event]] = {}
    effects: Sequence[Effect] = ()
    acknowledged: Collection[str] = ()  # runs and jobs whose start was answered
    triggers: Mapping[str, Mapping[str, Trigger]] = {}  # flow -> step -> what starts it
    settled: bool = True
    calm: bool = False


class Violation(msgspec.Struct, frozen=True):
    """A rule that was broken, where, and by what."""

    rule: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.message}"


def check(history: History) -> list[Violation]:
    """Every rule that does not hold; nothing is the only good answer."""
    found: list[Violation] = []
    for run in history.runs:
        found += check_run(run, history.triggers.get(run.flow), settled=history.settled, calm=history.calm)
    for stream, events in history.queues.items():
        found += check_queue(stream, events, settled=history.settled, calm=history.calm)
    found += _check_executions(history)
    found += _check_acknowledged(history)
    return found


# One stream


def check_stream(stream: str, events: Sequence[Event]) -> Iterator[Violation]:
    """Sequence gapless, time never going back."""
    last_ms = last_seq = 0
    for event in events:
        ms, seq = (int(part) for part in event.id.split("-"))
        if last_seq and seq != last_seq + 1:
            yield Violation("seq", stream, f"{event.id} ({event.kind}) follows sequence {last_seq}")
        if ms < last_ms:
            yield Violation("time", stream, f"{event.id} ({event.kind}) goes back from {last_ms}")
        last_ms, last_seq = ms, seq


class _Attempts:
    """The attempts of each job, as its stream tells them. An event that names no job is of its step's newest one."""

    def __init__(self, stream: str, calm: bool) -> None:
        self._stream = stream
        self._calm = calm
        self._failed: set[tuple[str, int]] = set()
        self._jobs: dict[tuple[str, int], str] = {}
        self.latest: dict[str, int] = {}
        self.ended: dict[str, str] = {}

    def job_of(self, event: Event) -> str | None:
        if event.flow is None:
            return event.subject  # a plain job's events are about the job
        meta = event.meta or {}
        job = meta.get("jobId") or self._jobs.get(_instance(event))
        # What a handler emitted names its job as the cause; what came from outside was written by no attempt.
        return meta.get("causationId") if _is_users(event.kind) and "jobId" not in meta else job

    def started(self, event: Event) -> Iterator[Violation]:
        job, attempt = _started_job(event), _meta(event, "attempt")
        self._jobs[_instance(event)] = job
        before = self.latest.get(job, 0)
        if attempt != before + 1:
            yield Violation("attempts", self._stream, f"{job}: attempt {attempt} starts after attempt {before}")
        if job in self.ended:
            yield Violation("attempts", self._stream, f"{job}: attempt {attempt} starts after {self.ended[job]}")
        if self._calm and before and (job, before) not in self._failed:
            yield Violation("wasted", self._stream, f"{job}: attempt {attempt} starts, attempt {before} did not end")
        self.latest[job] = max(attempt, before)

    def spoke(self, event: Event) -> Iterator[Violation]:
        """Whatever an attempt records is recorded while no later attempt has begun and its job has not ended."""
        job, attempt = self.job_of(event), _meta(event, "attempt")
        if attempt is None:
            return
        if event.kind in ("step.failed", "job.failed"):
            self._failed.add((job or "", attempt))
        newest, what = self.latest.get(job or "", 0), f"{event.id} {event.kind} of {job}"
        if attempt != newest:
            yield Violation("fence", self._stream, f"{what} is of attempt {attempt}, {newest} is the newest")
        if job in self.ended:
            yield Violation("fence", self._stream, f"{what} follows {self.ended[job]}")

    def end(self, event: Event) -> Iterator[Violation]:
        job = self.job_of(event)
        if job is None:
            yield Violation(
                "attempts", self._stream, f"{event.id} {event.kind} of {event.step}, which was never started"
            )
            return
        if job in self.ended:
            yield Violation("completion", self._stream, f"{job}: {event.kind} after {self.ended[job]}")
        self.ended[job] = f"{event.kind} ({event.id})"


# Runs


def check_run(
    run: RunHistory, triggers: Mapping[str, Trigger] | None = None, *, settled: bool = True, calm: bool = False
) -> list[Violation]:
    """The rules of one run."""
    found = [*check_stream(run.id, run.events), *_check_ends(run, settled)]
    attempts = _Attempts(run.id, calm)
    for event in run.events:
        if event.kind == "step.started":
            found += attempts.started(event)
        elif event.kind in _OWN_KINDS or _is_users(event.kind):
            found += attempts.spoke(event)
        if event.kind == "step.completed" or (
            event.kind == "step.failed" and _is_final(event) and _meta(event, "attempt")
        ):
            found += attempts.end(event)
    found += _check_instances(run)
    found += _check_causes(run)
    if triggers is not None:
        found += _check_triggers(run, triggers)
    return found


def _check_ends(run: RunHistory, settled: bool) -> Iterator[Violation]:
    """One beginning, one end, and nothing after it. Only a redrive takes a failure back, and says so."""
    events = run.events
    if not events or events[0].kind != "flow.started" or events[0].seq != 1:
        yield Violation("terminal", run.id, "its stream does not begin with flow.started")
    ended: Event | None = None
    for place, event in enumerate(events):
        if event.kind == "flow.started" and place:
            yield Violation("terminal", run.id, f"{event.id}: a second flow.started")
        if ended is not None:
            after = [e.kind for e in events[place : place + 2]]
            if ended.kind == "flow.failed" and after == ["step.redriven", "flow.reopened"]:
                ended = None
            else:
                yield Violation("terminal", run.id, f"{event.id} {event.kind} comes after {ended.kind} ({ended.id})")
        if event.kind in TERMINAL:
            ended = event
    status = ended.kind.removeprefix("flow.") if ended is not None else None
    if run.closed != (ended is not None) or (status is not None and run.status != status):
        yield Violation("terminal", run.id, f"its row says {run.status}, its stream {status or 'that it goes on'}")
    if settled and not run.closed:
        yield Violation(
            "stuck", run.id, f"is still {run.status}; its last event is {events[-1].kind if events else 'none'}"
        )


def _check_instances(run: RunHistory) -> Iterator[Violation]:
    """Each step instance completes at most once, and none is left open by a run that says it is complete or failed."""
    begun: set[tuple[str, int]] = set()
    completed: Counter[tuple[str, int]] = Counter()
    ended: set[tuple[str, int]] = set()
    for event in run.events:
        here = _instance(event)
        match event.kind:
            case "step.started":
                begun.add(here)
            case "step.completed":
                completed[here] += 1
                ended.add(here)
            case "step.failed" if _is_final(event):
                ended.add(here)
            case "step.redriven":
                ended.discard(here)
    for (step, n), times in completed.items():
        if times > 1:
            yield Violation("completion", run.id, f"{step}#{n} completed {times} times")
    if run.closed and run.status != "cancelled":
        for step, n in sorted(begun - ended):
            yield Violation("completion", run.id, f"the run is {run.status}, but {step}#{n} never ended")
    if run.status == "completed":
        for step, n in sorted(begun - completed.keys()):
            yield Violation("completion", run.id, f"the run is completed, but {step}#{n} is not")


def _check_causes(run: RunHistory) -> Iterator[Violation]:
    """What a completed step says it started was started by it, and nothing else was."""
    said: Counter[tuple[str, str]] = Counter()
    enders: set[str] = set()
    jobs: dict[tuple[str, int], str] = {}
    for event in run.events:
        if event.kind == "step.started":
            jobs[_instance(event)] = _meta(event, "jobId")
        elif event.kind == "step.completed":
            job = jobs.get(_instance(event), "")
            enders.add(job)
            said.update((job, step) for step in (event.meta or {}).get("starts", ()))
    seen = Counter((cause, step) for (step, _), cause in _instances(run).items() if cause in enders)
    everything_ran = run.closed and run.status != "cancelled"
    for pair in said.keys() | seen.keys():
        if seen[pair] > said[pair] or (everything_ran and seen[pair] != said[pair]):
            yield Violation(
                "starts", run.id, f"{pair[0]} says it started {pair[1]} {said[pair]} times, {seen[pair]} ran"
            )


def _check_triggers(run: RunHistory, triggers: Mapping[str, Trigger]) -> Iterator[Violation]:
    """Steps counted again from the events alone, by the flow's own table."""
    arrived: Counter[str] = Counter()
    for event in run.events:
        if event.kind == "flow.compensating":
            break
        if _is_users(event.kind):
            arrived[event.kind] += 1
    ran = Counter(step for step, _ in _instances(run))
    everything_ran = run.closed and run.status != "cancelled"
    for step, trigger in triggers.items():
        due = _due(trigger, arrived)
        if ran[step] > due or (everything_ran and ran[step] != due):
            yield Violation(
                "starts",
                run.id,
                f"{step} ({trigger.mode} of {', '.join(trigger.kinds)}) is due {due} times, {ran[step]} ran",
            )


def _due(trigger: Trigger, arrived: Counter[str]) -> int:
    counts = [arrived[kind] for kind in trigger.kinds]
    if not trigger.kinds:
        return 1  # the entry step
    if trigger.mode == "each":
        return sum(counts)
    return int(all(counts) if trigger.mode == "all" else any(counts))


def _instances(run: RunHistory) -> dict[tuple[str, int], str]:
    """Each step instance that ran, and the job or command that caused it."""
    out: dict[tuple[str, int], str] = {}
    for event in run.events:
        if event.kind == "step.started":
            out.setdefault(_instance(event), _meta(event, "causationId"))
    return out


# Plain jobs


def check_queue(stream: str, events: Sequence[Event], *, settled: bool = True, calm: bool = False) -> list[Violation]:
    """The rules of the plain jobs of one queue."""
    found = list(check_stream(stream, events))
    attempts = _Attempts(stream, calm)
    added: set[str] = set()
    for event in events:
        if event.kind == "job.added":
            if event.subject in added:
                found.append(Violation("completion", stream, f"{event.subject} was added twice"))
            added.add(event.subject)
        elif event.kind == "job.active":
            found += attempts.started(event)
        elif event.kind in _OWN_KINDS or _is_users(event.kind):
            found += attempts.spoke(event)
        if event.kind in _JOB_ENDS or (event.kind == "job.failed" and _is_final(event)):
            found += attempts.end(event)
    if settled:
        found += [Violation("stuck", stream, f"{job} never ended") for job in sorted(added - attempts.ended.keys())]
    return found


# Across streams


def _check_executions(history: History) -> Iterator[Violation]:
    """Every execution is of an attempt that was recorded before it, and no attempt was executed twice."""
    recorded: set[tuple[str, int]] = set()
    for events in (*(run.events for run in history.runs), *history.queues.values()):
        for event in events:
            if event.kind in ("step.started", "job.active"):
                recorded.add((_started_job(event), _meta(event, "attempt")))
    executed = Counter((effect.job, effect.attempt) for effect in history.effects)
    for (job, attempt), times in executed.items():
        if (job, attempt) not in recorded:
            yield Violation("executions", job, f"attempt {attempt} ran and is not recorded")
        if times > 1:
            yield Violation("executions", job, f"attempt {attempt} ran {times} times")


def _check_acknowledged(history: History) -> Iterator[Violation]:
    known = {run.id for run in history.runs}
    known |= {event.subject for events in history.queues.values() for event in events if event.kind == "job.added"}
    for id in sorted(set(history.acknowledged) - known):
        yield Violation("lost", id, "was acknowledged and is nowhere")


def _meta(event: Event, name: str) -> Any:
    return (event.meta or {}).get(name)


def _started_job(event: Event) -> str:
    return event.subject if event.kind == "job.active" else str(_meta(event, "jobId"))


def _instance(event: Event) -> tuple[str, int]:
    return event.step or "", (event.meta or {}).get("n", 1)


def _is_final(event: Event) -> bool:
    return isinstance(event.data, dict) and not event.data.get("willRetry")


def _is_users(kind: str) -> bool:
    return kind != "log" and not kind.startswith(RESERVED)


# Reading


async def read_history(
    store: Store,
    *,
    effects: Iterable[Effect] = (),
    acknowledged: Collection[str] = (),
    triggers: Mapping[str, Mapping[str, Trigger]] | None = None,
    settled: bool = True,
    calm: bool = False,
    namespace: str = "nq",
) -> History:
    """The history a store holds. Read by the feed, so that a feed that passes over events is caught as well."""
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
    return History(runs, queues, list(effects), acknowledged, triggers or {}, settled, calm)


async def _all_runs(store: Store) -> list[RunRow]:
    rows: list[RunRow] = []
    while page := await store.runs(before=rows[-1].id if rows else None, limit=PAGE):
        rows += page
    return rows
