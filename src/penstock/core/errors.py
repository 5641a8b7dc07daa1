"""The error tree.

    PenstockError
    ├── ConfigError              SettingError · DefinitionError
    ├── BadArgument              BadDuration
    ├── NotFound                 UnknownFlow · UnknownStep · UnknownQueue · UnknownRun · UnknownJob ·
    │                            UnknownKind · UnknownSchedule
    ├── PayloadError             NotJSON · PayloadTooLarge · PayloadTooDeep · SchemaViolation ·
    │                            UnreadableJob
    ├── StoreError               StoreUnavailable · StoreClosed · StoreFull · StoreCorrupt ·
    │                            NamespaceMismatch
    ├── UnreadableRecord
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
from typing import ClassVar, Self


class PenstockError(Exception):
    """Base of all errors Penstock raises. `code` is stable; the message names the value and what to do next."""

    code: ClassVar[str] = "penstock_error"


class ConfigError(PenstockError):
    """The application is configured wrongly."""

    code = "config_error"


class SettingError(ConfigError):
    """A setting has an unknown name or a value that cannot be read."""

    code = "bad_setting"


class DefinitionError(ConfigError):
    """The definition of a worker file, flow, step or job is invalid; `where` names the file."""

    code = "bad_definition"

    def __init__(self, message: str, *, code: str = "bad_definition", where: str | None = None) -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.kind = code
        self.where = where


class BadArgument(PenstockError, ValueError):
    """An argument has a value the method cannot use."""

    code = "bad_argument"


class BadDuration(BadArgument):
    """A duration cannot be parsed, or is out of range."""

    code = "bad_duration"


class NotFound(PenstockError):
    """Nothing has the requested name or id."""

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


class UnknownKind(NotFound):
    """A run is of a kind that this App has no engine for."""

    code = "unknown_kind"


class UnknownSchedule(NotFound):
    code = "unknown_schedule"


class PayloadError(PenstockError):
    """A payload breaks the rules that make it readable by every store and every language."""

    code = "bad_payload"


class NotJSON(PayloadError):
    """A value has no JSON form; the message gives the path to it."""

    code = "not_json"


class PayloadTooLarge(PayloadError):
    code = "payload_too_large"


class PayloadTooDeep(PayloadError):
    code = "payload_too_deep"


class UnreadableJob(PayloadError):
    """A stored job cannot be decoded. It fails without being run, and is not retried."""

    code = "unreadable_job"


class SchemaViolation(PayloadError):
    """A payload does not match the declared model or JSON schema."""

    code = "schema_violation"


class StoreError(PenstockError):
    """The store failed."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store did not answer. The write may or may not have happened; it is safe to retry."""

    code = "store_unavailable"


class StoreClosed(StoreUnavailable):
    """The App or the store is closed."""

    code = "store_closed"

    @classmethod
    def of(cls, store: object) -> Self:
        """Build the error for a call to a closed store."""
        return cls(
            f"this App is closed, and with it the store {store}; call it before `close` or inside `async with`, or "
            "open it again"
        )


class StoreFull(StoreUnavailable):
    """The store is out of space and refused a write; nothing acknowledged is lost."""

    code = "store_full"


class StoreCorrupt(StoreError):
    """The store's file is damaged, or is not a Penstock store."""

    code = "store_corrupt"


class NamespaceMismatch(StoreError):
    """The store belongs to another namespace."""

    code = "namespace_mismatch"


class UnreadableRecord(PenstockError):
    """One record of the store cannot be decoded: its bytes are damaged, or another program wrote them."""

    code = "unreadable_record"

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message  # why, without the name of the record and what to do


class HandlerError(PenstockError):
    """Base of errors that end an attempt."""

    code = "handler_error"


class Permanent(HandlerError):
    """Raise in a handler: fail now, without retries."""

    code = "permanent"


class Retry(HandlerError):
    """Raise in a handler: retry under the policy; `after` overrides its delay ("30s", seconds or a timedelta)."""

    code = "retry"

    def __init__(self, message: str = "retry requested", *, after: str | float | timedelta | None = None) -> None:
        from .durations import to_ms  # durations imports this module

        if after is not None:
            try:
                to_ms(after)
            except BadDuration as problem:
                # The header of another service may contain anything: retry anyway, and report the bad value.
                message = f"{message} (`after` is ignored and the retry policy sets the delay: {problem})"
        super().__init__(message)
        self.after = after


class RateLimited(HandlerError):
    """Raise in a handler that met an external rate limit: its job goes back to the queue without using an attempt, and
    no job of that queue is claimed for `after` ("10s", seconds or a timedelta)."""

    code = "rate_limited"

    def __init__(self, after: str | float | timedelta, message: str = "rate limited") -> None:
        from .durations import to_ms  # durations imports this module

        super().__init__(message)
        self.after = after
        self.hold_ms = to_ms(after)


