"""The one error tree.

    PenstockError
    ├── ConfigError              SettingError · DefinitionError
    ├── NotFound                 UnknownFlow · UnknownStep · UnknownQueue · UnknownRun · UnknownJob · UnknownSchedule
    ├── PayloadError             NotJSON · PayloadTooLarge · PayloadTooDeep · SchemaViolation
    ├── StoreError               StoreUnavailable · StoreFull · StoreCorrupt
    ├── HandlerError             Permanent · Retry · UndeclaredEvent · AttemptTimeout · WorkerLost · StaleAttempt
    ├── RunError                 RunFailed · RunCancelled · RunLimit
    └── WaitTimeout
    AttemptCancelled             a BaseException: `except Exception` in a handler cannot eat it

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
        super().__init__(message)
        self.after = after


class UndeclaredEvent(HandlerError):
    """A step emitted a kind that its `emits` does not list."""

    code = "undeclared_event"


class AttemptTimeout(HandlerError):
    """An attempt ran longer than its `timeout`."""

    code = "timeout"


class WorkerLost(HandlerError):
    """The worker died or lost its lease too often while running this job."""

    code = "worker_lost"


class StaleAttempt(HandlerError):
    """This attempt has lost its lease; another worker owns the job and nothing more can be recorded."""

    code = "stale_attempt"


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


class WaitTimeout(PenstockError):
    """What was waited for did not happen in time; it may still happen."""

    code = "wait_timeout"


class AttemptCancelled(BaseException):
    """Stops a handler whose run was cancelled, whose lease was lost or whose time is up."""

    def __init__(self, reason: str = "interrupted") -> None:
        super().__init__(reason)
        self.reason = reason
