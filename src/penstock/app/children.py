"""`app.queues.children`: the children of a job with what they returned, or why they failed."""

from __future__ import annotations

from typing import Any

import msgspec

from ..core.payload import unpack
from ..ports.store import ChildRow, ChildState, Store
from ..stores.kin import reason


class Child(msgspec.Struct, frozen=True):
    """A child of a job, as its parent sees it."""

    key: str  # `bull:<queue>:<id>`
    queue: str
    id: str
    state: ChildState
    value: Any = None  # what it returned, once it is processed
    reason: str | None = None  # why it failed, if it is ignored or failed


async def children_of(store: Store, id: str) -> list[Child]:
    """The children of a job in the order of their keys."""
    return [await _child(store, row) for row in await store.children(id)]


async def _child(store: Store, row: ChildRow) -> Child:
    value = unpack(row.value) if row.value is not None else None
    why = row.reason
    if row.state is ChildState.FAILED and why is None:
        # Not every store keeps it beside the parent: it is in the child itself, as long as that is kept.
        job = await store.job(row.id)
        why = reason(job.error) if job is not None and job.error is not None else None
    return Child(row.key, row.queue, row.id, row.state, value, why)
