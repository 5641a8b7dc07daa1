"""`penstock workers`."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from ...app.views import WorkerView
from ..options import COMMON_DEFAULTS, CommonOptions
from ..session import build_store_app
from ..tables import print_rows

_COLUMNS = ("name", "host", "pid", "version", "code", "queues", "busy", "slots", "started", "seen")


def workers(*, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """List the workers that are alive, in all processes on this store.

    A worker leaves the list when it stops, and 30 seconds after its last report if it was killed.
    """
    rows = [_worker_to_dict(worker, common.json) for worker in asyncio.run(_list(common))]
    columns = (*_COLUMNS, "unreadable") if any(row.get("unreadable") for row in rows) else _COLUMNS
    print_rows(rows, columns, json=common.json, empty="No workers are running.")
    return 0


def _worker_to_dict(worker: WorkerView, json: bool) -> dict[str, Any]:
    if json:
        found: dict[str, Any] = msgspec.to_builtins(worker)
        return found
    return {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "code": worker.fingerprint[:12],
        "queues": ", ".join(worker.queues) + (" (some runs only)" if worker.is_scoped else ""),
        "busy": worker.busy,
        "slots": worker.slots,
        "started": worker.started_at,
        "seen": worker.last_seen_at,
        "unreadable": worker.unreadable,
    }


async def _list(common: CommonOptions) -> list[WorkerView]:
    async with build_store_app(common) as app:
        return list(await app.workers.list())
