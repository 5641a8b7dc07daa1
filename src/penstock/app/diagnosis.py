"""Health checks of an App and its store (`diagnose`), and why a run is not moving (`why`)."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import __version__
from ..core.clock import from_iso, to_iso
from ..core.durations import format_ms
from ..core.errors import AwaitTimeout, PenstockError
from ..core.events import Event
from ..core.near_match import did_you_mean
from ..core.schemas import example_text
from ..core.tracebacks import describe_error, short_path
from ..durable.wait_records import CALL, EVENT, TIME, TRIGGER
from ..flows.reducer import StepView
from ..flows.run_record import FAILED, PAUSED
from ..handlers.registry import Registry
from ..ports.store import JobRow, QueueRow, RunRow
from ..ports.unit import FLOW, JobState
from ..settings import Settings
from .live_workers import LiveWorkers
from .run_actions import jobs_of
from .store_urls import mask, sqlite_path
from .views import read_error
from .waits import WaitView

if TYPE_CHECKING:
    from .app import App

MIN_FREE_DISK_BYTES = 200 * 2**20
MAX_CLOCK_SKEW_MS = 5_000
MAX_FAILURES_EXPLAINED = 5
MAX_RECORDS_CHECKED, MAX_RECORDS_SHOWN = 1000, 5
NEWEST_RUNS, NEWEST_EVENTS = 100, 200  # in which `diagnose` looks for unreadable events
_OPEN = (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE, JobState.SUSPENDED, JobState.HELD)


@dataclass(frozen=True)
class Check:
    """One health check and what it found, on one line or more."""

    name: str
    ok: bool
    detail: str
    is_warning: bool = False  # nothing is wrong, but you should know it


async def diagnose(app: App) -> list[Check]:
    """Check versions, settings, worker files and the store; a failed check does not stop the next.

    An App that is not open is opened for the checks and closed afterwards. A SQLite file that does not exist yet is not
    created."""
    checks = [check_versions(), _check_settings(app.settings), _check_worker_files(app.registry)]
    try:
        if app._is_open:
            return [*checks, *await _check_store(app)]
        url = app.settings.url
        if (path := _file_of(url)) and not _exists(path):
            missing = Check("store", True, f"{mask(url)} does not exist yet; the first run creates it")
            return [*checks, missing, _check_disk(path)]
        async with app:
            return [*checks, *await _check_store(app)]
    except PenstockError as problem:
        return [*checks, failed_check("store", problem)]


def check_versions() -> Check:
    return Check("versions", True, f"Penstock {__version__}, Python {platform.python_version()}")


def failed_check(name: str, problem: PenstockError) -> Check:
    return Check(name, False, f"{problem} [{problem.code}]")


def _check_settings(settings: Settings) -> Check:
    return Check(
        "settings", True, f"{len(settings.sources)} set, the rest are defaults; `penstock settings` lists them"
    )


def _check_worker_files(registry: Registry) -> Check:
    if registry.problems:
        problems = "\n".join(f"{problem} [{problem.code}]" for problem in registry.problems)
        return Check("worker files", False, problems)
    return Check("worker files", True, f"{_count(registry.flows, 'flow')}, {_count(registry.jobs, 'job')}, no problems")


async def _check_store(app: App) -> list[Check]:
    facts = await app.store.describe()
    doubts = "; ".join(facts.pop("doubts", ()))
    warnings = [Check("durability", True, text, is_warning=True) for text in facts.pop("warnings", ())]
    detail = ", ".join(f"{key} {value}" for key, value in facts.items())
    path = _file_of(app.settings.url)
    workers = await LiveWorkers.read(app)
    return [
        Check("store", not doubts, f"{detail}: {doubts}" if doubts else detail),
        *warnings,
        await _check_clock(app),
        *([_check_disk(path)] if path else []),
        await _check_stuck_runs(app),
        *await _check_records(app),
        await _check_events(app),
        _check_workers(app, workers),
        await _check_queues(app, workers),
        await _check_dead_letters(app),
    ]


async def _check_clock(app: App) -> Check:
    newest = await app.store.feed(None)
    now = app.clock.now_ms()
    ahead = int(newest[-1].event.id.partition("-")[0]) - now if newest else 0
    if ahead > MAX_CLOCK_SKEW_MS:
        return Check("clock", False, f"the newest event is {format_ms(ahead)} ahead of the store; correct its clock")
    skew = app._machine_clock.now_ms() - now
    if abs(skew) <= MAX_CLOCK_SKEW_MS:
        return Check("clock", True, f"it is {to_iso(now)}")
    where = "ahead of" if skew > 0 else "behind"
    return Check("clock", True, f"it is {to_iso(now)}; this machine is {format_ms(abs(skew))} {where} the store")


def _check_disk(path: str) -> Check:
    folder = next((parent for parent in Path(path).resolve().parents if parent.is_dir()), Path("/"))
    free = shutil.disk_usage(folder).free
    return Check("disk", free > MIN_FREE_DISK_BYTES, f"{free / 2**30:.1f} GB free for {path}")


async def _check_stuck_runs(app: App) -> Check:
    stuck = [id for id in await app.store.stuck_runs() if await _is_readable(app, id)]
    if stuck:
        return Check("runs", False, f"{_count(stuck, 'stuck run')}: {', '.join(stuck[:5])}; please report this bug")
    return Check("runs", True, "no stuck runs")


async def _is_readable(app: App, run: str) -> bool:
    """Return whether the record of a run can be read. One that cannot is reported as that, not as stuck."""
    row = await app.store.run(run)
    return row is not None and app._run_reader.find_problem(row) is None


async def _check_records(app: App) -> list[Check]:
    """Look for records that cannot be read, among the newest runs and waits and all schedules."""
    runs = {row.id: row for row in await app.store.runs(limit=MAX_RECORDS_CHECKED)}
    for id in await app.store.stuck_runs():
        if (row := await app.store.run(id)) is not None:
            runs[id] = row
    problems = [app._run_reader.find_problem(row) for row in runs.values()]
    problems += [wait.unreadable for wait in await app.waits.list(limit=MAX_RECORDS_CHECKED)]
    problems += [schedule.unreadable for schedule in await app.schedules.list()]
    found = [problem for problem in problems if problem is not None]
    if not found:
        return []
    more = f"; and {len(found) - MAX_RECORDS_SHOWN} more" if len(found) > MAX_RECORDS_SHOWN else ""
    return [Check("records", False, "; ".join(found[:MAX_RECORDS_SHOWN]) + more)]


async def _check_events(app: App) -> Check:
    """Look for events that cannot be read: the newest of the global stream, of each queue and of the newest runs."""
    bodies = app._bodies
    streams = [bodies.global_stream, *(bodies.queue(row.name) for row in await app.store.queues())]
    streams += [bodies.run(row.kind, row.id) for row in await app.store.runs(limit=NEWEST_RUNS)]
    found: list[str] = []
    for stream in streams:
        newest = await app.store.read(stream, limit=NEWEST_EVENTS, backward=True)
        found += [f"{event.id} of {stream}" for event in newest if event.is_unreadable]
    if not found:
        return Check("events", True, "no unreadable events")
    listed = f"{_count(found, 'unreadable event')}: {', '.join(found[:5])}"
    return Check("events", False, f"{listed}; `penstock events STREAM` shows what is stored")


def _check_workers(app: App, live: LiveWorkers) -> Check:
    if drift := live.find_drift():
        return Check("workers", False, f"{'; '.join(drift)}; restart the workers with the older code")
    if unreadable := [worker for worker in live.workers if worker.unreadable is not None]:
        detail = f"{_count(unreadable, 'worker')} of another version: {unreadable[0].unreadable}"
        return Check("workers", True, detail, is_warning=True)
    if not live.workers:
        return Check("workers", True, "no worker is running")
    busy, slots = (sum(getattr(worker, name) for worker in live.workers) for name in ("busy", "slots"))
    detail = f"{_count(live.workers, 'live worker')}, {busy} of {slots} slots busy; `penstock workers` lists them"
    served = {worker.fingerprint for worker in live.workers}
    if app.registry.handlers() and app.registry.fingerprint not in served:
        detail += f"; none of them has loaded these worker files ({app.registry.fingerprint[:12]})"
        return Check("workers", True, detail, is_warning=True)
    return Check("workers", True, detail)


async def _check_queues(app: App, live: LiveWorkers) -> Check:
    known = app.registry.queues()
    works = app._has_dir or bool(known)  # an App without any handlers only adds work
    problems = []
    for row in await app.queues.list():
        waiting = row.counts["waiting"]
        backlog = ", ".join(f"{row.counts[state]} {state}" for state in ("waiting", "delayed") if row.counts[state])
        if row.paused and waiting:
            problems.append(f"queue {row.name} is paused with {waiting} waiting")
        elif not backlog or row.name.endswith("-dlq") or live.serve(row.name):
            continue
        elif works and row.name not in known:
            hint = did_you_mean(row.name, known)
            problems.append(
                f"queue {row.name} has {backlog} but no handler in these worker files{f'; {hint}' if hint else ''}"
                + (f", and {live.advise(row.name)}" if waiting else "")
            )
        elif waiting:
            problems.append(f"queue {row.name} has {backlog}, but {live.advise(row.name)}")
    return Check("queues", not problems, "; ".join(problems) or "no stuck queues")


async def _check_dead_letters(app: App) -> Check:
    counts = ", ".join(f"{count} in {queue}" for queue, count in (await app.dead_letters.queues()).items())
    return Check("dead letters", True, f"{counts}; `penstock dlq list QUEUE` lists them" if counts else "none")


def _file_of(url: str) -> str:
    """Return the path of a SQLite file, or "" for any other store."""
    path = sqlite_path(url) if url.startswith("sqlite:") else ":memory:"
    return path if path != ":memory:" else ""


def _exists(path: str) -> bool:
    return Path(path).exists()


def _count(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"


async def why(app: App, run: str) -> list[str]:
    """Explain why a run is not moving: one sentence for each of its open steps."""
    row = await app._run_reader.row(run)
    engine = app._engines.of_run(row)
    events = await app.events.read_all(app._bodies.run(row.kind, run))
    if row.closed:
        failed = [step for step in getattr(engine.view(events), "steps", {}).values() if step.status == "failed"]
        return [
            _explain_end(row, events, failed),
            *(_explain_failure(step) for step in failed[:MAX_FAILURES_EXPLAINED]),
        ]
    queues = {queue.name: queue for queue in await app.store.queues()}
    workers, live = _workers(events), await LiveWorkers.read(app)
    waits = (await app.waits.list(run=run, limit=1000))[::-1]
    problem = app._run_reader.find_problem(row)
    reasons = [problem] if problem is not None else []
    reasons += [_explain_pause(row, events)] if row.status == PAUSED else []
    for id in await jobs_of(app, run):
        job = await app.store.job(id)
        if job is not None and job.state in _OPEN:
            sleeps = job.state in (JobState.SUSPENDED, JobState.DELAYED)
            own = [wait for wait in waits if (wait.step, wait.n) == engine.instance(job)] if sleeps else []
            reasons += [_explain_wait(app, wait) for wait in own] or [
                _explain_job(app, job, queues[job.queue], workers.get(id, "a worker"), live)
            ]
    reasons += [wait.unreadable for wait in waits if wait.unreadable is not None]
    reasons += engine.explain(row.record) if problem is None else []
    return reasons or ["nothing of this run is queued, running or waiting; this is a bug, please report it"]


def _workers(events: Sequence[Event]) -> dict[str, str]:
    """Return the worker that last started each job."""
    started: list[dict[str, Any]] = [
        event.meta or {} for event in events if event.kind in ("step.started", "node.started")
    ]
    return {str(meta["jobId"]): f"worker {meta.get('worker')}" for meta in started if "jobId" in meta}


def _explain_end(row: RunRow, events: Sequence[Event], failed: Sequence[StepView]) -> str:
    at, data = _last_change(row, events)
    cause = data.get("error") or data.get("reason")
    ended = f"it ended as {row.status} at {at}{f' ({cause})' if cause else ''}"
    if row.status != FAILED or row.kind != FLOW:
        return ended
    if not failed or any(step.code != AwaitTimeout.code for step in failed):
        return f"{ended}; `penstock runs retry {row.id}` retries its failed steps"
    repeat = f"`penstock runs replay {row.id}` starts a new run with the same input"
    if (before := _last_wait(events, failed[-1])) is not None:
        repeat = f"`penstock runs fork {row.id} --at {before}` repeats only that step, in a new run, and {repeat}"
    return f"{ended}; a retry would find the same expired wait: {repeat}"


def _last_wait(events: Sequence[Event], step: StepView) -> str | None:
    """Return the id of the event that records the last wait of a step."""
    kinds = {f"step.await.{kind}" for kind in (TIME, EVENT, TRIGGER)}
    own = (
        e.id
        for e in reversed(events)
        if e.kind in kinds and (e.step, (e.meta or {}).get("n", 1)) == (step.step, step.n)
    )
    return next(own, None)


def _explain_failure(step: StepView) -> str:
    """Return where the user's code failed, and the command that shows more."""
    name = f"step {step.step!r}" if step.n == 1 else f"step {step.step!r} (instance {step.n})"
    text = f"{name} failed with {describe_error(step.error_name, step.error)}"
    if frames := [f"{short_path(one['file'])}:{one['line']} in {one['function']}" for one in step.frames]:
        text += f" at {' > '.join(frames)}"
    elif step.file is not None:
        text += f" at {short_path(step.file)}:{step.line}"
    if step.dead_letter is not None:
        text += f"; `penstock dlq show {step.dead_letter}` shows its input and its stack"
    return text


