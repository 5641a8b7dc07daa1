"""Why a run is not moving, in sentences."""

from __future__ import annotations

from typing import Any

import msgspec

from ..core.clock import from_iso, iso
from ..core.durations import show_ms
from ..core.payload import unpack
from ..flows.reducer import FlowView
from ..flows.run_record import PAUSED, RunRecord
from ..flows.run_record import decode as decode_record
from ..flows.units import decode_options
from ..ports.store import JobRow, QueueRow
from ..ports.unit import JobState
from .app import App
from .run_actions import jobs_of
from .waits import WaitView


async def why(app: App, run: str) -> list[str]:
    """What a run waits for, a sentence for each of its open steps."""
    view = await app.run(run)
    row = await app.store.run(run)
    assert row is not None
    if row.closed:
        return [_ended(view)]
    queues = {queue.name: queue for queue in await app.store.queues()}
    workers = await _workers(app, run)
    waits = await app.waits(run=run, limit=1000)
    said = [_paused(view)] if row.status == PAUSED else []
    for id in await jobs_of(app, run):
        job = await app.store.job(id)
        if job is not None and job.state in _REASONS:
            asleep = job.state in (JobState.SUSPENDED, JobState.DELAYED)
            mine = [wait for wait in waits if (wait.step, wait.n) == _instance(job)] if asleep else []
            said += [_of_wait(app, wait) for wait in mine] or [
                _of_job(app, job, queues[job.queue], workers.get(id, "a worker"))
            ]
    said += _joins(app, decode_record(row.record))
    return said or ["nothing of it is queued, running or waiting, which must never be: please report it"]


def _ended(view: FlowView) -> str:
    about = view.error or view.reason
    ended = f"it has ended: {view.status} at {view.completed_at}{f' ({about})' if about else ''}"
    if view.status == "failed":
        return f"{ended}; `penstock runs retry {view.id}` sends its failed steps again"
    return ended


async def _workers(app: App, run: str) -> dict[str, str]:
    """The worker that began each job last."""
    events = await app.events.read_all(f"{app.settings.namespace}:flow:{run}")
    started: list[dict[str, Any]] = [event.meta or {} for event in events if event.kind == "step.started"]
    return {meta["jobId"]: f"worker {meta.get('worker')}" for meta in started if "jobId" in meta}


def _of_job(app: App, job: JobRow, queue: QueueRow, worker: str) -> str:
    step = f"step {job.name!r}"
    match job.state:
        case JobState.WAITING:
            return f"{step} waits in queue {queue.name!r}{_waiting(app, queue)}"
        case JobState.DELAYED:
            return f"{step} {_delayed(app, job)}"
        case JobState.ACTIVE:
            return f"{step} {_active(app, job, worker)}"
        case JobState.HELD:
            return f"{step} is ready, and held back while the run is paused"
        case _:
            return f"{step} is suspended: it waits for a time, an event or a trigger"


_REASONS = (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE, JobState.SUSPENDED, JobState.HELD)


def _paused(view: FlowView) -> str:
    return f"it is paused ({view.reason or 'for no given reason'}): `penstock runs resume {view.id}` lets it go on"


def _instance(job: JobRow) -> tuple[str, int]:
    options = decode_options(job.opts)
    return options.step, options.n


def _of_wait(app: App, wait: WaitView) -> str:
    """What a step waits for, since when, until when, and how to let it go on."""
    which = f"step {wait.step!r}" if wait.n == 1 else f"step {wait.step!r} (instance {wait.n})"
    span = f"since {wait.since}" + (f", at most until {wait.until}" if wait.until is not None else "")
    if wait.kind == "time":
        left = max(from_iso(wait.until) - app.clock.now_ms(), 0) if wait.until is not None else 0
        return f"{which} sleeps since {wait.since} until {wait.until}, for another {show_ms(left)}"
    if wait.kind == "event":
        match = f" that holds {msgspec.json.encode(wait.match).decode()}" if wait.match else ""
        data = f" --data '{msgspec.json.encode(wait.match).decode()}'" if wait.match else ""
        return f"{which} waits {span} for an event {wait.event}{match}: `penstock emit {wait.event}{data}` is one"
    signed = ", with a signature" if wait.signed else ""
    return (
        f"{which} waits {span} for its {wait.trigger} trigger {wait.name!r} ({wait.id}) to be fired{signed}: "
        f"`penstock fire TOKEN` does it, with the token the step was given or one of `penstock waits token {wait.id}`"
    )


def _waiting(app: App, queue: QueueRow) -> str:
    if queue.paused:
        return f", which is paused: `penstock queues resume {queue.name}` lets it go on"
    known = app.registry.queues()
    if known and queue.name not in known:
        return ", which no worker file here works on: add its file, or run a worker that has it"
    active = queue.counts[JobState.ACTIVE]
    if not active:
        return ", and there is no worker for it: nothing of that queue is being worked on; start `penstock worker`"
    return f" with {queue.counts[JobState.WAITING] - 1} others while {active} are being worked on: its turn will come"


def _delayed(app: App, job: JobRow) -> str:
    left = show_ms(max(job.due - app.clock.now_ms(), 0))
    when = f"{iso(job.due)}, in {left}" if job.due > app.clock.now_ms() else f"{iso(job.due)}, which is now"
    if not job.failures:
        return f"is due at {when}"
    error = unpack(job.error).get("error", "") if job.error is not None else ""
    return f"failed {job.failures} times ({error}) and waits for its retry at {when}"


def _active(app: App, job: JobRow, worker: str) -> str:
    held = f"is held by {worker}, attempt {job.attempt}"
    if job.lease is None:
        return held
    if job.lease > app.clock.now_ms():
        return f"{held}, with a lease until {iso(job.lease)}: it is running"
    return f"{held}, whose lease ran out at {iso(job.lease)}: the next worker of queue {job.queue!r} takes it over"


def _joins(app: App, record: RunRecord) -> list[str]:
    flow = app.registry.flows.get(record.flow)
    said = []
    for step, arrived in record.arrived.items():
        kinds = flow.steps[step].kinds if flow is not None and step in flow.steps else ()
        missing = ", ".join(kind for kind in kinds if kind not in arrived)
        said.append(f"step {step!r} has {', '.join(arrived)} and waits for {missing or 'other events'}")
    return said
