"""A snapshot of everything a store shows: two equal snapshots mean that nothing changed in between."""

from __future__ import annotations

from typing import Any

from ...ports.store import JobRow, Store
from ...ports.unit import JobState

PAGE = 1000


async def take_snapshot(store: Store) -> dict[str, Any]:
    """Return streams with their events, runs, queues with their jobs, pending waits, schedules and state."""
    queues = await store.queues()
    streams = await store.streams(limit=PAGE)
    return {
        "streams": {name: await store.read(name, limit=PAGE) for name in streams},
        "runs": await store.runs(limit=PAGE),
        "queues": queues,
        "jobs": [job for queue in queues for job in await jobs_of(store, queue.name)],
        "waits": await store.waits(limit=PAGE),
        "schedules": await store.schedules(),
        "state": await store.states("", limit=PAGE),
    }


async def jobs_of(store: Store, queue: str) -> list[JobRow]:
    return [job for state in JobState for job in await store.jobs(queue, state, limit=PAGE)]
