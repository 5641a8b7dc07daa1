"""What `App` returns about runs, jobs and schedules: decoded values, never rows with bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..core.clock import to_iso
from ..core.errors import UnreadableJob, UnreadableRecord
from ..core.payload import show_stored, unpack_stored
from ..ports.monitoring import WorkerRow
from ..ports.store import ChildState, ForeignSchedule, JobRow, RunRow, ScheduleRow
from ..ports.unit import JobState
from ..schedules.spec import decode_spec, decode_target
from ..worker.presence import UnreadableFacts, read_facts

MAX_STACK_LINES = 12


def add_stack(problem: Exception, error: Any) -> None:
    """Add the last lines of the stack that was recorded with an error, as a note that tracebacks show."""
    stack = error.get("stack") if isinstance(error, dict) else None
    if isinstance(stack, str):
        lines = stack.rstrip().splitlines()
        problem.add_note("\n".join((["  …"] if len(lines) > MAX_STACK_LINES else []) + lines[-MAX_STACK_LINES:]))


class RunSummary(msgspec.Struct, frozen=True, rename="camel"):
    """A run as lists show it. `app.runs.get(id)` has the rest."""

    id: str
    flow: str
    status: str
    closed: bool
    started_at: str
    updated_at: str
    kind: str = "flow"
    waits_for: list[str] = []  # of a waiting run: what its steps wait for and until when
    unreadable: str | None = None  # why its record cannot be read
    parent: str | None = None  # the run that started it
    root: str | None = None  # the first run of that chain
    depth: int = 0  # how many runs wait for it, one above the other
    is_called: bool = False  # whether its parent waits for it


class JobView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A job: where it is, what it received and what became of it."""

    id: str
    queue: str
    name: str
    state: JobState
    input: Any = None
    priority: int = 0
    attempt: int = 0  # the one that runs or ended last; a step that waits has not ended its attempt
    failures: int = 0  # attempts that failed
    crashes: int = 0  # attempts whose worker disappeared
    created_at: str = ""
    due_at: str | None = None
    finished_at: str | None = None
    lease_expires_at: str | None = None
    progress: Any = None
    result: Any = None
    error: Any = None
    run: str | None = None  # the run it belongs to, if it is a step
    parent: str | None = None  # the job that waits for it
    order_key: str | None = None
    waits_for: str | None = None  # the job before it with the same order key, if it is held
    unreadable: str | None = None  # why `input` is missing: it is not JSON


class ChildView(msgspec.Struct, frozen=True):
    """A child of a job, as its parent sees it."""

    key: str  # `bull:<queue>:<id>`
    queue: str
    id: str
    state: ChildState
    value: Any = None  # the result, once it is processed
    reason: str | None = None  # why it failed, if it is ignored or failed


class ScheduleView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A schedule: when it fires, what it starts, and how often it has fired."""

    id: str
    flow: str | None = None
    queue: str | None = None
    name: str | None = None
    input: Any = None
    every_ms: int | None = None
    cron: str | None = None
    tz: str = "UTC"
    at: str | None = None
    start: str | None = None
    end: str | None = None
    limit: int | None = None
    overlap: str = "allow"
    catch_up: str = "one"
    priority: int | None = None
    order_key: str | None = None
    origin: str | None = None  # "code" if a decorator or a worker file declares it
    paused: bool = False
    fired: int = 0
    next_at: str | None = None
    last_at: str | None = None
    unreadable: str | None = None  # why its times or its target are missing
    foreign: bool = False  # a job scheduler of another program: it can be listed and removed, and not changed


class WorkerView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A worker that is alive: where it runs, what it works on, and the code it has loaded."""

    id: str
    name: str  # as in events and logs
    host: str
    pid: int
    version: str  # of Penstock
    fingerprint: str  # of its handlers: workers with the same code have the same one
    queues: list[str]
    slots: int  # handlers it runs at once
    busy: int  # slots in use, at the last report
    started_at: str
    last_seen_at: str
    handlers: dict[str, str] = {}  # the fingerprint of each handler
    is_scoped: bool = False  # it works only on some runs: `penstock run`
    unreadable: str | None = None  # why the rest is missing: another version wrote the report


class StreamView(msgspec.Struct, frozen=True, rename="camel"):
    """A stream of events."""

    name: str
    type: str
    id: str
    events: int  # sequence of its last event: retention may have removed the first ones
    last_event_at: str


class JobPage(list[JobView]):
    """A page of jobs.

    Attributes:
        cursor: Pass it as `after` to get the next page. None if there is no further job.
        is_cut: Whether the look-up by name stopped before the page was full; the next page continues it.
    """

    def __init__(self, jobs: Iterable[JobView] = (), cursor: str | None = None, is_cut: bool = False) -> None:
        super().__init__(jobs)
        self.cursor = cursor
        self.is_cut = is_cut


class QueueView(msgspec.Struct, frozen=True, rename="camel"):
    """A queue and its number of jobs in each state."""

    name: str
    paused: bool
    counts: dict[str, int]
    oldest_at: str | None = None  # since when the job that is next in line waits
    age_ms: int = 0  # how long that is


class QueueMinute(msgspec.Struct, frozen=True):
    """What happened to the jobs of a queue in one minute."""

    at: str  # the start of the minute
    added: int = 0
    completed: int = 0
    failed: int = 0  # for good
    retried: int = 0  # attempts that failed, with another one to come


