"""Export and import of runs: one line of JSON for each, with its events, jobs, waits, state and record.

After an import, a waiting step runs once more with its memos and goes on waiting; its tokens stay valid. Times and
event ids are kept. Jobs that have ended are not imported; their history is in the events. What only the engine of a
run's kind knows, the engine is asked for.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import astuple

from ..core.clock import Clock
from ..core.errors import BadArgument, ConfigError, RunError, RunLimit, UnknownRun, UnreadableRecord
from ..core.events import Event, encode_body, strip_event
from ..core.ids import dead_letter_id
from ..core.stored import read_stored
from ..ports.store import JobRow, RunRow, Store
from ..ports.unit import (
    Claim,
    Committed,
    JobState,
    Memo,
    NewEvent,
    NewWait,
    RunWrite,
    StateWrite,
    Unit,
    WaitChange,
)
from ..worker.engines import Engines
from .export_check import check_run, restore_jobs
from .export_format import FORMAT, BadExport, SavedJob, SavedRun, SavedWait, decode_line, decode_run
from .run_actions import jobs_of
from .store_urls import is_memory_url, open_store

if TYPE_CHECKING:
    from .app import App

OPEN = (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE, JobState.SUSPENDED, JobState.HELD)
PAGE = 200  # events per commit
STATE_PAGE = 1000  # keys of state per commit
MAX_EXPORT_BYTES = 512 * 2**20  # of the events of a run, and of its state
_GZIP, _MARKS = b"\x1f\x8b", (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
log = logging.getLogger("penstock.export")


class ReplayClock:
    """Another clock, except while an import writes records with their original times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.replayed_ms: int | None = None

    def now_ms(self) -> int:
        return self._clock.now_ms() if self.replayed_ms is None else self.replayed_ms


def read_line(line: bytes, number: int, engines: Engines | None = None) -> SavedRun:
    """Read a line of an export, or raise BadExport with the number of the line, the field and its value.

    With `engines`, the engine of the run's kind also reads the record and the jobs."""
    saved = decode_line(line, number)
    check_run(saved, number, engines)
    return saved


def read_runs(data: bytes, engines: Engines | None = None) -> Iterator[SavedRun]:
    """Read the lines of an export; raise BadExport for a line that is not a run or a run that appears twice."""
    if data.startswith(_GZIP):
        raise BadExport("the file is compressed; decompress it first, for example with gunzip")
    if data.startswith(_MARKS):
        raise BadExport("the file starts with a byte order mark; save it as UTF-8 without one")
    seen: set[str] = set()
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        saved = read_line(line, number, engines)
        if saved.run in seen:
            raise BadExport(f"line {number}: run {saved.run!r} occurs twice in the file")
        seen.add(saved.run)
        yield saved


async def import_runs(app: App, data: bytes, on_run: Callable[[str], object] | None = None) -> list[str]:
    """Import every run of an export, or none if the store already has one of them; return their ids."""
    if not isinstance(data, bytes):
        raise BadArgument(
            f"data must be the bytes that `export` returned, or Path(file).read_bytes(), got a {type(data).__name__}"
        )
    for saved in read_runs(data, app._engines):
        await _check_room(app, saved)
    imported: list[str] = []
    async with _open_importer(app) as importer:
        for saved in read_runs(data):
            await importer.add(saved)
            imported.append(saved.run)
            if on_run is not None:
                on_run(saved.run)
    return imported


async def _check_room(app: App, saved: SavedRun) -> None:
    """Raise RunError if the store already has the run, or something under the same names."""
    if await app.store.run(saved.run) is not None:
        raise RunError(f"run {saved.run!r} already exists in this store; nothing was imported")
    stream = app._bodies.run(saved.kind, saved.run)
    for stored, own in zip_longest(await app.events.read_all(stream), saved.events):
        if stored is None:
            break  # the rest is new
        if own is None or astuple(stored) != astuple(own):  # else an earlier import was interrupted
            raise RunError(f"stream {stream!r} already has other events in this store; nothing was imported")
    for job in saved.jobs:
        if await app.store.job(job.id) is not None:
            raise RunError(f"job {job.id!r} already exists in this store; nothing was imported")
    for wait in saved.waits:
        if await app.store.wait_row(wait.id) is not None:
            raise RunError(f"wait {wait.id!r} already exists in this store; nothing was imported")


@asynccontextmanager
async def _open_importer(app: App) -> AsyncIterator[Importer]:
    """Open the App's store a second time, with a clock that shows the original times."""
    url = app.settings.url
    if app._store is not None:
        raise ConfigError(
            "runs cannot be imported into a store passed as store=, because an import opens the store a second time, "
            "by its URL. Pass the URL instead, such as App('sqlite:///penstock.db')"
        )
    if is_memory_url(url):
        raise ConfigError(
            f"runs cannot be imported into {url!r}, because an import opens the store a second time, which is "
            "not possible in memory. Use a file, such as App('sqlite:///penstock.db')"
        )
    clock = ReplayClock(app.clock)
    store = open_store(url, clock=clock, namespace=app.settings.namespace)
    await store.open()
    try:
        yield Importer(app, store, clock)
    finally:
        await store.close()
        app.store.signals.notify_all()  # workers of this App look for what the second store has written


