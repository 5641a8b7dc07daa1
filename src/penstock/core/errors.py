"""The one error tree.

    PenstockError
    ├── ConfigError              SettingError · DefinitionError
    ├── BadArgument              BadDuration
    ├── NotFound                 UnknownFlow · UnknownStep · UnknownQueue · UnknownRun · UnknownJob · UnknownSchedule
    ├── PayloadError             NotJSON · PayloadTooLarge · PayloadTooDeep · SchemaViolation
    ├── StoreError               StoreUnavailable · StoreClosed · StoreFull · StoreCorrupt
    ├── HandlerError             Permanent · Retry · RateLimited · UndeclaredEvent · AttemptTimeout · WorkerLost ·
    │   │                        StaleAttempt · ContextClosed · AwaitTimeout · CallFailed · VersionMismatch ·
    │   │                        ChildFailed · ChildrenPending · RunnerLost
    │   └── ReplayError          NonDeterminism · DuplicateName · ConcurrentDurableCall · SuspendSwallowed ·
    │                            HistoryLimit
    ├── TriggerError             UnknownTrigger · TriggerUsed · TriggerExpired · TriggerCancelled · BadSignature
    ├── TransactionError         NotInTransaction · UnknownConnection · NoOutbox
    ├── RunError                 RunFailed · RunCancelled · RunLimit · CannotFork
    └── WaitTimeout
    AttemptCancelled, Suspension BaseExceptions: `except Exception` in a handler cannot eat them

Every class has a stable `code`; HTTP, CLI, events and docs show the same one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar


class PenstockError(Exception):
    """Anything Penstock itself raises; `code` is stable, the message says what to do next."""

    code: ClassVar[str] = "penstock_error"


class ConfigError(PenstockError):
    """The application is put together wrongly."""

    code = "config_error"


class SettingError(ConfigError):
    """A setting has an unknown name or a value that cannot be read."""

    code = "bad_setting"


class DefinitionError(ConfigError):
    """A worker file, step, flow or job is defined wrongly; `where` names the file."""

    code = "bad_definition"

    def __init__(self, message: str, *, code: str = "bad_definition", where: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.kind = code
        self.where = where


class BadArgument(PenstockError, ValueError):
    """A method was given a value it cannot use."""

    code = "bad_argument"


class BadDuration(BadArgument):
    """A span of time that cannot be read."""

    code = "bad_duration"


class NotFound(PenstockError):
    """Something was asked for by a name that nothing has."""

    code = "not_found"


class UnknownFlow(NotFound):
    code = "unknown_flow"


class UnknownStep(NotFound):
    code = "unknown_step"


class UnknownQueue(NotFound):
    code = "unknown_queue"


class UnknownRun(NotFound):
    code = "unknown_run"


class UnknownJob(NotFound):
    code = "unknown_job"


class UnknownSchedule(NotFound):
    code = "unknown_schedule"


class PayloadError(PenstockError):
    """A payload breaks the rules every store and every language can keep."""

    code = "bad_payload"


class NotJSON(PayloadError):
    """A value has no JSON form; the message gives the path to it."""

    code = "not_json"


class PayloadTooLarge(PayloadError):
    code = "payload_too_large"


class PayloadTooDeep(PayloadError):
    code = "payload_too_deep"


class SchemaViolation(PayloadError):
    """A payload does not fit the declared model or JSON schema."""

    code = "schema_violation"


class StoreError(PenstockError):
    code = "store_error"


class StoreUnavailable(StoreError):
    """The store did not answer; whether the write happened is unknown, and asking again is safe."""

    code = "store_unavailable"


class StoreClosed(StoreUnavailable):
    """The App, or the store, was closed: there will be no answer any more."""

    code = "store_closed"


class StoreFull(StoreUnavailable):
    """The store refused a write for want of room; nothing acknowledged is lost."""

    code = "store_full"


class StoreCorrupt(StoreError):
    """The store's file is not one Penstock can read."""

    code = "store_corrupt"


class HandlerError(PenstockError):
    """Errors with a meaning for the retry policy."""

    code = "handler_error"


class Permanent(HandlerError):
    """Raise in a handler: do not retry, fail now."""

    code = "permanent"


class Retry(HandlerError):
    """Raise in a handler: retry under the policy, `after` overriding its delay ("30s", seconds or a timedelta)."""

    code = "retry"

    def __init__(self, message: str = "retry asked for", *, after: str | float | timedelta | None = None) -> None:
        from .durations import to_ms  # which needs an error of this file

        if after is not None:
            try:
                to_ms(after)
            except BadDuration as problem:
                # A header of another service may hold anything: it is tried again all the same, and it is said.
                message = f"{message} (`after` is left out, the retry policy says when: {problem})"
        super().__init__(message)
        self.after = after


