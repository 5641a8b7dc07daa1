"""`penstock import FILE` and `penstock import pgboss`."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, BinaryIO

from cyclopts import App as Commands
from cyclopts import Parameter

from ...app import App
from ...app.export_file import open_export
from ...app.run_import import import_file
from ...core.text import pluralize
from ...settings import Settings
from ..errors import UsageError
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import show_progress
from ..parse import check_positional
from ..session import build_store_app, check_dir, configure_logging, is_server_url, refuse_memory_store
from ..tables import print_result
from .import_pgboss import pgboss

import_ = Commands(name="import", help="Import runs written by 'export', or the backlog of pg-boss.")
import_.command(pgboss)


@import_.default
def import_export(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)], /, *, common: CommonOptions = COMMON_DEFAULTS
) -> int:
    """Import runs written by 'export' into a store, which is created if it does not exist.

    If the store already has one of the runs, nothing is imported.

    Parameters
    ----------
    file
        The file; - reads standard input.
    """
    if is_server_url(common):
        with _open(check_positional(file)) as opened:
            count = asyncio.run(_send(common, opened.read()))
        print_result(f"Imported {pluralize(count, 'run')}.", {"runs": count}, json=common.json)
        return 0
    refuse_memory_store(common)
    if common.dir is not None:
        check_dir(common.dir)
    configure_logging(Settings.load({"url": common.url}), verbose=False)
    with _open(check_positional(file)) as opened:
        count = asyncio.run(_import(common, opened))
    print_result(f"Imported {pluralize(count, 'run')}.", {"runs": count}, json=common.json)
    return 0


async def _send(common: CommonOptions, lines: bytes) -> int:
    """Import through a server; it accepts 10 MB in one request."""
    async with build_store_app(common) as app:
        return len(await app.runs.import_(lines))


async def _import(common: CommonOptions, file: BinaryIO) -> int:
    with open_export(file) as saved:
        total = sum(1 for _ in saved.check())  # finds a bad line before the store is opened
        async with App(common.url, handlers=()) as app:
            with show_progress("Importing", total) as advance:
                return len(await import_file(app, saved, lambda _: advance()))


def _open(file: str) -> AbstractContextManager[BinaryIO]:
    if file == "-":
        if sys.stdin is None:
            raise UsageError("standard input is closed; pass the path of a FILE")
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(file).open("rb")
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise UsageError(f"cannot read {file}: {reason}") from None
