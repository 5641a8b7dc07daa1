"""`penstock import FILE`, `penstock import pgboss`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

from cyclopts import App as Commands

from ..app import App
from ..app.export import BadExport, Importer, PlayedClock, SavedRun, read_line
from ..settings import Settings
from .errors import UsageMistake
from .import_pgboss import pgboss
from .logs import log_as
from .options import USUAL_PLACE, Common
from .progress import progress
from .session import check_dir, check_kept
from .tables import done

import_ = Commands(name="import", help="Read runs that 'export' has written, or what waits in a pg-boss, into a store.")
import_.command(pgboss)


@import_.default
def import_file(file: str, /, *, common: Common = USUAL_PLACE) -> int:
    """Read runs that 'export' has written into a store, one that is not there yet included.

    If one of them is in the store already, nothing is imported.

    Parameters
    ----------
    file
        The file; - reads standard input.
    """
    check_kept(common)
    data = _read(file)
    if common.dir is not None:
        check_dir(common.dir)
    log_as(Settings.load({"url": common.url}), chatty=False)
    count = asyncio.run(_import(common, data))
    done(f"Imported {count} run{'s' * (count != 1)}.", {"runs": count}, json=common.json)
    return 0


async def _import(common: Common, data: bytes) -> int:
    clock = PlayedClock()
    total = len(list(_saved(data)))  # read once before anything is written: a bad line is found first
    async with App(common.url, handlers=(), clock=clock) as app:
        importer = Importer(app, clock)
        for saved in _saved(data):
            await importer.check(saved)
        with progress("Importing", total) as advance:
            for saved in _saved(data):
                await importer.add(saved)
                advance()
    return total


def _saved(data: bytes) -> Iterator[SavedRun]:
    seen: set[str] = set()
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        saved = read_line(line, number)
        if saved.run in seen:
            raise BadExport(f"line {number}: run {saved.run!r} is in the file twice")
        seen.add(saved.run)
        yield saved


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as problem:
        raise UsageMistake(f"cannot read {file}: {problem.strerror}") from None
