"""Import of exported runs: everything is checked before the first write, and times and event ids are kept."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING

from msgspec.structs import astuple

from ..core.clock import Clock
from ..core.errors import BlobUnavailable, ConfigError, RunError
from ..core.events import Event, encode_body, strip_event
from ..core.payload import unpack
from ..durable.child_runs import child_ended_job
from ..durable.wait_records import CALL, decode_body
from ..ports.store import Store
from ..ports.unit import (
    DELIVERIES,
    START_MANY,
    UNSTORED,
    UPLOADING,
    Committed,
    Memo,
    NewEvent,
    NewJob,
    NewWait,
    Refused,
    RunWrite,
    StateWrite,
    Unit,
    WaitChange,
)
from ..worker.child_runs import end_jobs
from .export_file import ExportFile, ExportSource, open_export
from .export_format import SavedRun, SavedWait
from .import_check import decode_start, restore_jobs
from .store_urls import is_memory_url, open_store

if TYPE_CHECKING:
    from .app import App

PAGE = 200  # events per commit
STATE_PAGE = 1000  # keys of state per commit


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
    for start in (*saved.starts, *saved.routes):
        if await app.store.job(start.id) is not None:
            raise _not_imported(f"job {start.id!r}, which starts work of run {saved.run!r}, already exists")
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
    store = app._keep_values(open_store(url, clock=clock, namespace=app.settings.namespace), app._opened_objects)
    await store.open()
    try:
        yield Importer(app, store, clock, ids)
    finally:
        await store.close()
        app.store.signals.notify_all()  # workers of this App look for what the second store has written


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
        jobs += [
            NewJob(one.id, DELIVERIES, one.name, bytes(one.payload), run=saved.run)
            for one in saved.routes
            if not saved.closed
        ]
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
        while isinstance(receipt, Refused) and receipt.why == UPLOADING:
            receipt = (await self._store.commit([unit])).receipts[0]
        if isinstance(receipt, Refused) and receipt.why == UNSTORED:
            raise BlobUnavailable(receipt.key)
        if not isinstance(receipt, Committed):
            raise RunError("another process changed the store during the import; run the import again")


def _build_wait(run: str, wait: SavedWait) -> NewWait:
    return NewWait(
        wait.id, run, wait.scope, wait.kind, bytes(wait.body), wait.due, wait.job, wait.topic, wait.key
    )  # fmt: skip


def _ms(event: Event) -> int:
    return int(event.id.partition("-")[0])
