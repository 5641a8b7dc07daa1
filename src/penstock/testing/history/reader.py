"""Reading the history a store holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...core.events import Event, Streams
from ...ports.store import RunRow, Store
from .facts import Effect, History, RunHistory, Trigger

PAGE = 1000


async def read_history(
    store: Store,
    *,
    effects: Iterable[Effect] = (),
    acknowledged: Collection[str] = (),
    triggers: Mapping[str, Mapping[str, Trigger]] | None = None,
    settled: bool = True,
    calm: bool = False,
    namespace: str = "nq",
) -> History:
    """The history a store holds. Read by the feed, so that a feed that passes over events is caught as well."""
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
    gates = {name: events for name, events in streams.items() if name.startswith(names.named("trigger", ""))}
    return History(runs, queues, list(effects), acknowledged, triggers or {}, settled, calm, gates)


async def _all_runs(store: Store) -> list[RunRow]:
    rows: list[RunRow] = []
    while page := await store.runs(before=rows[-1].id if rows else None, limit=PAGE):
        rows += page
    return rows