async def iterate_run_ids(app: App) -> AsyncIterator[str]:
    """Yield the ids of all runs, newest first."""
    before: str | None = None
    while page := await app.runs.list(before=before, limit=500):
        for row in page:
            yield row.id
        before = page[-1].id


async def export_runs(app: App) -> AsyncIterator[bytes]:
    """Yield all runs as lines of JSON, oldest first. A run that is removed meanwhile is left out."""
    for id in reversed([id async for id in iterate_run_ids(app)]):
        try:
            line = await export_run(app, id)
        except UnknownRun:
            continue
        except UnreadableRecord as problem:
            log.error("run %s is not exported: %s", id, problem)
            continue
        yield line


async def export_run(app: App, id: str) -> bytes:
    """Return a run as one line of JSON."""
    row = await app.runs._row(id)
    app._engines.of_run(row).read_record(row.record)  # an unreadable one cannot be imported
    jobs, ended = await _jobs(app, row)
    scopes = {job.scope for job in (*jobs, *ended)} | {job.letter_scope for job in jobs}
    found = {scope: await app.store.memos(scope) for scope in sorted(scopes)}
    memos = {scope: {name: msgspec.Raw(value) for name, value in kept.items()} for scope, kept in found.items() if kept}
    # Raw JSON in place of lists: millions of events and keys as objects would take ten times the memory.
    events, state = RawJson(id), RawJson(id)
    await _add_events(app, row, events)
    await _add_state(app, row, state)
    saved = SavedRun(
        FORMAT, row.id, row.flow, row.status, row.closed, row.created, row.updated, msgspec.Raw(row.record),
        events.list(), jobs, state.object(), memos, await _waits(app, id), ended, row.kind,
    )  # fmt: skip
    line = msgspec.json.encode(saved)
    return read_stored(
        _check_line, line, f"run {id!r} or a record of it", "cancel the run, or restore it from a backup"
    )


def _check_line(line: bytes) -> bytes:
    """Return a line if it can be read again: what the stores hold is copied into it as it is."""
    decode_run(line)
    return line


