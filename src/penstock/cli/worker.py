"""`penstock worker`."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated, Any

from cyclopts import Parameter

from .. import __version__
from ..app import App
from ..app.store_urls import mask
from ..core.errors import ConfigError
from . import event_loop as looping
from .errors import UsageMistake, warn
from .options import USUAL_PLACE, Common
from .output import print_json
from .processes import Processes
from .session import begun, check_kept, working_app
from .shutdown_signals import on_stop, stopping

PARENT_LOOK = 1.0  # seconds between two looks whether the parent of a child process lives


def worker(
    *,
    queues: Annotated[list[str] | None, Parameter(negative="", help="Only these queues: a,b, or repeated.")] = None,
    concurrency: Annotated[int | None, Parameter(help="Handlers at once; else PENSTOCK_CONCURRENCY, else 10.")] = None,
    processes: Annotated[int, Parameter(help="So many processes, each with a worker; one that dies is replaced.")] = 1,
    child_of: Annotated[int | None, Parameter(show=False)] = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Work on queues until stopped (Ctrl-C or SIGTERM).

    Running handlers are given time to finish (PENSTOCK_GRACE); what does not is given back for another worker. A server
    that cannot be reached is waited for, at the start for a minute at most.
    """
    if processes < 1:
        raise UsageMistake(f"--processes {processes}: give a whole number of at least 1")
    wanted = ",".join(queues) if queues else None
    if processes > 1:
        return asyncio.run(_work_together(processes, wanted, concurrency, common))
    return looping.run(_work(wanted, concurrency, common, child_of))


async def _work(queues: str | None, concurrency: int | None, common: Common, parent: int | None) -> int:
    check_kept(common)
    app = working_app(common, chatty=True, queues=queues, concurrency=concurrency)
    check_work(app)
    async with begun(app) as ready:
        if ready:
            await _work_until_stopped(app, concurrency, common, parent)
    warn("Stopped.")
    return 0


async def _work_until_stopped(app: App, concurrency: int | None, common: Common, parent: int | None) -> None:
    working = asyncio.create_task(app.run_worker(concurrency=concurrency))
    orphaned = asyncio.create_task(_watch_parent(app, parent))
    with on_stop(lambda: _stop(app)):
        await asyncio.sleep(0)
        if not working.done() and parent is None:
            introduce(about(app), common.json)
        await working
    orphaned.cancel()


async def _work_together(count: int, queues: str | None, concurrency: int | None, common: Common) -> int:
    check_kept(common)
    app = working_app(common, chatty=True, queues=queues, concurrency=concurrency)
    check_work(app)
    introduce(about(app) | {"processes": count}, common.json)
    options = [*(("--queues", queues) if queues else ()), *(("--dir", common.dir) if common.dir else ())]
    options += [*(("--url", common.url) if common.url else ())]
    options += [*(("--concurrency", str(concurrency)) if concurrency is not None else ())]
    options += [*(["--debug"] if common.debug else []), *(["--json"] if common.json else [])]
    together = Processes(count, options, json=common.json)
    with on_stop(lambda: _stop_all(app, together), kill=together.kill):
        return await together.run()


def check_work(app: App) -> None:
    """A worker without work is a mistake."""
    if not app.registry.handlers():
        raise ConfigError(f"there is nothing to work on: no flow, step or job was found in {app.settings.dir!r}")


async def _watch_parent(app: App, parent: int | None) -> None:
    """A child whose parent was killed stops by itself: nobody else would stop it."""
    while parent is not None:
        await asyncio.sleep(PARENT_LOOK)
        if os.getppid() != parent:  # and nobody reads what is said here any more
            app.stop_worker()
            return


def _stop(app: App) -> None:
    warn(stopping(app))
    app.stop_worker()


def _stop_all(app: App, together: Processes) -> None:
    warn(stopping(app))
    together.stop()


def about(app: App) -> dict[str, Any]:
    """What a worker says of itself before it begins."""
    registry, settings = app.registry, app.settings
    return {
        "version": __version__,
        "store": mask(settings.url),
        "dir": settings.dir,
        "queues": list(settings.queues) or registry.queues(),
        "concurrency": settings.concurrency,
        "flows": {name: list(flow.steps) for name, flow in registry.flows.items()},
        "jobs": sorted({job.handler.queue_name for job in registry.jobs.values()}),
        "problems": [{"code": p.code, "message": str(p)} for p in registry.problems],
    }


def introduce(about: dict[str, Any], json: bool, what: str = "worker") -> None:
    """The summary on stdout."""
    if json:
        print_json(about)
        return
    flows = ", ".join(f"{name} ({len(steps)} step{'s' * (len(steps) != 1)})" for name, steps in about["flows"].items())
    problems = len(about["problems"])
    each = ", in each process" if "processes" in about else ""
    lines = [
        f"Penstock {about['version']} {what}",
        f"  store     {about['store']}",
        f"  queues    {', '.join(about['queues']) or 'none'}, {about['concurrency']} handlers at once{each}",
        f"  flows     {flows or 'none'}",
        *([f"  jobs      {', '.join(about['jobs'])}"] if about["jobs"] else []),
        *([f"  processes {about['processes']}"] if "processes" in about else []),
        *([f"  watching  {about['watching']}"] if "watching" in about else []),
        f"  problems  {f'{problems}, see the warnings above' if problems else 'none'}",
        "Working. Ctrl-C stops it.",
    ]
    print("\n".join(lines), flush=True)