class RateLimited(HandlerError):
    """Raise in a handler that met a limit outside: its job goes back unharmed, no attempt used up, and nobody takes a
    job of its queue for `after` ("10s", seconds or a timedelta)."""

    code = "rate_limited"

    def __init__(self, after: str | float | timedelta, message: str = "rate limited") -> None:
        from .durations import to_ms  # which needs an error of this file

        super().__init__(message)
        self.after = after
        self.hold_ms = to_ms(after)


class UndeclaredEvent(HandlerError):
    """A step emitted a kind that its `emits` does not list."""

    code = "undeclared_event"


class AttemptTimeout(HandlerError):
    """An attempt ran longer than its `timeout`."""

    code = "timeout"


class WorkerLost(HandlerError):
    """The worker died or lost its lease too often while running this job."""

    code = "worker_lost"


class RunnerLost(HandlerError):
    """The process that ran the handler ended, or sent nonsense, before the handler was done."""

    code = "runner_lost"


class ChildFailed(HandlerError):
    """A child of this job failed for good, and the job with it: its handler was not run."""

    code = "child_failed"


class ChildrenPending(HandlerError):
    """A job returned while children of it were still waited for, or after one had failed it."""

    code = "children_pending"


class StaleAttempt(HandlerError):
    """This attempt has lost its lease; another worker owns the job and nothing more can be recorded."""

    code = "stale_attempt"


class ContextClosed(StaleAttempt):
    """A ctx was used after its handler had ended: what it says now would be lost."""

    code = "context_closed"


class AwaitTimeout(HandlerError):
    """What a step waited for did not come in time. Catch it to go on; otherwise the step fails, without retries."""

    code = "AWAIT_TIMEOUT"


class CallFailed(HandlerError):
    """A `ctx.run` call failed for good; a re-run of the handler is told the same."""

    code = "call_failed"


class VersionMismatch(HandlerError):
    """A run was begun under another version of its flow, whose policy does not let this code go on with it."""

    code = "version_mismatch"


class ReplayError(HandlerError):
    """A handler broke a rule of re-running: the message says which call, what was recorded and what came now."""

    code = "replay_error"


class NonDeterminism(ReplayError):
    """A re-run made its durable calls in another order, or a call of another kind under a recorded name."""

    code = "non_determinism"


class DuplicateName(ReplayError):
    """Two durable calls in different places of a handler have one name."""

    code = "duplicate_name"


class ConcurrentDurableCall(ReplayError):
    """A durable call began while another was under way, outside `ctx.all` and `ctx.first`."""

    code = "concurrent_durable_call"


class SuspendSwallowed(ReplayError):
    """A handler caught the exception by which a wait suspends it, and went on."""

    code = "suspend_swallowed"


class HistoryLimit(ReplayError):
    """A step recorded more durable calls than a re-run can be asked to go through."""

    code = "history_limit"


class TriggerError(PenstockError):
    """A trigger could not be fired."""

    code = "trigger_error"


class UnknownTrigger(TriggerError):
    """No trigger has this token."""

    code = "unknown_trigger"


class TriggerUsed(TriggerError):
    """The trigger has been fired before."""

    code = "trigger_used"


class TriggerExpired(TriggerError):
    """The trigger's time is up."""

    code = "trigger_expired"


class TriggerCancelled(TriggerError):
    """The step or the run that waited for the trigger is over."""

    code = "trigger_cancelled"


class BadSignature(TriggerError):
    """A signed trigger was fired without a signature, or with a wrong or an old one."""

    code = "bad_signature"


class TransactionError(PenstockError):
    """What was asked for cannot be part of the transaction that was given."""

    code = "transaction_error"


class NotInTransaction(TransactionError):
    """The connection commits every statement by itself: there is nothing to be part of."""

    code = "not_in_transaction"


class UnknownConnection(TransactionError, TypeError):
    """What was given as `tx` is no connection Penstock can write through."""

    code = "unknown_connection"


class NoOutbox(TransactionError):
    """The database of the connection is not the store's, and has no outbox table; or it cannot be opened."""

    code = "no_outbox"


class RunError(PenstockError):
    code = "run_error"


class RunFailed(RunError):
    """The run whose result was asked for has failed."""

    code = "run_failed"


class RunCancelled(RunError):
    """The run whose result was asked for was cancelled."""

    code = "run_cancelled"


class RunLimit(RunError):
    """A run grew past the configured number of steps."""

    code = "run_limit"


class CannotFork(RunError):
    """A run has no past up to that event of which a new one could be made."""

    code = "cannot_fork"


class WaitTimeout(PenstockError):
    """What was waited for did not happen in time; it may still happen."""

    code = "wait_timeout"


class AttemptCancelled(BaseException):
    """Stops a handler whose run was cancelled, whose lease was lost or whose time is up."""

    def __init__(self, reason: str = "interrupted") -> None:
        super().__init__(reason)
        self.reason = reason


class Suspension(BaseException):
    """Leaves a handler that waits: its slot is freed, and it is run again from the top when the wait is over."""
