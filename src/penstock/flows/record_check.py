"""What holds for every run record and every step's job that the engine wrote. An import checks it before it writes."""

from __future__ import annotations

import msgspec

from ..core.clock import MAX_TIME_MS
from ..core.ids import BadId, check_name, step_job_id
from ..core.options import MAX_PRIORITY
from ..core.payload import unpack
from ..core.text import shorten
from ..ports.unit import NewJob
from .record_parts import PartLoad
from .run_record import CLOSED, COMPENSATING, MAX_FAILURES, MAX_WAITING, RUNNING, RunRecord, StepCounts
from .run_record import decode as decode_record
from .units import StepOptions

MAX_INSTANCES = 1_000_000  # of all steps of a run; its limit of steps does not apply to compensation
_STATUSES = (RUNNING, COMPENSATING, *sorted(CLOSED))


def check_record(data: bytes) -> None:
    """Raise msgspec.ValidationError or UnreadableRecord if the engine cannot have written a run record."""
    unpack(data)  # its raw parts too
    record = decode_record(data)
    _require(_is_name(record.flow), "flow", "the name of a flow", record.flow)
    _require(bool(record.correlation_id), "correlationId", "a non-empty string", record.correlation_id)
    _require(record.status in _STATUSES, "status", f"one of {', '.join(_STATUSES)}", record.status)
    _require(0 <= record.started_ms <= MAX_TIME_MS, "startedMs", "a time in milliseconds", record.started_ms)
    _require(0 <= record.priority <= MAX_PRIORITY, "priority", f"from 0 to {MAX_PRIORITY}", record.priority)
    _require(record.failed >= 0, "failed", "at least 0", record.failed)
    _require(record.results_bytes >= 0, "resultsBytes", "at least 0", record.results_bytes)
    for step, counts in record.list_counts():
        _require(_is_name(step), "steps", "the names of steps", step)
        _require(_is_consistent(counts), f"steps.{step}", "consistent counts of its instances", counts)
    done = record.done.split()
    is_list = len({*done, *record.steps}) == len(done) + len(record.steps) and record.done in (
        "",
        f" {' '.join(done)} ",
    )
    _require(is_list, "done", "names of steps between spaces, each once and not in steps", record.done)
    started = record.started
    _require(started <= MAX_INSTANCES, "steps", f"at most {MAX_INSTANCES} instances", started)
    _check_moved(record)
    waiting, open_ = len(record.waiting), record.open
    _require(waiting <= min(open_, MAX_WAITING), "waiting", f"at most the {open_} open steps", record.waiting)
    _require(len(record.failures) <= MAX_FAILURES, "failures", f"at most {MAX_FAILURES}", len(record.failures))
    _require(record.closed or open_ > 0, "steps", "one open instance at least, because the run is open", record.status)


def _check_moved(record: RunRecord) -> None:
    """Check what the record says of its parts beside it: each holds something of an instance."""
    for step, moved in record.moved_results.items():
        known = 0 < moved.parts <= record.started_of(step) and 0 <= moved.bytes <= record.results_bytes
        _require(known, f"movedResults.{step}", "parts of results of the step", moved)
    if (undo := record.moved_compensations) is not None:
        known = 0 < undo.parts <= MAX_INSTANCES and all(0 < part <= undo.parts for _, part in undo.kinds)
        _require(known and undo.count >= 0, "movedCompensations", "parts of compensations", undo)


def check_load(data: bytes, load: PartLoad) -> None:
    """Raise msgspec.ValidationError if a job reads parts that the record does not have."""
    record = decode_record(data)
    moved = record.moved_compensations
    match load.what:
        case "results":
            known = bool(record.moved_results)
        case "compensations":
            known = moved is not None and load.part == moved.parts
        case "kind":
            known = moved is not None and moved.kinds[:1] == [(load.kind, load.part)]
    _require(known, load.what, "parts that the record has", load.part)


def check_step_job(run: str, record: RunRecord, job: NewJob, options: StepOptions) -> None:
    """Raise msgspec.ValidationError if a job is not that of an instance of a step that the record counts."""
    started = record.started_of(options.step)
    _require(job.name == options.step, "name", f"{options.step!r}, as in its opts", job.name)
    _require(1 <= options.n <= started, "opts.n", f"from 1 to {started}, as the record counts", options.n)
    id = step_job_id(run, options.step, options.n)
    if options.redriven:
        id = f"{id}.redrive-{options.redriven}"
    _require(job.id == id, "id", f"{id!r}, as in its opts", job.id)


def _is_consistent(counts: StepCounts) -> bool:
    # A subscription that fails is counted as failed and starts nothing.
    return min(counts.open, counts.completed, counts.failed) >= 0 and counts.open + counts.completed <= counts.started


def _is_name(value: str) -> bool:
    try:
        check_name(value, "name")
    except BadId:
        return False
    return True


def _require(is_met: bool, field: str, rule: str, value: object) -> None:
    if not is_met:
        raise msgspec.ValidationError(f"{field} must be {rule}, got {shorten(value)}")
