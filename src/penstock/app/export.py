"""Export and import of runs: one line of JSON for each, with its events, jobs, waits, state and record.

After an import, a waiting step runs once more with its memos and goes on waiting; its tokens stay valid. Times and
event ids are kept. Jobs that have ended are not imported; their history is in the events.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ..core.clock import SystemClock
from ..core.errors import PenstockError, RunError
from ..core.events import Event, EventBodies, EventBody, encode_body
from ..core.ids import check_id, dead_letter_id
from ..flows.engine import table_key
from ..flows.run_record import decode as decode_record
from ..flows.units import UnitBuilder, decode_options
from ..handlers.trigger_table import TriggerTable
from ..ports.store import JobRow, RunRow
from ..ports.unit import (
    Claim,
    Committed,
    JobState,
    Memo,
    NewEvent,
    NewJob,
    NewWait,
    RunWrite,
    StateWrite,
    Unit,
    WaitChange,
)
from .run_actions import jobs_of

if TYPE_CHECKING:
    from .app import App

FORMAT = 2
OPEN = (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE, JobState.SUSPENDED, JobState.HELD)
PAGE = 200  # events per commit


class BadExport(PenstockError):
    """A file is not an export of `penstock export`."""

    code = "bad_export"


class SavedRun(msgspec.Struct, rename="camel"):
    """One line of an export: a run with everything that belongs to it."""

    penstock: int
    run: str
    flow: str
    status: str
    closed: bool
    created: int
    updated: int
    record: msgspec.Raw
    events: list[Event]
    jobs: list[dict[str, Any]]
    state: dict[str, msgspec.Raw] = {}
    memos: dict[str, dict[str, msgspec.Raw]] = {}  # by scope
    waits: list[dict[str, Any]] = []  # pending ones
    ended: list[dict[str, Any]] = []  # jobs of completed steps with memos: for preflight checks, not imported


class ReplayClock:
    """The system clock, except while an import writes records with their original times."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self.replayed_ms: int | None = None

    def now_ms(self) -> int:
        return self._system.now_ms() if self.replayed_ms is None else self.replayed_ms


_decode = msgspec.json.Decoder(SavedRun).decode


def read_line(line: bytes, number: int) -> SavedRun:
    """Read a line of an export, or raise BadExport with the number of the line."""
    try:
        saved = _decode(line)
        check_id(saved.run, "run id")
        decode_record(bytes(saved.record))
    except (msgspec.DecodeError, PenstockError) as problem:
        raise BadExport(f"line {number} is not a run written by `penstock export`: {problem}") from None
    if saved.penstock > FORMAT:
        raise BadExport(f"line {number} was written by a newer Penstock (format {saved.penstock}): upgrade")
    return saved


def read_runs(data: bytes) -> Iterator[SavedRun]:
    """Read the lines of an export; raise BadExport for a line that is not a run or a run that appears twice."""
    seen: set[str] = set()
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        saved = read_line(line, number)
        if saved.run in seen:
            raise BadExport(f"line {number}: run {saved.run!r} is in the file twice")
        seen.add(saved.run)
        yield saved


async def import_runs(app: App, clock: ReplayClock, data: bytes, on_run: Callable[[], object] = int) -> int:
    """Import every run of an export, or none if the store already has one of them; return how many.

    `app` must have been opened with `clock`; `on_run` is called after each run."""
    importer = Importer(app, clock)
    for saved in read_runs(data):
        await importer.check(saved)
    count = 0
    for saved in read_runs(data):
        await importer.add(saved)
        count += 1
        on_run()
    return count


async def iterate_run_ids(app: App) -> AsyncIterator[str]:
    """Yield the ids of all runs, newest first."""
    before: str | None = None
    while page := await app.runs.list(before=before, limit=500):
        for row in page:
            yield row.id
        before = page[-1].id