class RawJson:
    """Collects the items of a JSON list or object as bytes, up to a size."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._data = bytearray()

    def add(self, *parts: bytes) -> None:
        self._data += b"," if self._data else b""
        for part in parts:
            self._data += part
        if len(self._data) > MAX_EXPORT_BYTES:
            raise RunLimit(
                f"run {self._run!r} is too large to export: its events or its state have more than "
                f"{MAX_EXPORT_BYTES // 2**20} MB; delete keys of its state, or read them with app.events and app.state"
            )

    def list(self) -> Any:
        return msgspec.Raw(b"[%b]" % bytes(self._data))

    def object(self) -> Any:
        return msgspec.Raw(b"{%b}" % bytes(self._data))


async def _add_events(app: App, row: RunRow, found: RawJson) -> None:
    """Add the events of a run, without what another program added to the stream: it has no position there."""
    stream, after, count = app._bodies.run(row.kind, row.id), None, 0
    while page := await app.events.read(stream, after=after, limit=1000):
        for event in page:
            if not event.is_unreadable or event.seq == count + 1:
                found.add(msgspec.json.encode(event))
                count += 1
        after = page[-1].id


async def _add_state(app: App, row: RunRow, found: RawJson) -> None:
    prefix, after = f"run/{row.id}/", None
    while page := await app.store.states(prefix, after=after, limit=STATE_PAGE):
        for one in page:
            found.add(msgspec.json.encode(one.key), b":", one.value)
        after = page[-1].key
    for key in app._engines.of_run(row).read_record(row.record).state_keys:
        if (shared := await app.store.state(key)) is not None:
            found.add(msgspec.json.encode(shared.key), b":", shared.value)


async def _jobs(app: App, row: RunRow) -> tuple[list[SavedJob], list[SavedJob]]:
    """Return the open jobs of a run with its dead letters, and its completed jobs that have memos."""
    found: list[SavedJob] = []
    ended: list[SavedJob] = []
    for id in await jobs_of(app, row.id):
        job, letter = await app.store.job(id), await app.store.job(dead_letter_id(id))
        is_open = job is not None and job.state in OPEN and not row.closed
        found += [_job(one) for one in (job if is_open else None, letter) if one is not None and one.state in OPEN]
        if job is not None and job.state is JobState.COMPLETED and await app.store.memos(job.scope):
            ended.append(_job(job))
    return found, ended


async def _waits(app: App, run: str) -> list[SavedWait]:
    found: list[SavedWait] = []
    after: str | None = None
    while rows := await app.store.waits(run=run, after=after):
        after = rows[-1].id
        found += [
            SavedWait(row.id, row.kind, row.scope, row.due, row.job, row.topic, row.key, msgspec.Raw(row.body))
            for row in rows
        ]
    return found


def _job(row: JobRow) -> SavedJob:
    return SavedJob(
        row.id, row.queue, row.name, row.priority, row.due, row.run, row.scope, msgspec.Raw(row.payload),
        msgspec.Raw(row.opts),
    )  # fmt: skip


class Importer:
    """Writes exported runs into a store that was opened with the same ReplayClock."""

    def __init__(self, app: App, store: Store, clock: ReplayClock) -> None:
        self._engines = app._engines
        self._streams = app._bodies
        self._store = store
        self._clock = clock
        self._units = map(f"import-{os.urandom(6).hex()}-{{}}".format, itertools.count(1))

    async def add(self, saved: SavedRun) -> None:
        """Import a run. Its row is written last, so a run exists complete or not at all.

        An import that was killed is continued: events that are already stored are not written again.
        """
        try:
            await self._events(saved)
            await self._run(saved)
        finally:
            self._clock.replayed_ms = None

    async def _events(self, saved: SavedRun) -> None:
        stream = self._streams.run(saved.kind, saved.run)
        newest = await self._store.read(stream, limit=1, backward=True)
        batch: list[Event] = []
        for event in saved.events[newest[0].seq if newest else 0 :]:
            # A commit has one time, so events with another time need another commit.
            if batch and (_ms(event) != _ms(batch[0]) or len(batch) == PAGE):
                await self._append(stream, batch)
                batch = []
            batch.append(event)
        if batch:
            await self._append(stream, batch)

    async def _append(self, stream: str, batch: list[Event]) -> None:
        self._clock.replayed_ms = _ms(batch[0])
        events = [NewEvent(stream, encode_body(strip_event(stream, event))) for event in batch]
        await self._commit(Unit(next(self._units), events=events))

    async def _run(self, saved: SavedRun) -> None:
        engine, record = self._engines.of_run_kind(saved.kind), bytes(saved.record)
        jobs = restore_jobs(engine, saved)
        await self._state(saved)
        # The second write sets `updated`. An open run gets none: a worker may already have changed it.
        times = (saved.created, saved.updated) if saved.closed else (saved.created,)
        memos = [
            Memo(scope, name, bytes(value))
            for scope, kept in saved.memos.items()
            if any(scope in (job.scope, job.letter_scope) for job in saved.jobs)
            for name, value in kept.items()
        ]
        waits: list[WaitChange] = [_build_wait(saved.run, wait) for wait in saved.waits]
        paused = engine.read_record(record).paused
        for version, self._clock.replayed_ms in enumerate(times):
            write = RunWrite(
                saved.run, version, record, saved.flow, saved.status, saved.closed, paused, kind=saved.kind
            )
            await self._commit(Unit(next(self._units), run=write, jobs=jobs, memos=memos, waits=waits))
            jobs, memos, waits = [], [], []

    async def _state(self, saved: SavedRun) -> None:
        """Write the run's own state, and what runs share where the store does not have it.

        A commit has one page of it: a run may have millions of keys."""
        own, items = f"run/{saved.run}/", iter(saved.state.items())
        while page := list(itertools.islice(items, STATE_PAGE)):
            writes = [
                StateWrite(key, bytes(value))
                for key, value in page
                if key.startswith(own) or await self._store.state(key) is None
            ]
            if writes:
                await self._commit(Unit(next(self._units), state=writes))

    async def _commit(self, unit: Unit) -> None:
        receipt = (await self._store.commit([unit])).receipts[0]
        if not isinstance(receipt, Committed):
            raise RunError("another process changed the store during the import; run the import again")


def _build_wait(run: str, wait: SavedWait) -> NewWait:
    return NewWait(
        wait.id, run, wait.scope, wait.kind, bytes(wait.body), wait.due, wait.job, wait.topic, wait.key
    )  # fmt: skip


def saved_claims(saved: SavedRun, now: int) -> list[Claim]:
    """Return claims for the open steps of an exported run and for its completed steps with memos."""
    return [
        Claim(
            job.id, job.queue, job.name, bytes(job.payload), bytes(job.opts), job.scope, 1, "", 0, 0, 0, saved.run, 1,
            bytes(saved.record), {name: bytes(value) for name, value in saved.memos.get(job.scope, {}).items()}, now,
            saved.kind,
        )
        for job in (*saved.jobs, *saved.ended)
        if job.run is not None
    ]  # fmt: skip


def _ms(event: Event) -> int:
    return int(event.id.partition("-")[0])
