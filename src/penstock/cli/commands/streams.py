"""`penstock streams TYPE`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from cyclopts import Parameter

from ...app.views import StreamView
from ..options import COMMON_DEFAULTS, CommonOptions
from ..parse import read_limit
from ..session import build_store_app
from ..tables import print_rows


def streams(
    type: str = "flow",
    /,
    *,
    before: Annotated[str | None, Parameter(help="Only streams older than the stream with this name.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of rows.")] = 20,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List the streams of a type, newest first; 'events NAME' prints one.

    Parameters
    ----------
    type
        flow, trigger, webhook, entity, queue or another type.
    """
    rows = asyncio.run(_list(common, type, before, read_limit(limit)))
    print_rows(
        [_to_dict(row) for row in rows],
        ("name", "events", "lastEventAt"),
        json=common.json,
        empty=f"No streams of type {type}.",
    )
    return 0


async def _list(common: CommonOptions, type: str, before: str | None, limit: int) -> list[StreamView]:
    async with build_store_app(common) as app:
        return await app.events.streams(type, before=before, limit=limit)


def _to_dict(row: StreamView) -> dict[str, Any]:
    return {"name": row.name, "type": row.type, "id": row.id, "events": row.events, "lastEventAt": row.last_event_at}
