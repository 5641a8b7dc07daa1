"""`penstock import pgboss`."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from ..app import App
from ..app.store_urls import POSTGRES, mask
from ..core.errors import ConfigError
from ..settings import Settings
from .errors import UsageMistake, warn
from .logs import log_as
from .options import USUAL_PLACE, Common
from .output import print_json
from .session import check_dir, check_kept
from .tables import counted

SOME_LEFT = 1


def pgboss(
    *,
    source: Annotated[str, Parameter(name="--from", help="The URL of pg-boss' database, postgresql://….")],
    schema: Annotated[str, Parameter(help="The schema its tables are in.")] = "pgboss",
    queue: Annotated[list[str] | None, Parameter(negative="", help="Only this queue; may be repeated.")] = None,
    rename: Annotated[
        list[str] | None, Parameter(negative="", help="Another name for a queue, old=new; may be repeated.")
    ] = None,
    dry_run: Annotated[bool, Parameter(negative="", show_default=False, help="Only say what would be moved.")] = False,
    common: Common = USUAL_PLACE,
) -> int:
    """Move the jobs that wait in a pg-boss, and its cron schedules, into a store, one that is not there yet included.

    Jobs keep their ids, their data, when they are due and the tries they have left. Each is moved once; a command that
    was cut off is begun again. What cannot be moved stays there and is listed, and the command then ends with 1.
    """
    if not source.startswith(tuple(f"{scheme}://" for scheme in POSTGRES)):
        raise UsageMistake(
            f"--from {mask(source)}: give the URL of a Postgres database, postgresql://user@host/database"
        )
    check_kept(common)
    if common.dir is not None:
        check_dir(common.dir)
    log_as(Settings.load({"url": common.url}), chatty=False)
    moved = asyncio.run(_import(common, source, schema, queue, _names(rename), dry_run))
    if common.json:
        print_json({"dryRun": dry_run, **moved})
    else:
        _tell(moved, dry_run)
    return SOME_LEFT if moved["left"] else 0


async def _import(
    common: Common, source: str, schema: str, queues: list[str] | None, rename: dict[str, str], dry_run: bool
) -> dict[str, Any]:
    try:
        from ..app.pgboss_import import PgBossImport
    except ModuleNotFoundError as problem:
        raise ConfigError(f"pg-boss needs the package {problem.name}: pip install 'penstock[postgres]'") from None
    # Looking creates nothing: what would be added is only put together.
    async with App(":memory:" if dry_run else common.url, handlers=()) as app:
        importing = PgBossImport(app, source, schema=schema, queues=queues, rename=rename)
        moved = await (importing.look() if dry_run else importing.move(_show if sys.stderr.isatty() else _hush))
    left = [{"queue": one.queue, "id": one.id, "why": one.why} for one in moved.left]
    return {"jobs": moved.jobs, "delayed": moved.delayed, "schedules": moved.schedules, "left": left}


def _names(rename: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in rename or ():
        old, equals, new = pair.partition("=")
        if not old or not equals or not new:
            raise UsageMistake(f"--rename {pair}: write the old name and the new one, such as --rename e/mail=mail")
        found[old] = new
    return found


def _tell(moved: dict[str, Any], dry_run: bool) -> None:
    done = "Would move" if dry_run else "Moved"
    jobs, schedules = counted(sum(moved["jobs"].values()), "job"), counted(len(moved["schedules"]), "schedule")
    print(f"{done} {jobs} ({moved['delayed']} delayed) and {schedules}.")
    for queue, many in sorted(moved["jobs"].items()):
        print(f"  {queue}: {counted(many, 'job')}")
    for id in moved["schedules"]:
        print(f"  schedule {id}")
    for one in moved["left"]:
        warn(f"left in {one['queue']}: {one['id'] or 'its schedule'}: {one['why']}")


def _show(many: int) -> None:
    warn(f"{counted(many, 'job')} moved …")


def _hush(many: int) -> None:
    """Nobody looks."""
