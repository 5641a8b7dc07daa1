"""Sweep with no retention at all, until nothing more is removed."""

from __future__ import annotations

from ...ports.store import Retention, Store
from ..clock import FakeClock

MAX_SWEEPS = 1000


async def sweep_all(store: Store, clock: FakeClock, limit: int = 500) -> int:
    """Sweep until a call removes nothing. Return the number of calls that removed something."""
    now = clock.now_ms() + 1
    what = Retention(runs_before=now, jobs_before=now, events_before=now, keep_deliveries=0)
    for calls in range(MAX_SWEEPS):
        if not any((await store.sweep(what, limit)).values()):
            return calls
    raise AssertionError(f"{MAX_SWEEPS} sweeps, and the last one still removed something")
