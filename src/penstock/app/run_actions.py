"""Doing a run again: its failed steps, or all of it as a new run."""

from __future__ import annotations

from typing import Any

from ..core.errors import RunError
from ..core.events import Event
from ..core.ids import dead_letter_id, step_job_id
from ..core.redaction import REDACTED
from ..flows.run_record import FAILED, RUNNING
from ..flows.run_record import decode as decode_record
from ..ports.store import JobRow
from ..ports.unit import JobState
from .app import App
from .queues import Redriven


async def jobs_of(app: App, run: str) -> list[str]:
    """The ids of every job a run has had, oldest first, whether or not they are still kept."""
    stream = f"{app.settings.namespace}:flow:{run}"
    said = [job for event in await app.events.read_all(stream) if (job := (event.meta or {}).get("jobId"))]
    row = await app.store.run(run)
    tallies = decode_record(row.record).steps if row is not None else {}
    counted = [step_job_id(run, step, n) for step, tally in tallies.items() for n in range(1, tally.started + 1)]
    return list(dict.fromkeys([*said, *counted]))


async def retry_run(app: App, run: str) -> Redriven:
    """Sends the failed steps of a failed run again, each from its dead letter, or from the record if it left none.

    They keep their memos: what a step has done is not done again. Says what became of each."""
    await app.run(run)  # a run that is not there is a mistake
    row = await app.store.run(run)
    status = decode_record(row.record).status if row is not None else "gone"
    if status not in (FAILED, RUNNING):
        raise RunError(f"run {run!r} is {status}, not failed: `penstock runs replay {run}` starts it anew")
    done = Redriven()
    for id, job in (await _last_jobs(app, run)).items():
        if await app.store.job(dead_letter_id(id)) is not None:
            one = await app.dead_letters.redrive(id)
        elif job is not None and job.state is JobState.FAILED:
            one = await app.dead_letters.retry(job)
        else:
            continue
        done.sent.update(one.sent)
        done.refused.update(one.refused)
    if not done.sent and not done.refused:
        raise RunError(
            f"run {run!r} is {status} and has no failed step to send again: `penstock runs replay {run}` starts it anew"
        )
    return done


async def _last_jobs(app: App, run: str) -> dict[str, JobRow | None]:
    """The ids of a run's jobs, of a step that was sent again that of the last time, with what is still kept of them."""
    last: dict[str, tuple[int, str]] = {}
    for id in await jobs_of(app, run):
        scope, _, times = id.partition(".redrive-")
        last[scope] = max(last.get(scope, (0, id)), (int(times or 0), id))
    return {id: await app.store.job(id) for _, id in last.values()}


async def replay_run(app: App, run: str, given: list[Any] | None = None, key: str | None = None) -> str:
    """Starts a new run of the same flow with the recorded input (or the one given, in a list); gives its id."""
    await app.run(run)
    stream = f"{app.settings.namespace}:flow:{run}"
    first = (await app.events.read(stream, limit=1))[0]
    flow, input = _started(run, first)
    if given is None and _hidden(input):
        raise RunError(f"the input of run {run!r} was recorded with its secrets hidden: give it with --input")
    return await app.start(flow, input if given is None else given[0], idempotency_key=key)


def _started(run: str, event: Event) -> tuple[str, Any]:
    if event.kind != "flow.started" or not isinstance(event.data, dict):
        raise RunError(f"run {run!r} has lost its first event, and its input with it: start a new run")
    return event.data["name"], event.data.get("input")


def _hidden(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_hidden, value.values()))
    if isinstance(value, list):
        return any(map(_hidden, value))
    return isinstance(value, str) and REDACTED in value
