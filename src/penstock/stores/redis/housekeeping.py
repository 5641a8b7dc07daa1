"""The arguments of a sweep, which lua/housekeeping.lua does in batches."""

from __future__ import annotations

from ...ports.monitoring import RATES_KEPT_MS
from ...ports.store import Retention

ONCE_KEY_MS = 7 * 86_400_000
UNIT_ID_MS = 86_400_000  # a commit whose reply was lost is not repeated after a day


def sweep_arguments(limits: Retention, batch: int) -> tuple[int | None, ...]:
    """Return the arguments of the sweep in admin.lua."""
    counts = [count for count in (limits.keep_jobs, limits.keep_deliveries) if count is not None]
    return (
        limits.runs_before, limits.keep_runs, limits.jobs_before, limits.keep_jobs, min(counts, default=None),
        limits.events_before, limits.keep_events, batch, ONCE_KEY_MS, UNIT_ID_MS, RATES_KEPT_MS,
    )  # fmt: skip
