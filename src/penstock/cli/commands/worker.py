"""`penstock worker`."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Annotated, Any

from cyclopts import Parameter

from ... import __version__
from ...app import App
from ...app.store_urls import mask
from ...core.errors import ConfigError
from ...core.text import pluralize
from ..errors import UsageError, warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text
from ..parse import read_count
from ..processes import WorkerProcesses
from ..service_manager import ServiceReports
from ..session import build_worker_app, open_app, refuse_memory_store, run_event_loop
from ..shutdown_signals import handle_stop_signals, stop_message

PARENT_CHECK_INTERVAL_S = 1.0


UNTIL_IDLE_HELP = "Exit with 0 when nothing is due, and print when more work is due."
CONCURRENCY_HELP = "Maximum number of concurrent handlers; default PENSTOCK_CONCURRENCY, then 10."

MAX_PROCESSES = 1_000
NO_CONSOLE = "not in this installation; in a checkout, run `make console`"


def worker(
    *,
    queues: Annotated[
        list[str] | None, Parameter(negative="", help="Only these queues, comma-separated; may be repeated.")
    ] = None,
    concurrency: Annotated[int | None, Parameter(help=CONCURRENCY_HELP)] = None,
    processes: Annotated[int, Parameter(help="Number of worker processes; one that dies is restarted.")] = 1,
    until_idle: Annotated[bool, Parameter(negative="", help=UNTIL_IDLE_HELP)] = False,
    child_of: Annotated[int | None, Parameter(show=False)] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Work on queues until stopped (Ctrl-C or SIGTERM).

    Running handlers have PENSTOCK_GRACE to finish; jobs that do not are released
    for another worker. A server that is not reachable is retried, for up to a
    minute at startup.
    """
    selected = ",".join(queues) if queues else None
    if read_count(processes, "--processes", MAX_PROCESSES) > 1:
        if until_idle:
            raise UsageError("--until-idle runs one process; use --concurrency instead of --processes")
        return asyncio.run(_work_in_processes(processes, selected, concurrency, common))
    return run_event_loop(_work(selected, concurrency, common, child_of, until_idle))


async def _work(
    queues: str | None, concurrency: int | None, common: CommonOptions, parent: int | None, until_idle: bool
) -> int:
    refuse_memory_store(common)
    app = build_worker_app(common, verbose=True, queues=queues, concurrency=concurrency)
    check_handlers(app)
    async with open_app(app) as is_open:
        if is_open and until_idle:
            return await _work_until_idle(app, concurrency, common)
        if is_open:
            await _work_until_stopped(app, concurrency, common, parent)
    warn("Stopped.")
    return 0


async def _work_until_idle(app: App, concurrency: int | None, common: CommonOptions) -> int:
    with handle_stop_signals(partial(_stop, app)):
        print_summary(summarize(app), common.json)
        report = await app.workers.run_until_idle(concurrency=concurrency)
    if common.json:
        print_json({"idle": report.idle, "next": report.next})
    elif not report.idle:
        warn("Stopped.")
    elif report.next is None:
        print_text("Nothing is due, and nothing is planned.")
    else:
        print_text(f"Nothing is due until {report.next}.")
    return 0


async def _work_until_stopped(app: App, concurrency: int | None, common: CommonOptions, parent: int | None) -> None:
    working = asyncio.create_task(app.workers.run(concurrency=concurrency))
    orphaned = asyncio.create_task(_watch_parent(app, parent))
    stop = app.workers.stop if parent is not None else partial(_stop, app)  # the parent prints the message once
    reports = ServiceReports()
    with handle_stop_signals(stop):
        await asyncio.sleep(0)
        if not working.done() and parent is None:
            print_summary(summarize(app), common.json)
            reports.ready()
        await working
    orphaned.cancel()
    reports.close()


async def _work_in_processes(count: int, queues: str | None, concurrency: int | None, common: CommonOptions) -> int:
    refuse_memory_store(common)
    app = build_worker_app(common, verbose=True, queues=queues, concurrency=concurrency)
    check_handlers(app)
    options = [*(("--queues", queues) if queues else ()), *(("--dir", common.dir) if common.dir else ())]
    options += [*(("--url", common.url) if common.url else ())]
    options += [*(("--concurrency", str(concurrency)) if concurrency is not None else ())]
    options += [*(["--debug"] if common.debug else []), *(["--json"] if common.json else [])]
    children = WorkerProcesses(count, options, json=common.json)
    with handle_stop_signals(lambda: _stop_all(app, children), kill=children.kill):
        print_summary(summarize(app) | {"processes": count}, common.json)
        reports = ServiceReports()
        reports.ready()
        try:
            return await children.run()
        finally:
            reports.close()


def check_handlers(app: App) -> None:
    """Raise if there is nothing to work on."""
    if not app.registry.handlers():
        raise ConfigError(f"nothing to work on; found no flow, step or job in {app.settings.dir!r}")


async def _watch_parent(app: App, parent: int | None) -> None:
    """Stop a child whose parent was killed: no one else would."""
    while parent is not None:
        await asyncio.sleep(PARENT_CHECK_INTERVAL_S)
        if os.getppid() != parent:
            app.workers.stop()
            return


def _stop(app: App) -> None:
    warn(stop_message(app))
    app.workers.stop()


def _stop_all(app: App, children: WorkerProcesses) -> None:
    warn(stop_message(app))
    children.stop()


def summarize(app: App) -> dict[str, Any]:
    """Return what a worker prints about itself at startup."""
    registry, settings = app.registry, app.settings
    return {
        "version": __version__,
        "store": mask(settings.url),
        "dir": settings.dir,
        "queues": list(settings.queues) or registry.queues(),
        "concurrency": settings.concurrency,
        "flows": {name: list(flow.steps) for name, flow in registry.flows.items()},
        "nodes": sorted(registry.nodes),
        "jobs": sorted({job.handler.queue_name for job in registry.jobs.values()}),
        "problems": [{"code": p.code, "message": str(p)} for p in registry.problems],
    }


def print_summary(summary: dict[str, Any], json: bool, command: str = "worker") -> None:
    if json:
        print_json(summary)
        return
    flows = ", ".join(f"{name} ({pluralize(len(steps), 'step')})" for name, steps in summary["flows"].items())
    problems = len(summary["problems"])
    each = ", in each process" if "processes" in summary else ""
    lines = [
        f"Penstock {summary['version']} {command}",
        f"  store     {summary['store']}",
        f"  queues    {', '.join(summary['queues']) or 'none'}, {summary['concurrency']} handlers at a time{each}",
        f"  flows     {flows or 'none'}",
        *([f"  nodes     {', '.join(summary['nodes'])}"] if summary["nodes"] else []),
        *([f"  jobs      {', '.join(summary['jobs'])}"] if summary["jobs"] else []),
        *([f"  processes {summary['processes']}"] if "processes" in summary else []),
        *([f"  watching  {summary['watching']}"] if "watching" in summary else []),
        *([f"  console   {summary['console'] or NO_CONSOLE}"] if "console" in summary else []),
        *([f"  API       {summary['api']}/api/openapi.json"] if "api" in summary else []),
        f"  problems  {f'{problems}, see the warnings above' if problems else 'none'}",
        "Working. Stop with Ctrl-C.",
    ]
    print_text(*lines)
