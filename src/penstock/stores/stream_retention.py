"""Retention of streams that belong to no run and no queue: those of webhooks and entities."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from ..ports.store import Retention
from .batches import SweepBatch

STREAMS_PER_SWEEP = 200

TrimBatch = Callable[[str, int | None, int | None, int], Awaitable[int]]
"""Removes the oldest events of a stream beyond a count or an age, at most a number of them. Returns how many."""


class ListStreams(Protocol):
    """Returns the names of streams with a prefix, in order."""

    async def __call__(self, prefix: str = "", *, after: str | None = None, limit: int = 100) -> list[str]: ...


class StreamSweeper:
    """Trims these streams in turn. There may be millions, so a sweep looks at some and the next one continues."""

    def __init__(self, namespace: str, list_streams: ListStreams, trim: TrimBatch) -> None:
        self._namespace = namespace
        self._list_streams = list_streams
        self._trim = trim
        self._last: dict[str, str] = {}  # the stream that the sweep before looked at last, by type

    async def sweep(self, what: Retention, batch: SweepBatch) -> None:
        """Trim the next streams of each type."""
        await self._sweep_type("webhook", what.keep_events, what.events_before, batch)
        await self._sweep_type("entity", what.keep_entity_events, what.entity_events_before, batch)

    async def _sweep_type(self, type_: str, keep: int | None, before_ms: int | None, batch: SweepBatch) -> None:
        if keep is None and before_ms is None:
            return
        prefix = f"{self._namespace}:{type_}:"
        streams = await self._list_streams(prefix, after=self._last.get(type_), limit=STREAMS_PER_SWEEP)
        for stream in streams:
            if (room := batch.room("events")) == 0:
                return
            batch.add("events", await self._trim(stream, keep, before_ms, room))
            if batch.room("events"):
                self._last[type_] = stream
        if len(streams) < STREAMS_PER_SWEEP:
            self._last.pop(type_, None)