def _explain_pause(row: RunRow, events: Sequence[Event]) -> str:
    reason = _last_change(row, events)[1].get("reason")
    return f"it is paused ({reason or 'no reason recorded'}); `penstock runs resume {row.id}` resumes it"


def _last_change(row: RunRow, events: Sequence[Event]) -> tuple[str, dict[str, Any]]:
    """Return when a run got its status, and the data of the event that records it."""
    kind = f"{row.kind}.{row.status}"
    found = next((event for event in reversed(events) if event.kind == kind), None)
    if found is None:
        return to_iso(row.updated), {}
    return found.ts, found.data if isinstance(found.data, dict) else {}


def _explain_wait(app: App, wait: WaitView) -> str:
    """Say what a step waits for, since when, until when, and how to resolve the wait."""
    if wait.unreadable is not None:
        return wait.unreadable
    step = f"step {wait.step!r}" if wait.n == 1 else f"step {wait.step!r} (instance {wait.n})"
    if wait.kind == "time":
        left = max(from_iso(wait.until) - app.clock.now_ms(), 0) if wait.until is not None else 0
        return (
            f"{step} has been sleeping since {wait.since}, until {wait.until} (another {format_ms(left)}); "
            f"`penstock waits resolve {wait.id}` ends it now"
        )
    waiting = f"{step} has been waiting since {wait.since}" + (f", until {wait.until}," if wait.until else "")
    if wait.kind == "event":
        match = msgspec.json.encode(app._bodies.redact_value(wait.match)).decode() if wait.match else ""
        command = f"penstock emit {wait.event}" + (f" --data '{match}'" if match else "")
        return f"{waiting} for event {wait.event}{match and f' matching {match}'}; `{command}` resolves it"
    if wait.kind == CALL:
        children = f"{wait.children:,} runs" if wait.children is not None else f"run {wait.child}"
        command = f"penstock runs --parent {wait.run}" if wait.children is not None else f"penstock doctor {wait.child}"
        shows = "lists them" if wait.children is not None else "explains what that run waits for"
        return f"{waiting} for {children} of flow {wait.name} to end; `{command}` {shows}"
    signed, sign = (", with a signature", " --sign") if wait.signed else ("", "")
    data = f" --data '{example_text(wait.schema)}'" if wait.schema is not None else ""
    return (
        f"{waiting} for its trigger {wait.name!r} ({wait.id}) to be fired{signed}; "
        f"`penstock fire{sign} $(penstock waits token {wait.id}){data}` fires it"
    )


