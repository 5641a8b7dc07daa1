"""Recording how an attempt ended: one commit, and what to do when the store or the result refuses it."""

from __future__ import annotations

import logging

from ..commit.committer import CommitRequest, Committer
from ..core.durations import format_ms
from ..core.errors import ChildrenPending, StoreError
from ..durable.session import OUTDATED
from ..ports.unit import Refused
from .attempt import Attempt
from .channel import LEASE_LOST
from .failures import add_recording_error
from .outcomes import AttemptResult, Failure, Interruption, RateLimitHit, Success, WaitSuspension, Work

log = logging.getLogger("penstock.worker")


async def record_result(attempt: Attempt, result: AttemptResult, committer: Committer) -> bool:
    """Commit the result and return whether the commit freed the attempt's slot.

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
        log.warning("the failure of %s can only be recorded in part", attempt.work.claim.job, exc_info=problem)
        error = add_recording_error(result.error, problem, attempt.work.bodies)
        return await record_result(attempt, attempt.bare_failure(error, result.retry_in_ms is None), committer)


async def _commit(attempt: Attempt, result: AttemptResult, committer: Committer) -> bool:
    work = attempt.work
    if isinstance(result, Interruption) and result.reason == LEASE_LOST:
        log.warning("attempt %d of %s lost its lease, nothing of it is recorded", work.claim.attempt, work.claim.job)
        return False
    request = _build_request(work, result)
    if isinstance(result, Failure):
        _log_failure(work, result)
    request.slot_queue = work.claim.queue
    receipt = await committer.submit(request)
    if isinstance(receipt, Refused) and receipt.why == "children":
        pending = ChildrenPending(
            f"{receipt.key!r} returned while children of it were still waited for, or after one had failed it: "
            "await ctx.remove_children() in its handler, or let them end first"
        )
        return await record_result(attempt, await attempt.fail(pending), committer)
    if isinstance(receipt, Refused):
        # A wait was resolved while the handler suspended on it: the job is released, and runs again with the result.
        return await record_result(attempt, Interruption(result.output, OUTDATED), committer)
    return request.has_freed_slot


def _build_request(work: Work, result: AttemptResult) -> CommitRequest:
    match result:
        case Success():
            return work.on_success(result)
        case Failure():
            return work.on_failure(result)
        case WaitSuspension():
            return work.on_suspension(result)
        case RateLimitHit():
            return work.on_rate_limit(result)
        case Interruption():
            return work.on_interruption(result)


def _log_failure(work: Work, failure: Failure) -> None:
    """Log a failure for whoever watches the worker; the run's events say what it means for the run."""
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
