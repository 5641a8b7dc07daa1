"""`penstock import FILE` and `penstock import pgboss`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App as Commands
from cyclopts import Parameter

from ...app import App
from ...app.export import read_runs
from ...settings import Settings
from ..errors import UsageError
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import show_progress
from ..parse import check_positional
from ..session import check_dir, configure_logging, refuse_memory_store
from ..tables import pluralize, print_result
from .import_pgboss import pgboss

import_ = Commands(name="import", help="Import runs written by 'export', or the backlog of pg-boss.")
import_.command(pgboss)


@import_.default
def import_file(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)], /, *, common: CommonOptions = COMMON_DEFAULTS
) -> int:
    """Import runs written by 'export' into a store, which is created if it does not exist.

    If the store already has one of the runs, nothing is imported.

    Parameters
    ----------
    file
        The file; - reads standard input.
    """
    refuse_memory_store(common)
    data = _read(check_positional(file))
    if common.dir is not None:
        check_dir(common.dir)
    configure_logging(Settings.load({"url": common.url}), verbose=False)
    count = asyncio.run(_import(common, data))
    print_result(f"Imported {pluralize(count, 'run')}.", {"runs": count}, json=common.json)
    return 0


async def _import(common: CommonOptions, data: bytes) -> int:
    total = sum(1 for _ in read_runs(data))  # finds a bad line before the store is opened
    async with App(common.url, handlers=()) as app:
        with show_progress("Importing", total) as advance:
            return len(await app.runs.import_(data, on_run=lambda _: advance()))


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as problem:
        raise UsageError(f"cannot read {file}: {problem.strerror}") from None
