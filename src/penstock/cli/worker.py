"""`penstock worker`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from cyclopts import Parameter

from .. import __version__
from ..app import App
from ..app.backend import mask
from ..core.errors import ConfigError
from .mistakes import warn
from .options import USUAL_PLACE, Common
from .report import print_json
from .session import working_app
from .stopping import on_stop, stopping


def worker(
    *,
    queues: Annotated[list[str] | None, Parameter(negative="", help="Only these queues: a,b, or repeated.")] = None,
    concurrency: Annotated[int | None, Parameter(help="Handlers at once; else PENSTOCK_CONCURRENCY, else 10.")] = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Work on queues until stopped (Ctrl-C or SIGTERM).

    Running handlers are given time to finish (PENSTOCK_GRACE); what does not is given back for another worker.
    """
    return asyncio.run(_work(",".join(queues) if queues else None, concurrency, common))


async def _work(queues: str | None, concurrency: int | None, common: Common) -> int:
    async with working_app(common, chatty=True, queues=queues, concurrency=concurrency) as app:
        if not app.registry.handlers():
            raise ConfigError(f"there is nothing to work on: no flow, step or job was found in {app.settings.dir!r}")
        working = asyncio.create_task(app.run_worker(concurrency=concurrency))
        with on_stop(lambda: _stop(app)):
            await asyncio.sleep(0)
            if not working.done():
                _introduce(_about(app), common.json)
            await working
    warn("Stopped.")
    return 0


def _stop(app: App) -> None:
    warn(stopping(app))
    app.stop_worker()


def _about(app: App) -> dict[str, Any]:
    registry, settings = app.registry, app.settings
    return {
        "version": __version__,
        "store": mask(settings.url),
        "dir": settings.dir,
        "queues": list(settings.queues) or registry.queues(),
        "concurrency": settings.concurrency,
        "flows": {name: list(flow.steps) for name, flow in registry.flows.items()},
        "jobs": sorted({job.handler.home for job in registry.jobs.values()}),
        "problems": [{"code": p.code, "message": str(p)} for p in registry.problems],
    }


def _introduce(about: dict[str, Any], json: bool) -> None:
    if json:
        print_json(about)
        return
    flows = ", ".join(f"{name} ({len(steps)} step{'s' * (len(steps) != 1)})" for name, steps in about["flows"].items())
    problems = len(about["problems"])
    lines = [
        f"Penstock {about['version']} worker",
        f"  store     {about['store']}",
        f"  queues    {', '.join(about['queues'])}, {about['concurrency']} handlers at once",
        f"  flows     {flows or 'none'}",
        *([f"  jobs      {', '.join(about['jobs'])}"] if about["jobs"] else []),
        f"  problems  {f'{problems}, see the warnings above' if problems else 'none'}",
        "Working. Ctrl-C stops it.",
    ]
    print("\n".join(lines), flush=True)
