"""The HTTP status of every error. docs/errors.md shows the same table."""

from __future__ import annotations

from ..context.state import StateConflict, StateContention
from ..core.api_errors import ApiError
from ..core.errors import (
    BadArgument,
    BadBlobUrl,
    BadSignature,
    BlobStoreMissing,
    ConfigError,
    DagInactive,
    DagInvalid,
    EntityFailed,
    EntityRefused,
    HandlerError,
    NotFound,
    PayloadError,
    PayloadTooDeep,
    PayloadTooLarge,
    PenstockError,
    RunError,
    SchemaViolation,
    StoreError,
    StoreFull,
    StoreUnavailable,
    TransactionError,
    TriggerCancelled,
    TriggerExpired,
    TriggerUsed,
    UnknownKind,
    UnknownTrigger,
    UnreadableJob,
    UnreadableRecord,
    WaitSettled,
    WaitTimeout,
    WebhookError,
    WebhookMethod,
)
from ..core.events import BadEmit, BadStream
from ..core.ids import BadId
from ..schedules.spec import BadSchedule

# The first class that an error is an instance of decides.
_STATUSES: tuple[tuple[type[PenstockError], int], ...] = (
    (BadSignature, 401),
    (BadBlobUrl, 403),
    (UnknownKind, 409),
    (NotFound, 404),
    (UnknownTrigger, 404),
    (TriggerExpired, 410),
    (TriggerCancelled, 410),
    (TriggerUsed, 409),
    (WaitSettled, 409),
    (WebhookMethod, 405),
    (WebhookError, 500),
    (SchemaViolation, 422),
    (DagInvalid, 422),
    (PayloadTooLarge, 413),
    (PayloadTooDeep, 400),
    (UnreadableJob, 409),
    (PayloadError, 400),
    (BadArgument, 400),
    (BadEmit, 400),
    (BadStream, 400),
    (BadId, 400),
    (BadSchedule, 400),
    (WaitTimeout, 504),
    (StateConflict, 409),
    (StateContention, 409),
    (RunError, 409),
    (DagInactive, 409),
    (EntityRefused, 409),
    (EntityFailed, 409),
    (UnreadableRecord, 409),
    (HandlerError, 409),
    (TransactionError, 400),
    (StoreFull, 507),
    (BlobStoreMissing, 409),
    (StoreUnavailable, 503),
    (StoreError, 500),
    (ConfigError, 409),
)


def status_of(problem: PenstockError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(problem, ApiError):
        return problem.status
    return next((status for kind, status in _STATUSES if isinstance(problem, kind)), 400)
