"""The error tree.

    PenstockError
    ├── ConfigError              SettingError · DefinitionError · DagInvalid · NeedsStore · NodeMissing · PgBossSchema
    │                            PythonMissing
    ├── BadArgument              BadDuration
    ├── DagInactive · EntityRefused · EntityFailed
    ├── NotFound                 UnknownFlow · UnknownDag · UnknownEntity · UnknownNodeType · UnknownStep ·
    │                            UnknownQueue · UnknownRun · UnknownJob · UnknownKind · UnknownSchedule ·
    │                            UnknownWait · UnknownWebhook · UnknownSilence · UnknownMessage · UnknownBlob ·
    │                            NotRouted
    ├── PayloadError             NotJSON · PayloadTooLarge · PayloadTooDeep · SchemaViolation ·
    │                            UnreadableJob · BadMessage
    ├── StoreError               StoreUnavailable · StoreClosed · StoreFull · StoreCorrupt · BrokenQueue ·
    │                            NamespaceMismatch · BrokerUnavailable · BlobUnavailable · BlobStoreMissing ·
    │                            BlobCorrupt
    ├── BadBlobUrl
    ├── UnreadableRecord
    ├── HandlerError             Permanent · AddressRefused · EntityCycle · ExpressionError · NodeFailed · Rejected ·
    │   │                        Retry · CircuitOpen · RateLimited ·
    │   │                        UndeclaredEvent · AttemptTimeout · WorkerLost · StaleAttempt · ContextClosed ·
    │   │                        AwaitTimeout · CallFailed · VersionMismatch · ChildFailed · ChildCancelled ·
    │   │                        ChildrenPending · DepthLimit · RunnerLost · WaitCancelled
    │   └── ReplayError          NonDeterminism · DuplicateName · ConcurrentDurableCall · SuspendSwallowed ·
    │                            HistoryLimit
    ├── TriggerError             UnknownTrigger · TriggerUsed · TriggerExpired · TriggerCancelled · BadSignature
    ├── TransactionError         NotInTransaction · UnknownConnection · NoOutbox
    ├── RunError                 RunFailed · RunCancelled · RunLimit · CannotFork · RunMoved · CountChanged
    ├── WaitSettled
    ├── WebhookError             WebhookMethod
    └── WaitTimeout
    AttemptCancelled, Suspension BaseExceptions: `except Exception` in a handler cannot eat them

Every class has a stable `code`; HTTP, CLI, events and docs show the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar, Self


class PenstockError(Exception):
    """Base of all errors Penstock raises. `code` is stable; the message names the value and what to do next."""

    code: ClassVar[str] = "penstock_error"


class ConfigError(PenstockError):
    """The application is configured wrongly."""

    code = "config_error"


class PgBossSchema(ConfigError):
    """A schema does not belong to pg-boss, or its version is not supported."""

    code = "pgboss_schema"


class NeedsStore(ConfigError):
    """A command needs the store, but the URL is that of a server."""

    code = "needs_store"


class NodeMissing(ConfigError):
    """Node, which runs TypeScript and JavaScript worker files, is not installed, is too old or lacks a package."""

    code = "node_missing"


class PythonMissing(ConfigError):
    """The interpreter of child processes, the setting `process_python`, is not installed."""

    code = "python_missing"


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


class DagInvalid(ConfigError):
    """A dag has mistakes: all of them are in `problems`, each with its path."""

    code = "bad_dag"

    MAX_SHOWN = 10

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        left = len(self.problems) - self.MAX_SHOWN
        more = [f"and {left} more"] if left > 0 else []
        super().__init__("; ".join([*self.problems[: self.MAX_SHOWN], *more]))


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


class UnknownDag(NotFound):
    code = "unknown_dag"


class DagInactive(PenstockError):
    """A run of a deactivated dag was to be started."""

    code = "dag_inactive"


class UnknownNodeType(NotFound):
    code = "unknown_node_type"


class UnknownEntity(NotFound):
    """No entity has this urn, or none of the loaded code has this type."""

    code = "unknown_entity"


class EntityRefused(PenstockError):
    """An entity refused an event: its state does not accept it, a condition does not hold, or an action rejected it."""

    code = "entity_refused"


class EntityFailed(PenstockError):
    """An event failed for good. The entity is as it was before; a dead letter has the event."""

    code = "entity_failed"


class UnknownStep(NotFound):
    code = "unknown_step"


class UnknownQueue(NotFound):
    code = "unknown_queue"


class UnknownMessage(NotFound):
    """No target takes messages of this name."""

    code = "unknown_message"


class UnknownRun(NotFound):
    code = "unknown_run"


class UnknownJob(NotFound):
    code = "unknown_job"


class NotRouted(NotFound):
    """No worker has evaluated the key of the run or the job yet."""

    code = "not_routed"


class UnknownKind(NotFound):
    """A run is of a kind that this App has no engine for."""

    code = "unknown_kind"


class UnknownSchedule(NotFound):
    code = "unknown_schedule"


class UnknownWait(NotFound):
    """The store has no wait with this id."""

    code = "unknown_wait"


class UnknownSilence(NotFound):
    """No silence of alerts has this id."""

    code = "unknown_silence"


class UnknownWebhook(NotFound):
    """No webhook has this path."""

    code = "unknown_webhook"


class UnknownBlob(NotFound):
    """The blob store has nothing under this key."""

    code = "unknown_blob"


class BadBlobUrl(PenstockError):
    """A signed URL of a blob has expired, or its signature is wrong."""

    code = "bad_blob_url"


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


class BadMessage(PayloadError):
    """A message of another system does not have the form that its target needs."""

    code = "bad_message"


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
        return cls(f"this App is closed (store {store}); use it inside `async with`, or open it again")


class BrokerUnavailable(StoreUnavailable):
    """The broker of a bridge did not answer. It is safe to retry."""

    code = "broker_unavailable"


class BlobUnavailable(StoreUnavailable):
    """The blob store did not answer. It is safe to retry."""

    code = "blob_unavailable"


class BlobStoreMissing(StoreUnavailable):
    """This process has no blob store. A job that needs one is released, for a worker that has it."""

    code = "blob_store_missing"


class BlobCorrupt(StoreError):
    """A blob does not have the hash that was recorded when it was put."""

    code = "blob_corrupt"


class StoreFull(StoreUnavailable):
    """The store is out of space and refused a write; nothing acknowledged is lost."""

    code = "store_full"


class StoreCorrupt(StoreError):
    """The store's file is damaged, or is not a Penstock store."""

    code = "store_corrupt"


