"""Limits of queues that are changed while workers run. The store keeps them; every worker follows them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from ..commit.runtime import Runtime
from ..core.argument_checks import check_count
from ..core.clock import to_iso
from ..core.errors import BadArgument, DefinitionError
from ..core.payload import DECODE_ERRORS
from ..core.stored import describe_problem
from ..core.text import shorten
from ..handlers.handler import Handler
from ..handlers.options import read_rate_limit
from ..ports.unit import DELIVERIES, RateLimit
from ..worker.capacity import QueueLimits
from .state import AppState
from .views import LimitValues, QueueLimitsView

STATE_PREFIX = "limits/"
FOLLOW_INTERVAL_S = 2.0  # a worker of another process follows a change this much later, at most
PAGE = 500
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
log = logging.getLogger("penstock.worker")


class LimitOverride(msgspec.Struct, frozen=True, omit_defaults=True):
    """What replaces the limits that the handlers of a queue declare. None: what they declare."""

    at: int  # when it was set
    concurrency: int | None = None
    max_active: int | None = None
    rate: RateLimit | None = None

    def apply(self, limits: QueueLimits) -> QueueLimits:
        """Return the limits with this override."""
        return QueueLimits(
            self.concurrency or limits.concurrency, self.rate or limits.rate, self.max_active or limits.max_active
        )


_decode = msgspec.json.Decoder(LimitOverride).decode


class LimitOverrides:
    """Reads and writes the overrides of all queues."""

    def __init__(self, runtime: Runtime) -> None:
        self._state = AppState(runtime, STATE_PREFIX)
        self._store = runtime.store
        self._clock = runtime.clock
        self._unreadable: set[str] = set()

    async def read(self) -> dict[str, LimitOverride]:
        """Return the overrides by queue. One that cannot be read is left out and reported once."""
        found: dict[str, LimitOverride] = {}
        after: str | None = None
        while rows := await self._store.states(STATE_PREFIX, after=after, limit=PAGE):
            after = rows[-1].key
            for row in rows:
                queue = row.key.removeprefix(STATE_PREFIX)
                try:
                    found[queue] = _decode(row.value)
                except DECODE_ERRORS as problem:
                    self._report(queue, describe_problem(problem, row.value))
            if len(rows) < PAGE:
                break
        return found

    def _report(self, queue: str, reason: str) -> None:
        if queue not in self._unreadable:
            self._unreadable.add(queue)
            log.warning("the changed limits of queue %s cannot be read and are ignored: %s", queue, reason)

    async def set(self, queue: str, concurrency: int | None, max_active: int | None, rate: RateLimit | None) -> None:
        """Replace the override of a queue, and start the windows of its rate limit over."""
        override = LimitOverride(self._clock.now_ms(), concurrency, max_active, rate)
        await self._state.set(queue, msgspec.to_builtins(override))
        await self._follow(queue)

    async def remove(self, queue: str) -> None:
        """Return to the limits that the handlers declare."""
        await self._state.delete(queue)
        await self._follow(queue)

    async def _follow(self, queue: str) -> None:
        await self._store.reset_rates(queue)
        self._store.signals.notify_all()  # a worker of this process follows at once


def declared_limits(handlers: Sequence[Handler], queue: str) -> tuple[int | None, RateLimit | None, int | None]:
    """Return the concurrency, the rate limit and the maximum of active jobs that the handlers of a queue declare."""
    mine = [handler for handler in handlers if handler.queue_name == queue]
    own = [handler.concurrency for handler in mine if handler.concurrency is not None]
    most = [handler.max_active for handler in mine if handler.max_active is not None]
    rate = next((handler.rate for handler in mine if handler.rate is not None), None)
    return min(own, default=None), rate, min(most, default=None)


def apply_overrides(
    limits: Mapping[str, QueueLimits], overrides: Mapping[str, LimitOverride]
) -> dict[str, QueueLimits]:
    """Return the limits of queues with their overrides."""
    return {queue: overrides[queue].apply(one) if queue in overrides else one for queue, one in limits.items()}


def read_new_limits(
    queue: str,
    handlers: Sequence[Handler],
    *,
    concurrency: int | None,
    max_active: int | None,
    rate_limit: str | None,
    per_key: bool,
) -> tuple[int | None, int | None, RateLimit | None]:
    """Check the limits that a caller passes for a queue."""
    if queue == DELIVERIES:
        raise BadArgument(f"queue {DELIVERIES!r} is the engine's own and has no limits to change")
    if concurrency is None and max_active is None and rate_limit is None:
        raise BadArgument(
            "no limit is set; pass concurrency=, max_active= or rate_limit=, or call reset_limits to return to what "
            "the handlers declare"
        )
    if concurrency is not None:
        check_count(concurrency, "concurrency")
    if max_active is not None:
        check_count(max_active, "max_active")
    if rate_limit is None and per_key:
        raise BadArgument("per_key requires rate_limit")
    if rate_limit is not None and not isinstance(rate_limit, str):
        raise BadArgument(f'rate_limit must be a text such as "100/1m", got {shorten(rate_limit)}')
    mine = [handler for handler in handlers if handler.queue_name == queue]
    if per_key and mine and all(handler.rate_key is None for handler in mine):
        raise BadArgument(f"jobs of queue {queue!r} have no rate key; set rate_key= on its handlers, or omit per_key")
    try:
        return concurrency, max_active, read_rate_limit(rate_limit, "key" if per_key else None)
    except DefinitionError as problem:
        raise BadArgument(str(problem)) from None


def show_rate(rate: RateLimit) -> str:
    """Return a rate limit as it is written: `100/1m`."""
    unit, size = next((unit, size) for unit, size in _UNITS if rate.duration_ms % size == 0)
    return f"{rate.max}/{rate.duration_ms // size}{unit}"


def limits_view(queue: str, handlers: Sequence[Handler], override: LimitOverride | None) -> QueueLimitsView:
    """Return what applies to a queue, what its handlers declare, and what was changed."""
    declared = declared_limits(handlers, queue) if any(one.queue_name == queue for one in handlers) else None
    concurrency, rate, max_active = declared or (None, None, None)
    values = LimitValues(concurrency, max_active, *_rate_values(rate))
    if override is None:
        return QueueLimitsView(queue, values, values if declared else None)
    return QueueLimitsView(
        queue,
        LimitValues(
            override.concurrency or concurrency, override.max_active or max_active, *_rate_values(override.rate or rate)
        ),
        values if declared else None,
        LimitValues(override.concurrency, override.max_active, *_rate_values(override.rate)),
        to_iso(override.at),
    )


def _rate_values(rate: RateLimit | None) -> tuple[str | None, bool]:
    return (show_rate(rate), rate.per_key) if rate is not None else (None, False)
