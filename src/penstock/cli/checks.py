"""What `penstock doctor` looks at, one thing after the other; what is wrong with one does not stop the next."""

from __future__ import annotations

import logging
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from .. import __version__
from ..app import App
from ..app.store_urls import looking_url, mask, sqlite_path
from ..core.clock import iso
from ..core.durations import show_ms
from ..core.errors import PenstockError
from ..handlers.discovery import Problem
from ..settings import Settings
from ..telemetry.logging import LOGGER
from .options import Common
from .session import working_app
from .tables import counted

LITTLE_ROOM = 200 * 2**20  # bytes
SKEW = 5_000  # milliseconds


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and what was found."""

    name: str
    ok: bool
    found: str


async def all_checks(common: Common) -> list[Check]:
    """Everything in order, as far as it can be looked at."""
    checks = [Check("versions", True, f"Penstock {__version__}, Python {platform.python_version()}")]
    try:
        settings = Settings.load({"url": common.url, "dir": common.dir})
    except PenstockError as problem:
        return [*checks, _wrong("settings", problem)]
    set_ = len(settings.sources)
    checks.append(Check("settings", True, f"{set_} set, the others are defaults; `penstock settings` shows them"))
    url = looking_url(settings.url)
    app, found = _code(common if url == settings.url else replace(common, url=url))
    checks.append(found)
    if url != settings.url:
        checks.append(_read_only(sqlite_path(url)))
    checks += await _store(app or App(url, handlers=()), bool(app))
    return checks


def _read_only(path: str) -> Check:
    said = f"{path} may only be read here: nothing can be started or worked on; give write access to it and its folder"
    return Check("permissions", False, said)


def _code(common: Common) -> tuple[App | None, Check]:
    try:
        with _said_once():
            app = working_app(common)
    except PenstockError as problem:
        return None, _wrong("worker files", problem)
    registry = app.registry
    if registry.problems:
        said = "; ".join(f"{problem} [{problem.code}]" for problem in registry.problems)
        return app, Check("worker files", False, said)
    return app, Check(
        "worker files",
        True,
        f"{counted(len(registry.flows), 'flow')}, {counted(len(registry.jobs), 'job')}, no problems",
    )


@contextmanager
def _said_once() -> Iterator[None]:
    """What is wrong with worker files is for the check to say: the log would say it a second time."""
    log = logging.getLogger(LOGGER)
    log.addFilter(_is_no_problem)
    try:
        yield
    finally:
        log.removeFilter(_is_no_problem)


def _is_no_problem(record: logging.LogRecord) -> bool:
    return not (isinstance(record.args, tuple) and any(isinstance(value, Problem) for value in record.args))


async def _store(app: App, loaded: bool) -> list[Check]:
    url = app.settings.url
    path = sqlite_path(url) if url.startswith("sqlite:") else ""
    if path and path != ":memory:" and not _there(path):
        return [Check("store", True, f"{mask(url)} is not there yet; the first run makes it"), _disk(path)]
    try:
        async with app:
            described = await app.store.describe()
            doubts = "; ".join(described.pop("doubts", ()))
            facts = ", ".join(f"{key} {value}" for key, value in described.items())
            checks = [
                Check("store", not doubts, f"{facts}: {doubts}" if doubts else facts),
                await _clock(app),
                *([_disk(path)] if path else []),
            ]
            return [*checks, await _loose(app), await _queues(app, loaded), await _letters(app)]
    except PenstockError as problem:
        return [_wrong("store", problem)]


async def _clock(app: App) -> Check:
    newest = await app.store.feed(None)
    now = app.clock.now_ms()
    ahead = int(newest[-1].event.id.partition("-")[0]) - now if newest else 0
    if ahead > SKEW:
        said = f"the newest event is {show_ms(ahead)} ahead of this clock: set the machine's time"
        return Check("clock", False, said)
    return Check("clock", True, f"it is {iso(now)}")


def _there(path: str) -> bool:
    return Path(path).exists()


def _disk(path: str) -> Check:
    folder = next((p for p in Path(path).resolve().parents if p.is_dir()), Path("/"))
    free = shutil.disk_usage(folder).free
    return Check("disk", free > LITTLE_ROOM, f"{free / 2**30:.1f} GB free for {path}")


async def _loose(app: App) -> Check:
    loose = await app.store.stuck_runs()
    if loose:
        return Check("runs", False, f"nobody will go on with {', '.join(loose[:5])}: please report it")
    return Check("runs", True, "every open run has something that will take it further")


async def _queues(app: App, loaded: bool) -> Check:
    known = app.registry.queues()
    said = []
    for row in await app.queues.list():
        waiting = row.counts["waiting"]
        held = ", ".join(f"{row.counts[state]} {state}" for state in ("waiting", "delayed") if row.counts[state])
        if row.paused and waiting:
            said.append(f"queue {row.name} is paused with {waiting} waiting")
        elif loaded and held and row.name not in known and not row.name.endswith("-dlq"):
            said.append(f"queue {row.name} has {held} and no worker file here works on it")
    return Check("queues", not said, "; ".join(said) or "none is stuck")


async def _letters(app: App) -> Check:
    letters = await app.dead_letters.queues()
    said = ", ".join(f"{count} in {queue}" for queue, count in letters.items())
    return Check("dead letters", True, f"{said}; `penstock dlq list QUEUE` shows them" if said else "none")


def _wrong(name: str, problem: PenstockError) -> Check:
    return Check(name, False, f"{problem} [{problem.code}]")
