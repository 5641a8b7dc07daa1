"""Recording how an attempt ended: one commit, and what to do when the store or the result refuses it."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from ..commit.committer import CommitRequest, Committer
from ..core.durations import format_ms
from ..core.errors import ChildrenPending, StoreError
from ..core.tracebacks import describe_error
from ..durable.branches import OUTDATED
from ..durable.wait_records import find_resolvers
from ..ports.unit import Committed, Refused
from ..telemetry.instrumentation import AttemptEnded, AttemptOutcome, AttemptStarted, Instrumentation
from .attempt import Attempt
from .channel import LEASE_LOST
from .live_log import log_fields
from .outcomes import (
    AttemptResult,
    ErrorInfo,
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
        message = "attempt %d of %s lost its lease or was cancelled; nothing of it is recorded"
        log.warning(message, work.claim.attempt, work.claim.job)
        return RecordedResult(result, False)
    if isinstance(result, Failure):
        result.name_dead_letter(work)
        if result.retry_in_ms is not None:
            _log_retry(work, result.error, result.retry_in_ms)
    request = _build_request(work, result)
    request.slot_queue = work.claim.queue
    receipt = await committer.submit(request)
    if isinstance(receipt, Refused) and receipt.why == "children":
        pending = ChildrenPending(
            f"job {receipt.key!r} returned before its child jobs ended, or after one of them failed. Wait for the "
            "children, or call `await ctx.remove_children()`"
        )
        return await record_result(attempt, await attempt.fail(pending), committer)
    if isinstance(receipt, Refused):
        # A wait was resolved while the handler suspended on it: the job is released, and runs again with the result.
        return await record_result(attempt, Interruption(result.output, OUTDATED, is_counted=False), committer)
    if isinstance(result, Failure) and result.retry_in_ms is None and isinstance(receipt, Committed):
        _log_failure(work, result.error)  # after the commit, so that it is logged once
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


def _log_retry(work: Work, error: ErrorInfo, wait_ms: int) -> None:
    text, fields = describe_error(error.name, error.error), _failure_fields(work, error)
    log.info("%s failed, retrying in %s: %s", _name(work), format_ms(wait_ms), text, extra=fields)


def _log_failure(work: Work, error: ErrorInfo) -> None:
    """Log a final failure as an error, with its traceback."""
    if not log.isEnabledFor(logging.ERROR):
        return
    text, fields = describe_error(error.name, error.error), _failure_fields(work, error)
    hint = f" (`penstock dlq show {error.dead_letter}`)" if error.dead_letter is not None else ""
    message, args = "%s failed for good: %s%s", (_name(work), text, hint)
    record = log.makeRecord(log.name, logging.ERROR, __file__, 0, message, args, None, extra=fields)
    if error.stack is not None:
        # Every formatter prints this text. The exception itself would show frames of ours, and secrets.
        record.exc_text = f"Traceback (most recent call last):\n{error.stack.rstrip()}"
    log.handle(record)


def _name(work: Work) -> str:
    return f"step {work.step} of run {work.run_id}" if work.run_id is not None else f"job {work.claim.job}"


def _failure_fields(work: Work, error: ErrorInfo) -> dict[str, Any]:
    return {**log_fields(work), "code": error.code or error.name}


def report_start(instrumentation: Instrumentation, work: Work, worker: str) -> None:
    """Report that an attempt starts."""
    claim = work.claim
    started = AttemptStarted(
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
    instrumentation.report(started)
    if instrumentation.tracer is not None:
        links = find_resolvers(claim.memos) if claim.memos else ()
        work.span = instrumentation.tracer.start_attempt(started, work.trace, links)
        if work.span is not None:
            work.trace = work.span.traceparent


def report_end(instrumentation: Instrumentation, work: Work, worker: str, recorded: RecordedResult) -> None:
    """Report how an attempt ended."""
    claim, result = work.claim, recorded.result
    error = result.error if isinstance(result, Failure) else None
    ended = AttemptEnded(
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
        error.error if error is not None else None,
        error.stack if error is not None else None,
        work.trace,
    )
    instrumentation.report(ended)
    if work.span is not None:
        work.span.end(ended)


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