class LimitValues(msgspec.Struct, frozen=True, rename="camel"):
    """Limits of a queue. None: no limit, and for `concurrency` that of the worker."""

    concurrency: int | None = None  # handlers at once in each worker
    max_active: int | None = None  # jobs at once over all workers
    rate_limit: str | None = None  # such as "100/1m"
    per_key: bool = False  # the rate limit applies to each rate key


class QueueLimitsView(msgspec.Struct, frozen=True, rename="camel"):
    """The limits of a queue: what applies, what its handlers declare, and what was changed."""

    queue: str
    effective: LimitValues
    declared: LimitValues | None = None  # None: this process has no handler of the queue
    override: LimitValues | None = None
    changed_at: str | None = None  # when the override was set


class QueueKey(msgspec.Struct, frozen=True, rename="camel"):
    """An order key or a rate key, and how many open jobs of a queue have it in each state."""

    key: str
    total: int
    counts: dict[str, int]


class QueueKeysView(msgspec.Struct, frozen=True, rename="camel"):
    """The keys of a queue with the most open jobs, the largest first."""

    queue: str
    keys: list[QueueKey]
    others: int = 0  # keys that are not listed
    looked_at: int = 0  # how many jobs of each state were read, at most


def run_summary(row: RunRow, waits_for: Sequence[str] = (), unreadable: str | None = None) -> RunSummary:
    """Return the list entry of a run."""
    times = to_iso(row.created), to_iso(row.updated)
    return RunSummary(
        row.id,
        row.flow,
        row.status,
        row.closed,
        *times,
        row.kind,
        list(waits_for),
        unreadable,
        row.parent,
        row.root,
        row.depth,
        row.call is not None,
    )


def job_view(row: JobRow) -> JobView:
    """Return a job with its input, result and error decoded. Another program may have written any of them."""
    input, unreadable = None, None
    try:
        input = unpack_stored(row.payload, "the input")
    except UnreadableJob as problem:
        unreadable = str(problem)
    return JobView(
        id=row.id,
        queue=row.queue,
        name=row.name,
        state=row.state,
        input=input,
        priority=row.priority,
        attempt=row.attempt,
        failures=row.failures,
        crashes=row.crashes,
        created_at=to_iso(row.created),
        due_at=_time(row.due),
        finished_at=_time(row.finished),
        lease_expires_at=_time(row.lease),
        progress=_value(row.progress),
        result=_value(row.result),
        error=read_error(row.error) if row.error is not None else None,
        run=row.run,
        parent=row.parent,
        order_key=row.order_key,
        waits_for=row.waits_for,
        unreadable=unreadable,
    )


def worker_view(row: WorkerRow) -> WorkerView:
    """Return a worker as it last reported itself."""
    facts, seen = read_facts(row), to_iso(row.seen)
    if isinstance(facts, UnreadableFacts):
        return WorkerView(row.id, "", "", 0, "", "", [], 0, 0, "", seen, unreadable=facts.problem)
    return WorkerView(
        row.id, facts.name, facts.host, facts.pid, facts.version, facts.fingerprint, list(facts.queues), facts.slots,
        facts.busy, to_iso(facts.started), seen, facts.handlers, facts.is_scoped,
    )  # fmt: skip


def read_error(data: bytes) -> dict[str, Any]:
    """Return the error of a job. Other programs write a text."""
    found = show_stored(data)
    return found if isinstance(found, dict) else {"error": found if isinstance(found, str) else str(found)}


def schedule_view(row: ScheduleRow) -> ScheduleView:
    """Return a schedule with its specification and target decoded, or why they cannot be read."""
    try:
        spec, target = decode_spec(row), decode_target(row)
    except UnreadableRecord as problem:
        times = _time(row.next), _time(row.last)
        return ScheduleView(
            row.id, paused=row.paused, fired=row.fired, next_at=times[0], last_at=times[1], unreadable=str(problem)
        )
    return ScheduleView(
        id=row.id,
        flow=target.flow,
        queue=target.queue,
        name=target.name,
        input=target.input,
        every_ms=spec.every_ms,
        cron=spec.cron,
        tz=spec.tz,
        at=_time(spec.at_ms),
        start=_time(spec.start_ms),
        end=_time(spec.end_ms),
        limit=spec.limit,
        overlap=spec.overlap,
        catch_up=spec.catch_up,
        priority=target.priority,
        order_key=target.order_key,
        origin=spec.origin,
        paused=row.paused,
        fired=row.fired,
        next_at=_time(row.next),
        last_at=_time(row.last),
    )


def foreign_schedule_view(row: ForeignSchedule) -> ScheduleView:
    """Return a schedule of another program."""
    return ScheduleView(
        id=row.id,
        queue=row.queue,
        name=row.name or None,
        input=_value(row.data),
        every_ms=row.every_ms,
        cron=row.cron,
        tz=row.tz or "UTC",
        end=row.end,
        limit=row.limit,
        fired=row.fired,
        next_at=_time(row.next),
        foreign=True,
    )


def _time(ms: int | None) -> str | None:
    return to_iso(ms) if ms else None


def _value(data: bytes | None) -> Any:
    return show_stored(data) if data is not None else None
