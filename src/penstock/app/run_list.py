"""Find runs: by their columns, by index keys and by the content of their first event, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..core.errors import UnreadableRecord
from ..flows.run_index import correlation_key, error_words, failure_keys, has_failed_with
from ..flows.run_record import RunRecord, decode
from ..ports.store import RunRow, Store
from ..ports.unit import FLOW

MAX_SAME_TIME = 10_000  # runs that were started in one millisecond
PAGE_RUNS = 200  # read at once while rows are dropped that an index has and the record no longer


class RunFilter(msgspec.Struct, frozen=True):
    """What a run must match, all of it. No statuses are all."""

    statuses: Sequence[str] = ()
    flow: str | None = None
    since: int | None = None
    until: int | None = None
    first_event: Any = None
    keys: tuple[str, ...] = ()
    correlation_id: str | None = None
    step: str | None = None
    error: str | None = None

    @property
    def is_about_failures(self) -> bool:
        return self.step is not None or bool(error_words(self.error or ""))

    def index_keys(self) -> list[str]:
        """Return the keys to look up. The store reads the first one in order and looks the others up for each run."""
        correlation = [correlation_key(self.correlation_id)] if self.correlation_id is not None else []
        return [*correlation, *self.keys, *failure_keys(self.step, self.error)]


async def find_runs(store: Store, wanted: RunFilter, before: str | None, limit: int) -> list[RunRow]:
    """Return a page of runs, newest first."""
    if wanted.error is not None and not error_words(wanted.error):
        return []
    found: list[RunRow] = []
    last, size = before, max(limit, PAGE_RUNS) if wanted.is_about_failures else limit
    while len(found) < limit:
        page = await _read_page(store, wanted, wanted.index_keys(), last, size)
        found += [row for row in page if _has_failed(row, wanted)]
        if len(page) < size:
            break
        last = page[-1].id
    if wanted.correlation_id is not None and (own := await _own_run(store, wanted, before)) is not None:
        found = sorted([*found, own], key=_position, reverse=True)
    return found[:limit]


async def _read_page(
    store: Store, wanted: RunFilter, keys: Sequence[str], before: str | None, limit: int
) -> list[RunRow]:
    return await store.runs(
        flow=wanted.flow,
        statuses=wanted.statuses,
        since=wanted.since,
        until=wanted.until,
        first_event=wanted.first_event,
        keys=keys,
        before=before,
        limit=limit,
    )


async def _own_run(store: Store, wanted: RunFilter, before: str | None) -> RunRow | None:
    """Return the run whose own id is the wanted correlation id: it has no key for it."""
    id = wanted.correlation_id or ""
    row = await store.run(id)
    record = _read_record(row) if row is not None else None
    if row is None or record is None or record.correlation_id != id:
        return None
    if before is not None and ((end := await store.run(before)) is None or _position(row) >= _position(end)):
        return None
    # The store compares it with the rest of the filter, among the runs of the same millisecond.
    since, until = max(row.created, wanted.since or 0), min(row.created + 1, wanted.until or row.created + 1)
    rest = msgspec.structs.replace(wanted, since=since, until=until, correlation_id=None)
    if since >= until:
        return None
    same_time = await _read_page(store, rest, rest.index_keys(), None, MAX_SAME_TIME)
    return next((one for one in same_time if one.id == id and _has_failed(one, wanted)), None)


def _has_failed(row: RunRow, wanted: RunFilter) -> bool:
    if not wanted.is_about_failures:
        return True
    record = _read_record(row)
    return record is not None and has_failed_with(record.failures, wanted.step, wanted.error)


def _read_record(row: RunRow) -> RunRecord | None:
    try:
        return decode(row.record, row.id) if row.kind == FLOW else None
    except UnreadableRecord:
        return None


def _position(row: RunRow) -> tuple[int, str]:
    return row.created, row.id
