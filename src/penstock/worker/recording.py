"""Recording how an attempt ended: one commit, and what to do when the store or the result refuses it."""

from __future__ import annotations

import logging
from typing import NamedTuple

from ..commit.committer import CommitRequest, Committer
from ..core.durations import format_ms
from ..core.errors import ChildrenPending, StoreError
from ..durable.session import OUTDATED
from ..ports.unit import Refused
from ..telemetry.instrumentation import AttemptEnded, AttemptOutcome, AttemptStarted, Instrumentation
from .attempt import Attempt
from .channel import LEASE_LOST
from .outcomes import (
    AttemptResult,
    Failure,
    Interruption,
    JobReturn,
    Success,
    WaitSuspension,
    Work,
    add_recording_error,
)

log = logging.getLogger("penstock.worker")


class RecordedResult(NamedTuple):
    """The result that was committed in the end."""

    result: AttemptResult
    has_freed_slot: bool  # the commit ended the attempt; False if its lease was lost before


async def record_result(attempt: Attempt, result: AttemptResult, committer: Committer) -> RecordedResult:
    """Commit the result, and return what was recorded.

    A result that cannot be recorded becomes a failure of the attempt, and that is recorded instead. Otherwise the job
    would run again when its lease expires, and end the same way.
    """
    try:
        return await _commit(attempt, result, committer)
    except StoreError:
        raise
    except Exception as problem:
        # User code that a decision calls has raised, or the result cannot be written.
        if not isinstance(result, Failure):
            return await record_result(attempt, await attempt.fail(problem), committer)
        if result.is_bare:
            raise
        log.warning("the failure of %s could only be recorded in part", attempt.work.claim.job, exc_info=problem)
        error = add_recording_error(result.error, problem, attempt.work.bodies)
        return await record_result(attempt, attempt.bare_failure(error, result.retry_in_ms is None), committer)


async def _commit(attempt: Attempt, result: AttemptResult, committer: Committer) -> RecordedResult:
    work = attempt.work
    if isinstance(result, Interruption) and result.reason == LEASE_LOST:
        log.warning("attempt %d of %s lost its lease; nothing of it is recorded", work.claim.attempt, work.claim.job)
        return RecordedResult(result, False)
    request = _build_request(work, result)
    if isinstance(result, Failure):
        _log_failure(work, result)
    request.slot_queue = work.claim.queue
    receipt = await committer.submit(request)
    if isinstance(receipt, Refused) and receipt.why == "children":
        pending = ChildrenPending(
            f"{receipt.key!r} returned while its children were still pending, or after one of them had failed "
            "it. Call `await ctx.remove_children()` in its handler, or let the children end first"
        )
        return await record_result(attempt, await attempt.fail(pending), committer)
    if isinstance(receipt, Refused):
        # A wait was resolved while the handler suspended on it: the job is released, and runs again with the result.
        is_counted = not isinstance(result, WaitSuspension) or result.is_counted
        return await record_result(attempt, Interruption(result.output, OUTDATED, is_counted), committer)
    return RecordedResult(result, request.has_freed_slot)


def _build_request(work: Work, result: AttemptResult) -> CommitRequest:
    match result:
        case Success():
            return work.on_success(result)
        case Failure():
            return work.on_failure(result)
        case WaitSuspension():
            return work.on_suspension(result)
        case JobReturn():
            return work.on_return(result)
        case Interruption():
            return work.on_interruption(result)


def _log_failure(work: Work, failure: Failure) -> None:
    """Log a failure of the attempt. The run's events show what it means for the run."""
    name = f"step {work.step} of run {work.run_id}" if work.run_id is not None else f"job {work.claim.job}"
    fields = {
        "run": work.run_id,
        "step": work.step,
        "job": work.claim.job,
        "attempt": work.claim.attempt,
        "queue": work.claim.queue,
    }
    error = failure.error
    if failure.retry_in_ms is None:
        log.info("%s failed, no attempts left: %s: %s", name, error.name, error.error, extra=fields)
    else:
        wait = format_ms(failure.retry_in_ms)
        log.info("%s failed, retrying in %s: %s: %s", name, wait, error.name, error.error, extra=fields)


def report_start(instrumentation: Instrumentation, work: Work, worker: str) -> None:
    """Report that an attempt starts."""
    claim = work.claim
    instrumentation.report(
        AttemptStarted(
            claim.job,
            claim.queue,
            claim.name,
            work.run_id,
            work.flow,
            work.step,
            claim.attempt,
            worker,
            work.correlation_id,
        )
    )


def report_end(instrumentation: Instrumentation, work: Work, worker: str, recorded: RecordedResult) -> None:
    """Report how an attempt ended."""
    claim, result = work.claim, recorded.result
    error = result.error if isinstance(result, Failure) else None
    instrumentation.report(
        AttemptEnded(
            claim.job,
            claim.queue,
            claim.name,
            work.run_id,
            work.flow,
            work.step,
            claim.attempt,
            worker,
            work.correlation_id,
            _outcome(result),
            result.output.duration_ms,
            recorded.has_freed_slot,
            error.name if error is not None else None,
            error.code if error is not None else None,
        )
    )


def _outcome(result: AttemptResult) -> AttemptOutcome:
    match result:
        case Success():
            return "completed"
        case Failure(retry_in_ms=None):
            return "failed"
        case Failure():
            return "retrying"
        case WaitSuspension():
            return "suspended"
        case JobReturn(holds_queue=True):
            return "rate_limited"
        case JobReturn():
            return "interrupted"
        case Interruption():
            return "interrupted"
