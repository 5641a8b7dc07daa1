"""Dead letters: one for each job that finally failed, with what is needed to understand it and to redrive it."""

from __future__ import annotations

from typing import Any

import msgspec

from ..core.clock import to_iso
from ..core.ids import dead_letter_id
from ..core.payload import unpack
from ..ports.unit import NewJob
from ..worker.outcomes import ErrorInfo, Work, pack_record


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
    undecided: bool = False  # the run's record could not be read and counts the step as open


def build_dead_letter(work: Work, error: ErrorInfo, now: int, attempts: int, *, is_undecided: bool = False) -> NewJob:
    """Build the dead letter of a claim whose failure is final. Its id is the same each time, so it is stored once."""
    claim = work.claim
    body = DeadLetter(
        claim.job,
        claim.name,
        unpack(claim.payload),
        claim.queue,
        _error_to_dict(error),
        to_iso(now),
        attempts,
        work.run_id,
        work.flow,
        work.step,
        work.n,
        work.correlation_id,
        unpack(claim.opts),
        is_undecided,
    )
    return NewJob(dead_letter_id(claim.job), work.handler.dlq, claim.name, pack_record(body), opts=claim.opts)


def _error_to_dict(error: ErrorInfo) -> dict[str, Any]:
    found = {"message": error.error, "name": error.name, "code": error.code, "stack": error.stack}
    return found | {"file": error.file, "line": error.line, "frames": msgspec.to_builtins(error.frames)}