def _explain_job(app: App, job: JobRow, queue: QueueRow, worker: str, live: LiveWorkers) -> str:
    step = f"step {job.name!r}"
    match job.state:
        case JobState.WAITING:
            return f"{step} is waiting in queue {queue.name!r}{_explain_queue(app, queue, live)}"
        case JobState.DELAYED:
            return f"{step} {_explain_delay(app, job)}"
        case JobState.ACTIVE:
            return f"{step} {_explain_lease(app, job, worker)}"
        case JobState.HELD:
            return f"{step} is ready, but held while the run is paused"
        case _:
            return f"{step} is suspended until a time, an event or a trigger"


def _explain_queue(app: App, queue: QueueRow, live: LiveWorkers) -> str:
    if queue.paused:
        return f", which is paused; `penstock queues resume {queue.name}` resumes it"
    known = app.registry.queues()
    if live.serve(queue.name):
        others, active = queue.counts[JobState.WAITING] - 1, queue.counts[JobState.ACTIVE]
        return f" with {others} others, while {active} are running"
    if known and queue.name not in known:
        return ", which has no handler in these worker files; add the file, or start a worker that has it"
    return f", and {live.advise(queue.name)}"


def _explain_delay(app: App, job: JobRow) -> str:
    left = job.due - app.clock.now_ms()
    due = f"at {to_iso(job.due)}, in {format_ms(left)}" if left > 0 else f"now (since {to_iso(job.due)})"
    if not job.failures:
        return f"is due {due}"
    error = read_error(job.error).get("error", "") if job.error is not None else ""
    return f"failed {job.failures} times ({error}); its retry is due {due}"


def _explain_lease(app: App, job: JobRow, worker: str) -> str:
    if job.lease is None:
        return f"is running on {worker}, attempt {job.attempt}"
    if job.lease > app.clock.now_ms():
        return f"is running on {worker}, attempt {job.attempt}, with a lease until {to_iso(job.lease)}"
    return (
        f"was claimed by {worker}, attempt {job.attempt}, whose lease expired at {to_iso(job.lease)}; "
        f"the next worker on queue {job.queue!r} takes it over"
    )
