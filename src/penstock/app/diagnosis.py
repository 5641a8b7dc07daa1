"""Health checks of an App and its store."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..core.clock import to_iso
from ..core.durations import format_ms
from ..core.errors import PenstockError
from ..core.near_match import did_you_mean
from ..handlers.registry import Registry
from ..settings import Settings
from .live_workers import LiveWorkers
from .store_urls import mask, sqlite_path

if TYPE_CHECKING:
    from .app import App

MIN_FREE_DISK_BYTES = 200 * 2**20
MAX_CLOCK_SKEW_MS = 5_000
MAX_RECORDS_CHECKED, MAX_RECORDS_SHOWN = 1000, 5
NEWEST_RUNS, NEWEST_EVENTS = 100, 200  # in which `diagnose` looks for unreadable events


@dataclass(frozen=True)
class Check:
    """One health check and what it found, on one line or more."""

    name: str
    ok: bool
    detail: str
    is_warning: bool = False  # nothing is wrong, but you should know it


async def diagnose(app: App) -> list[Check]:
    """Check versions, settings, worker files and the store; a failed check does not stop the next.

    An App that is not open is opened for the checks and closed afterwards. A SQLite file that does not exist yet is not
    created."""
    checks = [check_versions(), _check_settings(app.settings), _check_worker_files(app.registry)]
    try:
        if app._is_open:
            return [*checks, *await _check_store(app)]
        url = app.settings.url
        if (path := _file_of(url)) and not _exists(path):
            missing = Check("store", True, f"{mask(url)} does not exist yet; the first run creates it")
            return [*checks, missing, _check_disk(path)]
        async with app:
            return [*checks, *await _check_store(app)]
    except PenstockError as problem:
        return [*checks, failed_check("store", problem)]


def check_versions() -> Check:
    return Check("versions", True, f"Penstock {__version__}, Python {platform.python_version()}")


def failed_check(name: str, problem: PenstockError) -> Check:
    return Check(name, False, f"{problem} [{problem.code}]")


def _check_settings(settings: Settings) -> Check:
    return Check(
        "settings", True, f"{len(settings.sources)} set, the rest are defaults; `penstock settings` lists them"
    )


def _check_worker_files(registry: Registry) -> Check:
    if registry.problems:
        problems = "\n".join(f"{problem} [{problem.code}]" for problem in registry.problems)
        return Check("worker files", False, problems)
    return Check("worker files", True, f"{_count(registry.flows, 'flow')}, {_count(registry.jobs, 'job')}, no problems")


async def _check_store(app: App) -> list[Check]:
    facts = await app.store.describe()
    doubts = "; ".join(facts.pop("doubts", ()))
    warnings = [Check("durability", True, text, is_warning=True) for text in facts.pop("warnings", ())]
    detail = ", ".join(f"{key} {value}" for key, value in facts.items())
    path = _file_of(app.settings.url)
    workers = await LiveWorkers.read(app)
    return [
        Check("store", not doubts, f"{detail}: {doubts}" if doubts else detail),
        *warnings,
        await _check_clock(app),
        *([_check_disk(path)] if path else []),
        await _check_stuck_runs(app),
        *await _check_records(app),
        await _check_events(app),
        _check_workers(app, workers),
        await _check_queues(app, workers),
        await _check_dead_letters(app),
    ]


async def _check_clock(app: App) -> Check:
    newest = await app.store.feed(None)
    now = app.clock.now_ms()
    ahead = int(newest[-1].event.id.partition("-")[0]) - now if newest else 0
    if ahead > MAX_CLOCK_SKEW_MS:
        return Check("clock", False, f"the newest event is {format_ms(ahead)} ahead of the store; correct its clock")
    skew = app._machine_clock.now_ms() - now
    if abs(skew) <= MAX_CLOCK_SKEW_MS:
        return Check("clock", True, f"it is {to_iso(now)}")
    where = "ahead of" if skew > 0 else "behind"
    return Check("clock", True, f"it is {to_iso(now)}; this machine is {format_ms(abs(skew))} {where} the store")


def _check_disk(path: str) -> Check:
    folder = next((parent for parent in Path(path).resolve().parents if parent.is_dir()), Path("/"))
    free = shutil.disk_usage(folder).free
    return Check("disk", free > MIN_FREE_DISK_BYTES, f"{free / 2**30:.1f} GB free for {path}")


async def _check_stuck_runs(app: App) -> Check:
    stuck = [id for id in await app.store.stuck_runs() if await _is_readable(app, id)]
    if stuck:
        return Check("runs", False, f"{_count(stuck, 'stuck run')}: {', '.join(stuck[:5])}; please report this bug")
    return Check("runs", True, "no stuck runs")


async def _is_readable(app: App, run: str) -> bool:
    """Return whether the record of a run can be read. One that cannot is reported as that, not as stuck."""
    row = await app.store.run(run)
    return row is not None and app._run_reader.find_problem(row) is None


async def _check_records(app: App) -> list[Check]:
    """Look for records that cannot be read, among the newest runs and waits and all schedules."""
    runs = {row.id: row for row in await app.store.runs(limit=MAX_RECORDS_CHECKED)}
    for id in await app.store.stuck_runs():
        if (row := await app.store.run(id)) is not None:
            runs[id] = row
    problems = [app._run_reader.find_problem(row) for row in runs.values()]
    problems += [wait.unreadable for wait in await app.waits.list(limit=MAX_RECORDS_CHECKED)]
    problems += [schedule.unreadable for schedule in await app.schedules.list()]
    found = [problem for problem in problems if problem is not None]
    if not found:
        return []
    more = f"; and {len(found) - MAX_RECORDS_SHOWN} more" if len(found) > MAX_RECORDS_SHOWN else ""
    return [Check("records", False, "; ".join(found[:MAX_RECORDS_SHOWN]) + more)]


async def _check_events(app: App) -> Check:
    """Look for events that cannot be read: the newest of the global stream, of each queue and of the newest runs."""
    bodies = app._bodies
    streams = [bodies.global_stream, *(bodies.queue(row.name) for row in await app.store.queues())]
    streams += [bodies.run(row.kind, row.id) for row in await app.store.runs(limit=NEWEST_RUNS)]
    found: list[str] = []
    for stream in streams:
        newest = await app.store.read(stream, limit=NEWEST_EVENTS, backward=True)
        found += [f"{event.id} of {stream}" for event in newest if event.is_unreadable]
    if not found:
        return Check("events", True, "no unreadable events")
    listed = f"{_count(found, 'unreadable event')}: {', '.join(found[:5])}"
    return Check("events", False, f"{listed}; `penstock events STREAM` shows what is stored")


def _check_workers(app: App, live: LiveWorkers) -> Check:
    if drift := live.find_drift():
        return Check("workers", False, f"{'; '.join(drift)}; restart the workers with the older code")
    if unreadable := [worker for worker in live.workers if worker.unreadable is not None]:
        detail = f"{_count(unreadable, 'worker')} of another version: {unreadable[0].unreadable}"
        return Check("workers", True, detail, is_warning=True)
    if not live.workers:
        return Check("workers", True, "no worker is running")
    busy, slots = (sum(getattr(worker, name) for worker in live.workers) for name in ("busy", "slots"))
    detail = f"{_count(live.workers, 'live worker')}, {busy} of {slots} slots busy; `penstock workers` lists them"
    served = {worker.fingerprint for worker in live.workers}
    if app.registry.handlers() and app.registry.fingerprint not in served:
        detail += f"; none of them has loaded these worker files ({app.registry.fingerprint[:12]})"
        return Check("workers", True, detail, is_warning=True)
    return Check("workers", True, detail)


async def _check_queues(app: App, live: LiveWorkers) -> Check:
    known = app.registry.queues()
    works = app._has_dir or bool(known)  # an App without any handlers only adds work
    problems = []
    for row in await app.queues.list():
        waiting = row.counts["waiting"]
        backlog = ", ".join(f"{row.counts[state]} {state}" for state in ("waiting", "delayed") if row.counts[state])
        if row.paused and waiting:
            problems.append(f"queue {row.name} is paused with {waiting} waiting")
        elif not backlog or row.name.endswith("-dlq") or live.serve(row.name):
            continue
        elif works and row.name not in known:
            hint = did_you_mean(row.name, known)
            problems.append(
                f"queue {row.name} has {backlog} but no handler in these worker files{f'; {hint}' if hint else ''}"
                + (f", and {live.advise(row.name)}" if waiting else "")
            )
        elif waiting:
            problems.append(f"queue {row.name} has {backlog}, but {live.advise(row.name)}")
    return Check("queues", not problems, "; ".join(problems) or "no stuck queues")


async def _check_dead_letters(app: App) -> Check:
    counts = ", ".join(f"{count} in {queue}" for queue, count in (await app.dead_letters.queues()).items())
    return Check("dead letters", True, f"{counts}; `penstock dlq list QUEUE` lists them" if counts else "none")


def _file_of(url: str) -> str:
    """Return the path of a SQLite file, or "" for any other store."""
    path = sqlite_path(url) if url.startswith("sqlite:") else ":memory:"
    return path if path != ":memory:" else ""


def _exists(path: str) -> bool:
    return Path(path).exists()


def _count(things: Any, noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"
