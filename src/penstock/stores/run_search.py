"""Finding runs by what their first event says, page by page, so that no read is a long one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..core.json_match import contains
from ..core.payload import unpack
from ..ports.store import RunRow

PAGE = 200
Begun = tuple[RunRow, bytes | None]
"""A run and the body of its first event, if that is still there."""


async def search(
    page: Callable[[str | None, int], Awaitable[list[Begun]]], begun: Any, before: str | None, limit: int
) -> list[RunRow]:
    """Up to `limit` runs whose first event contains `begun`; `page` gives candidates that come after a run."""
    found: list[RunRow] = []
    while len(found) < limit:
        candidates = await page(before, PAGE)
        found += [row for row, body in candidates if body is not None and contains(unpack(body), begun)]
        if len(candidates) < PAGE:
            break
        before = candidates[-1][0].id
    return found[:limit]
