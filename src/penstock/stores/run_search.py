"""Find runs by the content of their first event, page by page, so that no read takes long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..core.event_shapes import UNREADABLE_ERRORS
from ..core.json_match import contains
from ..core.payload import unpack
from ..ports.store import RunRow

PAGE_RUNS = 200
RunStart = tuple[RunRow, bytes | None]
"""A run and the body of its first event, None if that was trimmed."""


async def search(
    page: Callable[[str | None, int], Awaitable[list[RunStart]]], start: Any, before: str | None, limit: int
) -> list[RunRow]:
    """Return up to `limit` runs whose first event contains `start`. `page` returns candidates after a run."""
    found: list[RunRow] = []
    while len(found) < limit:
        candidates = await page(before, PAGE_RUNS)
        found += [row for row, body in candidates if body is not None and _contains(body, start)]
        if len(candidates) < PAGE_RUNS:
            break
        before = candidates[-1][0].id
    return found[:limit]


def _contains(body: bytes, start: Any) -> bool:
    try:
        return contains(unpack(body), start)
    except UNREADABLE_ERRORS:  # another program changed the event
        return False
