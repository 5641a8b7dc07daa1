"""Export and import of runs: one line of JSON for each, with its events, jobs, waits, state and record.

After an import, a waiting step runs once more with its memos and goes on waiting; its tokens stay valid. Children that
had not started yet start. Times and event ids are kept. Jobs that have ended are not imported; their history is in the
events. What only the engine of a run's kind knows, the engine is asked for.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import astuple

from ..core.clock import Clock
from ..core.errors import ConfigError, RunError, RunLimit, UnknownRun, UnreadableRecord
from ..core.events import Event, encode_body, strip_event
from ..core.ids import dead_letter_id
from ..core.payload import DECODE_ERRORS, unpack
from ..core.stored import read_stored
from ..durable.child_runs import child_ended_job
from ..durable.wait_records import CALL, decode_body
from ..ports.store import JobRow, RunRow, Store
from ..ports.unit import (
    DELIVERIES,
    START,
    START_MANY,
    Claim,
    Committed,
    JobState,
    Memo,
    NewEvent,
    NewJob,
    NewWait,
    RunParent,
    RunWrite,
    StateWrite,
    Unit,
    WaitChange,
)
from ..worker.child_runs import end_jobs
from . import export_format
from .export_file import ExportFile, ExportSource, open_export
from .export_format import FORMAT, SavedJob, SavedRun, SavedStart, SavedWait, decode_run
from .import_check import decode_start, restore_jobs
from .run_actions import jobs_of
from .store_urls import is_memory_url, open_store

if TYPE_CHECKING:
    from .app import App

OPEN = (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE, JobState.SUSPENDED, JobState.HELD)
PAGE = 200  # events per commit
STATE_PAGE = 1000  # keys of state per commit
Launches = dict[str, list[SavedStart]]
log = logging.getLogger("penstock.export")


class ReplayClock:
    """Another clock, except while an import writes records with their original times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.replayed_ms: int | None = None

    def now_ms(self) -> int:
        return self._clock.now_ms() if self.replayed_ms is None else self.replayed_ms


async def import_runs(app: App, source: ExportSource, on_run: Callable[[str], object] | None = None) -> list[str]:
    """Import every run of an export, or none if the store already has one of them; return their ids."""
    with open_export(source) as file:
        return await import_file(app, file, on_run)


async def import_file(app: App, file: ExportFile, on_run: Callable[[str], object] | None = None) -> list[str]:
    """Read the file twice: the first write follows the last check."""
    ids: set[str] = set()
    async for saved in _read_in_thread(file.check(app._engines)):
        await _check_room(app, saved)
        ids.add(saved.run)
        del saved  # before the next one is read: a run may be large
    imported: list[str] = []
    async with _open_importer(app, ids) as importer:
        async for saved in _read_in_thread(file.read_checked()):
            await importer.add(saved)
            imported.append(saved.run)
            if on_run is not None:
                on_run(saved.run)
            del saved
    return imported


async def _read_in_thread(runs: Iterator[SavedRun]) -> AsyncIterator[SavedRun]:
    """Read each run in a thread: a large one takes seconds, and the event loop goes on."""
    while (saved := await asyncio.to_thread(next, runs, None)) is not None:
        yield saved
        del saved


async def _check_room(app: App, saved: SavedRun) -> None:
    """Raise RunError if the store already has the run, or something under the same names."""
    if await app.store.run(saved.run) is not None:
        raise _not_imported(f"run {saved.run!r} already exists")
    stream = app._bodies.run(saved.kind, saved.run)
    for stored, own in zip_longest(await app.events.read_all(stream), saved.events):
        if stored is None:
            break  # the rest is new
        if own is None or astuple(stored) != astuple(own):  # else an earlier import was interrupted
            raise _not_imported(f"stream {stream!r} already has other events")
    for job in saved.jobs:
        if await app.store.job(job.id) is not None:
            raise _not_imported(f"job {job.id!r} already exists")
    for start in saved.starts:
        if await app.store.job(start.id) is not None:
            raise _not_imported(f"job {start.id!r}, which starts a child of run {saved.run!r}, already exists")
    for wait in saved.waits:
        if await app.store.wait_row(wait.id) is not None:
            raise _not_imported(f"wait {wait.id!r} of run {saved.run!r} already exists")
    for key in app._engines.of_run_kind(saved.kind).read_record(bytes(saved.record)).fixed_keys:
        stored, own = await app.store.state(key), saved.state.get(key)
        if stored is not None and own is not None and unpack(stored.value) != unpack(bytes(own)):
            raise _not_imported(f"{key!r}, which run {saved.run!r} needs, exists with another value")


def _not_imported(reason: str) -> RunError:
    return RunError(
        f"{reason} in this store; nothing was imported. Import into another store, or export without that run"
    )


@asynccontextmanager
async def _open_importer(app: App, ids: set[str]) -> AsyncIterator[Importer]:
    """Open the App's store a second time, with a clock that shows the original times. `ids` are the imported runs."""
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
        yield Importer(app, store, clock, ids)
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
    launches = await _find_launches(app)
    for id in reversed([id async for id in iterate_run_ids(app)]):
        try:
            line = await export_run(app, id, launches)
        except UnknownRun:
            continue
        except UnreadableRecord as problem:
            log.error("run %s is not exported: %s", id, problem)
            continue
        yield line