class BrokenQueue(StoreError):
    """Another program broke a key of the queue. Other queues are not affected."""

    code = "broken_queue"


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


class Rejected(HandlerError):
    """Raise in an action or a hook of an entity: the event is rejected, by the rules of the business."""

    code = "rejected"


class EntityCycle(Permanent):
    """One event caused too many transitions of an entity in a row."""

    code = "entity_cycle"


class ExpressionError(Permanent):
    """An expression in the config of a node is invalid, or has no value for this run."""

    code = "bad_expression"


class NodeFailed(HandlerError):
    """The executor of a node returned `Fail(…)`."""

    code = "node_failed"


class AddressRefused(Permanent):
    """An http node was to call an address that is not public and not in the setting `http_allow`."""

    code = "address_refused"


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


class CircuitOpen(Retry):
    """The circuit breaker of an executor is open: no call is made for a while."""

    code = "circuit_open"


class RateLimited(HandlerError):
    """Raise in a handler that met an external rate limit: its job goes back to the queue without using an attempt, and
    no job of that queue is claimed for `after` ("10s", seconds or a timedelta)."""

    code = "rate_limited"
    holds_queue = True  # False: only this job goes back

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
    ends_attempt = False  # True: the runner stopped the attempt, because its time was up


class WorkerLost(HandlerError):
    """Workers died or lost their lease too often while running this job."""

    code = "worker_lost"


class RunnerLost(HandlerError):
    """The process that ran the handler ended, or sent nonsense, before the handler was done."""

    code = "runner_lost"


class ChildFailed(HandlerError):
    """A child of this job failed for good and failed the job with it; or a run that `ctx.call` waited for failed.

    `failure` is the ChildFailure of that run; None for a job."""

    code = "child_failed"
    failure: object = None


class ChildCancelled(ChildFailed):
    """A run that `ctx.call` waited for was cancelled."""

    code = "child_cancelled"


class DepthLimit(HandlerError):
    """A run called another one deeper than the setting `max_depth` allows."""

    code = "depth_limit"


class ChildrenPending(HandlerError):
    """A job returned before its child jobs ended, or after one of them failed."""

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


class WaitCancelled(HandlerError):
    """An operator cancelled the wait. Catch it to continue; otherwise the step fails, without retries."""

    code = "wait_cancelled"


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
    """A durable call was made inside the function of a `ctx.run`, or a wait on a thread that is not the handler's."""

    code = "concurrent_durable_call"


class SuspendSwallowed(ReplayError):
    """A handler caught the exception that suspends it, and continued."""

    code = "suspend_swallowed"


class HistoryLimit(ReplayError):
    """A step recorded more durable calls than the journal allows, or an attempt writes more than one commit may."""

    code = "history_limit"


class WaitSettled(PenstockError):
    """The wait was already resolved, expired or cancelled."""

    code = "wait_settled"


class WebhookError(PenstockError):
    """A call of a webhook could not be received."""

    code = "webhook_error"


class WebhookMethod(WebhookError):
    """The webhook does not accept this HTTP method."""

    code = "webhook_method"


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


class RunMoved(RunError):
    """The run has changed since the version that a command expects."""

    code = "run_moved"


class CountChanged(RunError):
    """A bulk action selects another number of things than the caller confirmed."""

    code = "count_changed"


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
