"""Read the history from a store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...core.events import Event, Streams
from ...ports.store import RunRow, Store
from .records import Effect, History, RunHistory, Trigger

PAGE = 1000


async def read_history(
    store: Store,
    *,
    effects: Iterable[Effect] = (),
    acknowledged: Collection[str] = (),
    triggers: Mapping[str, Mapping[str, Trigger]] | None = None,
    is_finished: bool = True,
    is_undisturbed: bool = False,
    namespace: str = "nq",
) -> History:
    """Read the history from a store through its feed, so that a feed that skips events is caught as well."""
    streams: dict[str, list[Event]] = {}
    cursor = ""
    while items := await store.feed(cursor, PAGE):
        cursor = items[-1].cursor
        for item in items:
            streams.setdefault(item.stream, []).append(item.event)
    names = Streams(namespace)
    runs = [
        RunHistory(row.id, row.flow, row.status, row.closed, streams.pop(names.flow(row.id), []))
        for row in await _all_runs(store)
    ]
    queues = {name: events for name, events in streams.items() if name.startswith(names.queue(""))}
    trigger_streams = {
        name: events for name, events in streams.items() if name.startswith(names.stream_name("trigger", ""))
    }
    return History(
        runs, queues, list(effects), acknowledged, triggers or {}, is_finished, is_undisturbed, trigger_streams
    )


async def _all_runs(store: Store) -> list[RunRow]:
    rows: list[RunRow] = []
    while page := await store.runs(before=rows[-1].id if rows else None, limit=PAGE):
        rows += page
    return rows