async def export_run(app: App, id: str, launches: Launches | None = None) -> bytes:
    """Return a run as one line of JSON. `launches` are the pending starts of all runs, if they were read before."""
    row = await app._run_reader.row(id)
    app._engines.of_run(row).read_record(row.record)  # an unreadable one cannot be imported
    jobs, ended = await _jobs(app, row)
    scopes = {job.scope for job in (*jobs, *ended)} | {job.letter_scope for job in jobs}
    found = {scope: await app.store.memos(scope) for scope in sorted(scopes)}
    memos = {scope: {name: msgspec.Raw(value) for name, value in kept.items()} for scope, kept in found.items() if kept}
    # Raw JSON in place of lists: millions of events and keys as objects would take ten times the memory.
    events, state = RawJson(id), RawJson(id)
    await _add_events(app, row, events)
    await _add_state(app, row, state)
    waits = await _waits(app, id)
    starts = await _starts(app, waits) + (await _find_launches(app) if launches is None else launches).get(id, [])
    saved = SavedRun(
        FORMAT, row.id, row.flow, row.status, row.closed, row.created, row.updated, msgspec.Raw(row.record),
        events.list(), jobs, state.object(), memos, waits, ended, row.kind, starts,
    )  # fmt: skip
    line = msgspec.json.encode(saved)
    _check_size(id, line)
    return read_stored(
        _check_line, line, f"run {id!r} or a record of it", "cancel the run, or restore it from a backup"
    )


def _check_line(line: bytes) -> bytes:
    """Return a line if it can be read again: what the stores hold is copied into it as it is."""
    decode_run(line)
    return line


def _check_size(run: str, data: bytes | bytearray) -> None:
    if len(data) > export_format.MAX_LINE_BYTES:
        raise RunLimit(
            f"run {run!r} is too large to export: it has more than {export_format.MAX_LINE_BYTES // 2**20} MB; delete "
            "keys of its state, or read them with app.events and app.state"
        )


class RawJson:
    """Collects the items of a JSON list or object as bytes, up to a size."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._data = bytearray()

    def add(self, *parts: bytes) -> None:
        self._data += b"," if self._data else b""
        for part in parts:
            self._data += part
        _check_size(self._run, self._data)

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


async def _starts(app: App, waits: list[SavedWait]) -> list[SavedStart]:
    """Return what will start the children that pending calls wait for and that have not started."""
    found: list[SavedStart] = []
    for wait in waits:
        if wait.kind != CALL:
            continue
        body = decode_body(bytes(wait.body))
        ids = [f"start.{wait.id}.p{n}" for n in range(body.pages)] if body.many is not None else [f"start.{wait.id}"]
        for id in ids:
            job = await app.store.job(id)
            if job is not None and job.state in OPEN:
                found.append(SavedStart(job.id, job.name, msgspec.Raw(job.payload)))
    return found


async def _find_launches(app: App) -> Launches:
    """Return the pending starts of runs that nothing waits for, by the run that started them."""
    found: Launches = {}
    for state in OPEN:
        after: str | None = None
        while jobs := await app.store.jobs(DELIVERIES, state, after=after, limit=1000):
            for job in jobs:
                saved = SavedStart(job.id, job.name, msgspec.Raw(job.payload)) if job.name == START else None
                link = _link(saved) if saved is not None else None
                if saved is not None and link is not None and link.call is None:
                    found.setdefault(link.run, []).append(saved)
            after = jobs[-1].id
    return found


def _link(saved: SavedStart) -> RunParent | None:
    try:
        return decode_start(saved).link
    except DECODE_ERRORS:
        return None  # another program wrote it


def _job(row: JobRow) -> SavedJob:
    return SavedJob(
        row.id, row.queue, row.name, row.priority, row.due, row.run, row.scope, msgspec.Raw(row.payload),
        msgspec.Raw(row.opts),
    )  # fmt: skip


class Importer:
    """Writes exported runs into a store that was opened with the same ReplayClock."""

    def __init__(self, app: App, store: Store, clock: ReplayClock, ids: Collection[str] = ()) -> None:
        self._ids = ids
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
        summary, keys = engine.read_record(record), engine.index_keys(saved.run, record)
        # What resolves a call is a job of its own, which the export may have missed.
        jobs += [
            child_ended_job(wait.id, decode_body(bytes(wait.body)).children or "", f"{saved.run}.import")
            for wait in saved.waits
            if wait.kind == CALL
        ]
        jobs += self._starts(saved)
        if saved.closed:  # its parent may have been imported before it
            jobs += end_jobs(saved.run, 0, summary.parent)
        for version, self._clock.replayed_ms in enumerate(times):
            write = RunWrite(
                saved.run,
                version,
                record,
                saved.flow,
                saved.status,
                saved.closed,
                summary.paused,
                kind=saved.kind,
                keys=keys,
                parent=summary.parent,
            )
            await self._commit(Unit(next(self._units), run=write, jobs=jobs, memos=memos, waits=waits))
            jobs, memos, waits, keys = [], [], [], ()

    def _starts(self, saved: SavedRun) -> list[NewJob]:
        """Return what starts the children that had not started, except those that are imported themselves."""
        return [
            NewJob(start.id, DELIVERIES, start.name, bytes(start.payload))
            for start in saved.starts
            if start.name == START_MANY or decode_start(start).run not in self._ids
        ]

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
