"""Export of runs: one line of JSON for each, with its events, jobs, waits, state and record.

After an import, a waiting step runs once more with its memos and goes on waiting; its tokens stay valid. Children that
had not started yet start. Times and event ids are kept. Jobs that have ended are not imported; their history is in the
events. What only the engine of a run's kind knows, the engine is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from ..core.errors import RunLimit, UnknownRun, UnreadableRecord
from ..core.ids import dead_letter_id, route_id
from ..core.payload import DECODE_ERRORS
from ..core.stored import read_stored
from ..durable.wait_records import CALL, decode_body
from ..ports.store import JobRow, RunRow
from ..ports.unit import DELIVERIES, ROUTE_START, START, Claim, JobState, RunParent
from ..worker.routes import decode_step
from . import export_format
from .export_format import ENGINE_JOBS, FORMAT, SavedJob, SavedRun, SavedStart, SavedWait, decode_run
from .import_check import decode_start
from .run_actions import jobs_of

if TYPE_CHECKING:
    from .app import App

OPEN = (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE, JobState.SUSPENDED, JobState.HELD)
STATE_PAGE = 1000  # keys of state per commit
Launches = dict[str, list[SavedStart]]
log = logging.getLogger("penstock.export")


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
    id = row.id
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
    found_launches = (await _find_launches(app) if launches is None else launches).get(id, [])
    starts = await _starts(app, waits) + [one for one in found_launches if one.name not in ENGINE_JOBS]
    routes = [one for one in found_launches if one.name in ENGINE_JOBS]
    saved = SavedRun(
        FORMAT, row.id, row.flow, row.status, row.closed, row.created, row.updated, msgspec.Raw(row.record),
        events.list(), jobs, state.object(), memos, waits, ended, row.kind, starts, routes,
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
        job, letter = await _find_job(app, id), await app.store.job(dead_letter_id(id))
        is_open = job is not None and job.state in OPEN and not row.closed
        found += [_job(one) for one in (job if is_open else None, letter) if one is not None and one.state in OPEN]
        if job is not None and job.state is JobState.COMPLETED and await app.store.memos(job.scope):
            ended.append(_job(job))
    return found, ended


async def _find_job(app: App, id: str) -> JobRow | None:
    """Return a job of a run. One that its route has not added yet is as the route will add it."""
    job = await app.store.job(id)
    route = await app.store.job(route_id(id)) if job is None else None
    if route is None or route.state not in OPEN:
        return job
    routed = decode_step(route.payload)
    return msgspec.structs.replace(
        route, id=id, queue=routed.queue, name=routed.name, payload=bytes(routed.payload), opts=bytes(routed.opts),
        priority=routed.priority, due=routed.due, scope=routed.scope or id,
    )  # fmt: skip


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
    """Return the pending starts of runs that nothing waits for, by the run that started them, and the pending jobs of
    the engine in a run, by that run."""
    found: Launches = {}
    for state in OPEN:
        after: str | None = None
        while jobs := await app.store.jobs(DELIVERIES, state, after=after, limit=1000):
            for job in jobs:
                saved = SavedStart(job.id, job.name, msgspec.Raw(job.payload))
                if job.name in ENGINE_JOBS and job.run is not None:
                    found.setdefault(job.run, []).append(saved)
                link = _link(saved) if job.name in (START, ROUTE_START) else None
                if link is not None and link.call is None:
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
