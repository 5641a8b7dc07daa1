"""Explains why a run is not moving, or how it ended: one sentence for each open or failed step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..core.clock import from_iso, to_iso
from ..core.durations import format_ms
from ..core.errors import AwaitTimeout
from ..core.events import Event
from ..core.schemas import example_text
from ..core.tracebacks import describe_error, short_path
from ..durable.wait_records import CALL, EVENT, TIME, TRIGGER
from ..flows.reducer import StepView
from ..flows.run_record import FAILED, PAUSED
from ..ports.store import JobRow, QueueRow, RunRow
from ..ports.unit import FLOW, JobState
from .live_workers import LiveWorkers
from .run_actions import jobs_of
from .views import read_error
from .waits import WaitView

if TYPE_CHECKING:
    from .app import App

MAX_FAILURES_EXPLAINED = 5
_OPEN = (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE, JobState.SUSPENDED, JobState.HELD)


async def why(app: App, run: str) -> list[str]:
    """Explain why a run is not moving: one sentence for each of its open steps."""
    row = await app._run_reader.row(run)
    run = row.id
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
