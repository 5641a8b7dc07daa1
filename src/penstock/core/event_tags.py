"""Tags of events: words in `meta.tags` that their producer chose, to filter events by."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from .errors import BadArgument
from .events import Event
from .text import check_text, shorten

MAX_TAGS = 32
MAX_TAG_CHARS = 100


def check_event_tags(tags: Any) -> list[str]:
    """Return the tags of an event, each once, or raise BadArgument."""
    if tags is None:
        return []
    if not isinstance(tags, list | tuple | set | frozenset):
        raise BadArgument(f"tags of an event must be a list of words, such as ['audit', 'eu'], got {shorten(tags)}")
    for tag in tags:
        if check_text(tag, "a tag", MAX_TAG_CHARS) == "":
            raise BadArgument("a tag of an event must not be empty")
    if len(tags) > MAX_TAGS:
        raise BadArgument(f"an event can have at most {MAX_TAGS} tags, got {len(tags)}")
    return list(dict.fromkeys(sorted(tags) if isinstance(tags, set | frozenset) else tags))


def add_tags(meta: dict[str, Any], tags: Iterable[str] | None) -> dict[str, Any]:
    """Return the meta of an event with its tags, if it has any."""
    return {**meta, "tags": list(tags)} if tags else meta


def has_tags(event: Event, wanted: Collection[str]) -> bool:
    """Return whether an event has all these tags. Anything but a list, such as the tags of a run, has none."""
    found = (event.meta or {}).get("tags")
    return isinstance(found, list) and all(tag in found for tag in wanted)
