"""Acting on a whole run: retry its failed steps, or replay it as a new run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..core.errors import RunError, UnreadableRecord
from ..core.events import Event
from ..core.ids import dead_letter_id
from ..core.redaction import REDACTED
from ..flows.run_record import FAILED, RUNNING
from ..flows.run_record import decode as decode_record
from ..ports.store import JobRow, RunRow
from ..ports.unit import DAG, FLOW, JobState
from .arguments import UNSET
from .redrive import RedriveResult
from .run_handle import Run

if TYPE_CHECKING:
    from .app import App


async def jobs_of(app: App, run: str) -> list[str]:
    """Return the ids of every job a run has had, oldest first, also of those that were removed."""
    row = await app.store.run(run)
    counted = await _counted_jobs(app, row) if row is not None else []
    events = await app.events.read_all(app._bodies.run(row.kind if row is not None else FLOW, run))
    families = ("step.", "node.")  # user events have any meta
    own = (event.meta or {} for event in events if event.kind.startswith(families))
    recorded = [meta["jobId"] for meta in own if meta.get("jobId")]
    return list(dict.fromkeys([*recorded, *counted]))


async def _counted_jobs(app: App, row: RunRow) -> list[str]:
    try:
        return (await app._engines.load_record(row)).job_ids(row.id, row.record)
    except UnreadableRecord:
        return []  # the events know most of them


async def retry_run(app: App, run: str) -> RedriveResult:
    """Redrive the failed steps of a failed run, each from its dead letter, or from the record if it left none."""
    row = await app._run_reader.row_of_kind(run, "retry", FLOW, DAG)
    if row.kind == DAG:
        return RedriveResult({job: job for job in await app._dag_engine.commands.retry(run)})
    status = decode_record(row.record, run).status
    if status not in (FAILED, RUNNING):
        raise RunError(f"run {run!r} is {status}, not failed; to start it again, run `penstock runs replay {run}`")
    redriven = RedriveResult()
    for id, job in (await _last_jobs(app, run)).items():
        if await app.store.job(dead_letter_id(id)) is not None:
            one = await app.dead_letters.redrive(id)
        elif job is not None and job.state is JobState.FAILED:
            one = await app.dead_letters._redriver.retry_step(job)
        else:
            continue
        redriven.sent.update(one.sent)
        redriven.refused.update(one.refused)
    if not redriven.sent and not redriven.refused:
        raise RunError(
            f"run {run!r} is {status} and has no failed step to retry; to start it again, run `penstock runs "
            f"replay {run}`"
        )
    return redriven


async def _last_jobs(app: App, run: str) -> dict[str, JobRow | None]:
    """Return the newest job of each step instance, with its row if it is still kept."""
    last: dict[str, tuple[int, str]] = {}
    for id in await jobs_of(app, run):
        scope, _, times = id.partition(".redrive-")
        last[scope] = max(last.get(scope, (0, id)), (int(times or 0), id))
    return {id: await app.store.job(id) for _, id in last.values()}


async def replay_run(app: App, run: str, input: Any = UNSET, key: str | None = None) -> Run[Any]:
    """Start a new run of the same flow with the recorded input, or with another one."""
    row = await app._run_reader.row_of_kind(run, "replay", FLOW, DAG)
    first = await app.events.read(app._bodies.run(row.kind, run), limit=1)
    flow, recorded = _read_start(run, first[0] if first else None)
    if input is UNSET and _is_redacted(recorded):
        raise RunError(f"the input of run {run!r} was recorded with its secrets redacted; pass the input with --input")
    # Without a key, an id of its own: the key that the flow declares belongs to the run that is replayed.
    key = key if key is not None else app._transactions.direct.runs.new_id(None)
    return await app.runs.start(flow, recorded if input is UNSET else input, key=key)


def _read_start(run: str, event: Event | None) -> tuple[str, Any]:
    data = event.data if event is not None and event.kind == "flow.started" else None
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        problem = "cannot be read" if event is not None and event.is_unreadable else "was removed"
        raise RunError(
            f"run {run!r} cannot be replayed: its first event, which has the flow and the input, {problem}. Start a "
            "new run of the flow instead"
        )
    return data["name"], data.get("input")


def _is_redacted(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_is_redacted, value.values()))
    if isinstance(value, list):
        return any(map(_is_redacted, value))
    return isinstance(value, str) and REDACTED in value
