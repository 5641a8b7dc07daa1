"""Events with given tags: pages of a stream, and live ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing
from typing import TypeVar, cast

from ..core.event_tags import has_tags
from ..core.events import Event
from ..ports.store import EventLog, FeedItem

PAGE_EVENTS = 500
Item = TypeVar("Item", Event, FeedItem)


async def read_tagged(
    store: EventLog,
    stream: str,
    tags: Collection[str],
    after: str | None,
    before: str | None,
    limit: int,
    backward: bool,
    max_scanned: int | None = None,
) -> tuple[list[Event], str | None]:
    """Return events of a stream that have all tags, and the cursor to continue at: None at the end of the stream.

    Tags are no index: the stream is read from the cursor on, at most `max_scanned` events of it.
    """
    found: list[Event] = []
    scanned = 0
    while max_scanned is None or scanned < max_scanned:
        page = await store.read(stream, after=after, before=before, limit=PAGE_EVENTS, backward=backward)
        for event in page:
            if has_tags(event, tags):
                found.append(event)
                if len(found) == limit:
                    return found, event.id
        if len(page) < PAGE_EVENTS:
            return found, None
        scanned += len(page)
        if backward:
            before = page[-1].id
        else:
            after = page[-1].id
    return found, before if backward else after


async def select_tagged(items: AsyncIterator[Item], tags: Collection[str]) -> AsyncIterator[Item]:
    """Iterate over the events, or the items of the feed, that have all tags."""
    async with aclosing(cast("AsyncGenerator[Item, None]", items)) as source:
        async for item in source:
            if has_tags(item if isinstance(item, Event) else item.event, tags):
                yield item
