"""Jobs that cannot be decoded: each fails alone and once, with a clear error, and its neighbours are not affected."""

from __future__ import annotations

from typing import Any

import msgspec

from ..commit.runtime import Runtime
from ..core.errors import PayloadError
from ..core.events import EventBody
from ..core.payload import describe_stored
from ..ports.unit import Claim, Dead, NewEvent, Unit
from .outcomes import ErrorInfo, pack_record


def mark_options(claim: Claim, problem: Exception) -> Claim:
    """Return the claim as one whose job cannot be decoded, because of its options."""
    why = f"the options must be a JSON object that Penstock wrote, got {describe_stored(claim.opts)}: {problem}"
    return msgspec.structs.replace(claim, unreadable=claim.unreadable or why)


def is_permanent(problem: Exception) -> bool:
    """Return whether an error means that what is stored cannot be decoded or recorded, now or later."""
    return isinstance(problem, PayloadError | msgspec.MsgspecError | UnicodeError | RecursionError)


async def build_bare_end(runtime: Runtime, claim: Claim, problem: Exception) -> Unit:
    """Build the unit that ends a job as dead from its claim alone: its engine could not open it or record its end.

    A run whose job ends this way does not continue: `penstock doctor` lists it as stuck.
    """
    error = msgspec.to_builtins(ErrorInfo.from_exception(problem, runtime.bodies))
    row = await runtime.store.job(claim.job)  # its options may be what cannot be decoded
    return Unit(
        runtime.new_unit_id(),
        claim=claim,
        outcome=Dead(pack_record(error)),
        events=[] if claim.run is not None else [_build_failed(runtime, claim, error)],
        parent=row.parent if row is not None else None,
        order_key=row.order_key if row is not None else None,
    )


def _build_failed(runtime: Runtime, claim: Claim, error: dict[str, Any]) -> NewEvent:
    data, meta = msgspec.Raw(pack_record({**error, "willRetry": False})), {"attempt": claim.attempt, "name": claim.name}
    body = EventBody("job.failed", claim.job, data=data, meta=meta)
    return NewEvent(runtime.bodies.queue(claim.queue), runtime.bodies.encode(body))
