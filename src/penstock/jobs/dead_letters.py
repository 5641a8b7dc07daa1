"""Dead letters: one for each job that finally failed, with what is needed to understand it and to redrive it."""

from __future__ import annotations

from typing import Any

import msgspec

from ..core.clock import to_iso
from ..core.errors import UnreadableJob
from ..core.ids import dead_letter_id
from ..core.payload import DECODE_ERRORS, pack, unpack
from ..ports.store import JobRow
from ..ports.unit import NewJob
from ..worker.attempt import read_input
from ..worker.outcomes import MAX_RECORD_BYTES, ErrorInfo, Work, pack_record
from .error_groups import sign_error

_encode = msgspec.json.Encoder().encode


class DeadLetter(msgspec.Struct, rename="camel", omit_defaults=True):
    """The input of a job in a dead-letter queue: the job that failed and its error."""

    original_job_id: str
    original_job_name: str
    original_data: Any
    queue: str
    error: dict[str, Any]
    failed_at: str
    attempts_made: int
    run: str | None = None
    flow: str | None = None
    step: str | None = None
    n: int = 1
    correlation_id: str | None = None
    options: Any = None
    unreadable: str | None = None  # why `original_data` is missing
    undecided: bool = False  # the run's record could not be read and counts the step as open
    group: str | None = None  # see error_groups.py


def read_dead_letter(row: JobRow) -> DeadLetter:
    """Decode the dead letter in a job of a dead-letter queue. Any other job there becomes a letter without input."""
    try:
        return msgspec.convert(unpack(row.payload), DeadLetter)
    except DECODE_ERRORS as problem:
        why = f"job {row.id!r} of queue {row.queue!r} is not a dead letter: {problem}"
        error = {"message": why, "name": UnreadableJob.__name__, "code": UnreadableJob.code}
        return DeadLetter("", row.name, None, row.queue, error, to_iso(row.created), row.attempt, unreadable=why)


def build_dead_letter(work: Work, error: ErrorInfo, now: int, attempts: int, *, is_undecided: bool = False) -> NewJob:
    """Build the dead letter of a claim whose failure is final. Its id is the same each time, so it is stored once."""
    claim, data, unreadable = work.claim, None, None
    try:
        read_input(claim)
        data = msgspec.Raw(claim.payload)  # as it is: another program's input may break our rules
    except UnreadableJob as problem:
        unreadable = str(problem)
    opts = claim.opts if claim.unreadable is None else _make_options(work)
    shown = _error_to_dict(error)
    group = sign_error(shown).group
    body = DeadLetter(
        claim.job,
        claim.name,
        data,
        claim.queue,
        shown,
        to_iso(now),
        attempts,
        work.run_id,
        work.flow,
        work.step,
        work.n,
        work.correlation_id,
        unpack(opts),
        unreadable,
        is_undecided,
        group,
    )
    payload = _encode(body)
    if len(payload) > MAX_RECORD_BYTES:
        unreadable = f"the input has {len(claim.payload):,} bytes, too many for a dead letter"
        payload = pack_record(msgspec.structs.replace(body, original_data=None, unreadable=unreadable))
    name = f"{claim.name}-failed"
    return NewJob(dead_letter_id(claim.job), work.handler.dlq, name, payload, opts=opts, error_group=group)


def _make_options(work: Work) -> bytes:
    """Return the options that a redrive needs: those of the failed job may be what cannot be decoded."""
    return pack({"step": work.step, "n": work.n}) if work.run_id is not None else b"{}"


def _error_to_dict(error: ErrorInfo) -> dict[str, Any]:
    found = {"message": error.error, "name": error.name, "code": error.code, "stack": error.stack}
    return found | {"file": error.file, "line": error.line, "frames": msgspec.to_builtins(error.frames)}