class UndeclaredEvent(HandlerError):
    """A step emitted a kind that is not in its `emits`."""

    code = "undeclared_event"


class AttemptTimeout(HandlerError):
    """An attempt, or a `ctx.run` call, ran longer than its `timeout`."""

    code = "timeout"


class WorkerLost(HandlerError):
    """Workers died or lost their lease too often while running this job."""

    code = "worker_lost"


class RunnerLost(HandlerError):
    """The process that ran the handler ended, or sent nonsense, before the handler was done."""

    code = "runner_lost"


class ChildFailed(HandlerError):
    """A child of this job failed for good, and failed the job with it; the handler did not run."""

    code = "child_failed"


class ChildrenPending(HandlerError):
    """A job returned while its children were still pending, or after one of them had failed it."""

    code = "children_pending"


class StaleAttempt(HandlerError):
    """This attempt lost its lease: another worker owns the job, and this attempt can record nothing more."""

    code = "stale_attempt"


class ContextClosed(StaleAttempt):
    """A ctx was used after its handler had ended."""

    code = "context_closed"


class AwaitTimeout(HandlerError):
    """A wait expired. Catch it to continue; otherwise the step fails, without retries."""

    code = "AWAIT_TIMEOUT"


class CallFailed(HandlerError):
    """A `ctx.run` call failed for good; a replay of the handler gets the same error."""

    code = "call_failed"


class VersionMismatch(HandlerError):
    """A run started under another version of its flow, and `on_change` does not let this code continue it."""

    code = "version_mismatch"


class ReplayError(HandlerError):
    """A handler broke a replay rule; the message names the call, what was recorded and what happened now."""

    code = "replay_error"


class NonDeterminism(ReplayError):
    """A replay made its durable calls in another order, or used a recorded name for another kind of call."""

    code = "non_determinism"


class DuplicateName(ReplayError):
    """Two durable calls at different places of a handler have the same name."""

    code = "duplicate_name"


class ConcurrentDurableCall(ReplayError):
    """A durable call started while another was in progress, outside `ctx.all` and `ctx.first`."""

    code = "concurrent_durable_call"


class SuspendSwallowed(ReplayError):
    """A handler caught the exception that suspends it, and continued."""

    code = "suspend_swallowed"


class HistoryLimit(ReplayError):
    """A step recorded more durable calls than the journal allows, or an attempt writes more than one commit may."""

    code = "history_limit"


class TriggerError(PenstockError):
    """A trigger could not be fired."""

    code = "trigger_error"


class UnknownTrigger(TriggerError):
    """No trigger has this token."""

    code = "unknown_trigger"


class TriggerUsed(TriggerError):
    """The trigger was already fired."""

    code = "trigger_used"


class TriggerExpired(TriggerError):
    """The trigger has expired."""

    code = "trigger_expired"


class TriggerCancelled(TriggerError):
    """The step or the run that waited for the trigger has ended."""

    code = "trigger_cancelled"


class BadSignature(TriggerError):
    """A signed trigger was fired without a signature, or with one that is invalid, old, used or for another trigger."""

    code = "bad_signature"


class TransactionError(PenstockError):
    """The command cannot be part of this transaction."""

    code = "transaction_error"


class NotInTransaction(TransactionError):
    """The connection is in autocommit mode: there is no transaction to join."""

    code = "not_in_transaction"


class UnknownConnection(TransactionError, TypeError):
    """`tx` is not a connection or session that Penstock can write through."""

    code = "unknown_connection"


class NoOutbox(TransactionError):
    """The connection's database is not the store's and has no outbox table, or it cannot be opened."""

    code = "no_outbox"


class RunError(PenstockError):
    code = "run_error"


class RunFailed(RunError):
    """The run whose result was requested has failed."""

    code = "run_failed"


class RunCancelled(RunError):
    """The run whose result was requested was cancelled."""

    code = "run_cancelled"


class RunLimit(RunError):
    """A run exceeded the maximum number of steps."""

    code = "run_limit"


class CannotFork(RunError):
    """A run cannot be forked at this event."""

    code = "cannot_fork"


class WaitTimeout(PenstockError):
    """The call did not get its result in time; it may still come."""

    code = "wait_timeout"


class AttemptCancelled(BaseException):
    """Stops a handler: its run was cancelled, its lease was lost or its time is up."""

    def __init__(self, reason: str = "interrupted") -> None:
        super().__init__(reason)
        self.reason = reason


class Suspension(BaseException):
    """Leaves a handler that waits. Its slot is freed, and the handler runs again from the top when the wait is over."""
