"""`penstock import pgboss`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from ...app import App
from ...app.store_urls import POSTGRES_SCHEMES, mask
from ...core.errors import ConfigError
from ...core.text import pluralize
from ...settings import Settings
from ..errors import EXIT_FAILED, UsageError, warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text
from ..session import check_dir, configure_logging, refuse_memory_store


def pgboss(
    *,
    source: Annotated[str, Parameter(name="--from", help="URL of the pg-boss database: postgresql://….")],
    schema: Annotated[str, Parameter(help="Schema of its tables.")] = "pgboss",
    queue: Annotated[list[str] | None, Parameter(negative="", help="Only this queue; may be repeated.")] = None,
    rename: Annotated[
        list[str] | None, Parameter(negative="", help="Rename a queue, old=new; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False, help="Print what would be moved.")] = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Move the waiting jobs and cron schedules of pg-boss into a store, which is created if it does not exist.

    Jobs keep their id, input, due time and remaining attempts. Each is moved
    once; an interrupted import can be run again. What cannot be moved stays in
    pg-boss and is listed, and the command exits with 1.
    """
    if not source.startswith(tuple(f"{scheme}://" for scheme in POSTGRES_SCHEMES)):
        raise UsageError(
            f"--from must be the URL of a Postgres database such as postgresql://user@host/database, got {mask(source)}"
        )
    refuse_memory_store(common)
    if common.dir is not None:
        check_dir(common.dir)
    configure_logging(Settings.load({"url": common.url}), verbose=False)
    moved = asyncio.run(_import(common, source, schema, queue, _read_renames(rename), dry_run))
    if common.json:
        print_json({"dryRun": dry_run, **moved})
    else:
        _print(moved, dry_run)
    return EXIT_FAILED if moved["left"] else 0


async def _import(
    common: CommonOptions, source: str, schema: str, queues: list[str] | None, rename: dict[str, str], dry_run: bool
) -> dict[str, Any]:
    try:
        from ...app.pgboss_import import PgBossImport
    except ModuleNotFoundError as problem:
        raise ConfigError(
            f"copying jobs from pg-boss requires the package {problem.name}; run `pip install 'penstock[postgres]'`"
        ) from None
    # A dry run creates nothing.
    async with App(":memory:" if dry_run else common.url, handlers=()) as app:
        importing = PgBossImport(app, source, schema=schema, queues=queues, rename=rename)
        moved = await (
            importing.preview() if dry_run else importing.move(_print_progress if sys.stderr.isatty() else _ignore)
        )
    left = [{"queue": one.queue, "id": one.id, "why": one.reason} for one in moved.skipped]
    return {"jobs": moved.jobs, "delayed": moved.delayed, "schedules": moved.schedules, "left": left}


def _read_renames(rename: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in rename or ():
        old, equals, new = pair.partition("=")
        if not old or not equals or not new:
            raise UsageError(f"--rename must be old=new, such as --rename e/mail=mail, got {pair}")
        found[old] = new
    return found


def _print(moved: dict[str, Any], dry_run: bool) -> None:
    verb = "Would move" if dry_run else "Moved"
    jobs, schedules = pluralize(sum(moved["jobs"].values()), "job"), pluralize(len(moved["schedules"]), "schedule")
    print_text(f"{verb} {jobs} ({moved['delayed']} delayed) and {schedules}.")
    for queue, count in sorted(moved["jobs"].items()):
        print_text(f"  {queue}: {pluralize(count, 'job')}")
    for id in moved["schedules"]:
        print_text(f"  schedule {id}")
    for one in moved["left"]:
        warn(f"not moved from {one['queue']}: {one['id'] or 'its schedule'}: {one['why']}")


def _print_progress(count: int) -> None:
    warn(f"Moved {pluralize(count, 'job')} …")


def _ignore(count: int) -> None:
    pass