async def export_run(app: App, id: str) -> bytes:
    """Return a run as one line of JSON."""
    row = await app.store.run(id)
    if row is None:
        raise RunError(f"run {id!r} was removed during the export")
    jobs, ended = await _jobs(app, row)
    scopes = {job["scope"] for job in (*jobs, *ended)} | {_scope_of_letter(job["id"]) for job in jobs}
    found = {scope: await app.store.memos(scope) for scope in sorted(scopes)}
    memos = {scope: {name: msgspec.Raw(value) for name, value in kept.items()} for scope, kept in found.items() if kept}
    saved = SavedRun(
        FORMAT, row.id, row.flow, row.status, row.closed, row.created, row.updated, msgspec.Raw(row.record),
        await app.events.read_all(f"{app.settings.namespace}:flow:{id}"), jobs, await _state(app, row), memos,
        await _waits(app, id), [job for job in ended if job["scope"] in memos],
    )  # fmt: skip
    return msgspec.json.encode(saved)


async def _jobs(app: App, row: RunRow) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the open jobs of a run with its dead letters, and its completed jobs."""
    found: list[dict[str, Any]] = []
    ended: list[dict[str, Any]] = []
    for id in await jobs_of(app, row.id):
        job, letter = await app.store.job(id), await app.store.job(dead_letter_id(id))
        found += [_job(one) for one in (job, letter) if one is not None and one.state in OPEN]
        if job is not None and job.state is JobState.COMPLETED:
            ended.append(_job(job))
    return found, ended


async def _waits(app: App, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: str | None = None
    while rows := await app.store.waits(run=run, after=after):
        after = rows[-1].id
        names = ("id", "kind", "scope", "due", "job", "topic", "key")
        found += [{**{name: getattr(row, name) for name in names}, "body": msgspec.Raw(row.body)} for row in rows]
    return found


def _scope_of_letter(id: str) -> str:
    """Return the scope of the memos that a redrive of this dead letter would use."""
    return id.removesuffix(".dlq").partition(".redrive-")[0]


def _job(row: JobRow) -> dict[str, Any]:
    kept = ("id", "queue", "name", "priority", "due", "run", "scope")
    raw = {"payload": msgspec.Raw(row.payload), "opts": msgspec.Raw(row.opts)}
    return {**{name: getattr(row, name) for name in kept}, **raw}


async def _state(app: App, row: RunRow) -> dict[str, msgspec.Raw]:
    rows = []
    prefix, after = f"run/{row.id}/", None
    while page := await app.store.states(prefix, after=after, limit=500):
        rows += page
        after = page[-1].key
    pinned = decode_record(row.record).table
    if pinned is not None and (table := await app.store.state(table_key(pinned))) is not None:
        rows.append(table)
    return {one.key: msgspec.Raw(one.value) for one in rows}


class Importer:
    """Writes exported runs into a store that was opened with the same ReplayClock."""

    def __init__(self, app: App, clock: ReplayClock) -> None:
        self._app = app
        self._clock = clock
        self._bodies = EventBodies(app.settings.namespace)
        self._units = map(f"import-{os.urandom(6).hex()}-{{}}".format, itertools.count(1))

    async def check(self, saved: SavedRun) -> None:
        """Raise if the store already has the run."""
        if await self._app.store.run(saved.run) is not None:
            raise RunError(f"run {saved.run!r} is in this store already: nothing was imported")

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
        stream = self._bodies.flow(saved.run)
        newest = await self._app.events.read(stream, limit=1, backward=True)
        batch: list[Event] = []
        for event in saved.events[newest[0].seq if newest else 0 :]:
            # A commit has one time, so events with another time need another commit.
            if batch and (_ms(event) != _ms(batch[0]) or len(batch) == PAGE):
                await self._append(saved.run, batch)
                batch = []
            batch.append(event)
        if batch:
            await self._append(saved.run, batch)

    async def _append(self, run: str, batch: list[Event]) -> None:
        self._clock.replayed_ms, stream = _ms(batch[0]), self._bodies.flow(run)
        await self._commit(Unit(next(self._units), events=[NewEvent(stream, _body(run, event)) for event in batch]))

    async def _run(self, saved: SavedRun) -> None:
        record, jobs = bytes(saved.record), [self._new_job(saved, job) for job in saved.jobs]
        state = [StateWrite(key, bytes(value)) for key, value in saved.state.items()]
        # The second write sets `updated`. An open run gets none: a worker may already have changed it.
        times = (saved.created, saved.updated) if saved.closed else (saved.created,)
        memos = [
            Memo(scope, name, bytes(value))
            for scope, kept in saved.memos.items()
            if any(scope in (job["scope"], _scope_of_letter(job["id"])) for job in saved.jobs)
            for name, value in kept.items()
        ]
        waits: list[WaitChange] = [_build_wait(saved.run, wait) for wait in saved.waits]
        paused = decode_record(record).paused
        for version, self._clock.replayed_ms in enumerate(times):
            write = RunWrite(saved.run, version, record, saved.flow, saved.status, saved.closed, paused)
            await self._commit(Unit(next(self._units), run=write, jobs=jobs, state=state, memos=memos, waits=waits))
            jobs, state, memos, waits = [], [], [], []

    def _new_job(self, saved: SavedRun, job: dict[str, Any]) -> NewJob:
        payload, opts = msgspec.json.encode(job["payload"]), msgspec.json.encode(job["opts"])
        if job["run"] is None:  # a dead letter
            return NewJob(job["id"], job["queue"], job["name"], payload, opts=opts)
        record = decode_record(bytes(saved.record))
        table = TriggerTable(saved.flow, "", {})
        maker = UnitBuilder(saved.run, table, None, self._bodies, saved.created)
        # A job with memos needs an explicit scope, even if it is its own id: the store then reads its memos.
        scope = job["scope"] if job["scope"] != job["id"] or job["scope"] in saved.memos else None
        return maker.job(
            job["id"], job["name"], job["queue"], payload, decode_options(opts), record, "import",
            priority=job["priority"], due=job["due"], scope=scope,
        )  # fmt: skip

    async def _commit(self, unit: Unit) -> None:
        receipt = (await self._app.store.commit([unit])).receipts[0]
        if not isinstance(receipt, Committed):
            raise RunError("another process changed the store meanwhile: import again")


def _build_wait(run: str, wait: dict[str, Any]) -> NewWait:
    body = msgspec.json.encode(wait["body"])
    return NewWait(
        wait["id"], run, wait["scope"], wait["kind"], body, wait["due"], wait["job"], wait["topic"], wait["key"]
    )


def saved_claims(saved: SavedRun, now: int) -> list[Claim]:
    """Return claims for the open steps of an exported run and for its completed steps with memos."""
    return [
        Claim(
            job["id"], job["queue"], job["name"], msgspec.json.encode(job["payload"]), msgspec.json.encode(job["opts"]),
            job["scope"], 1, "", 0, 0, 0, saved.run, 1, bytes(saved.record),
            {name: bytes(value) for name, value in saved.memos.get(job["scope"], {}).items()}, now,
        )
        for job in (*saved.jobs, *saved.ended)
        if job["run"] is not None
    ]  # fmt: skip


def _ms(event: Event) -> int:
    return int(event.id.partition("-")[0])


def _body(run: str, event: Event) -> bytes:
    """Encode an event as it is stored, without the fields that its stream implies."""
    subject = event.subject if event.subject != run else None
    flow = event.flow if event.flow != run else None
    corr = event.correlation_id if event.correlation_id != event.subject else None
    data = msgspec.Raw(msgspec.json.encode(event.data)) if event.data is not None else None
    return encode_body(EventBody(event.kind, subject, flow, event.step, event.trigger, corr, data, event.meta))
