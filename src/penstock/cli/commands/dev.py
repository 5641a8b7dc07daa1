"""`penstock dev`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ...app import App
from ...core.errors import PenstockError
from ...handlers.registry import Registry
from ..errors import ErrorFormat, print_error, warn
from ..file_watch import watch_files
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import print_json, print_text
from ..session import build_worker_app, open_app, refuse_memory_store
from ..shutdown_signals import handle_stop_signals, stop_message
from .worker import CONCURRENCY_HELP, print_summary, summarize


def dev(
    *,
    concurrency: Annotated[int | None, Parameter(help=CONCURRENCY_HELP)] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Run a worker that reloads the worker files when one changes, or a module next to their folder that they import.

    Running handlers finish with the code they started with. A file with an error
    keeps its old version.
    """
    return asyncio.run(_dev(concurrency, common))


async def _dev(concurrency: int | None, common: CommonOptions) -> int:
    refuse_memory_store(common)
    app = build_worker_app(common, verbose=True, concurrency=concurrency)
    async with open_app(app) as is_open:
        if is_open:
            await _work_and_watch(app, concurrency, common)
    warn("Stopped.")
    return 0


async def _work_and_watch(app: App, concurrency: int | None, common: CommonOptions) -> None:
    folder = _folder(app)
    changes = watch_files(folder)  # before the summary announces that it watches
    working = asyncio.create_task(app.workers.run(concurrency=concurrency))
    watching = asyncio.create_task(_watch(app, folder, changes, ErrorFormat(common.json, common.debug)))
    with handle_stop_signals(lambda: _stop(app)):
        await asyncio.sleep(0)
        if not working.done():
            print_summary(summarize(app) | {"watching": app.settings.dir}, common.json, "dev")
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        await asyncio.wait((watching,))
        app.workers.stop()
        await working
    if not watching.cancelled():
        watching.result()


def _folder(app: App) -> Path:
    return Path(app.settings.dir).resolve()


def _stop(app: App) -> None:
    warn(stop_message(app))
    app.workers.stop()


async def _watch(app: App, folder: Path, changes: AsyncIterator[list[str]], format: ErrorFormat) -> None:
    async with aclosing(changes) as batches:  # type: ignore[type-var]
        async for files in batches:
            names = [_relative(file, folder) for file in files]
            before = app.registry
            try:
                app.reload()
            except PenstockError as problem:
                print_error(format, f"{problem}; the old version stays in use", problem.code)
                continue
            _print_reload(diff_registries(names, before, app.registry), format.json)


def _relative(file: str, folder: Path) -> str:
    return os.path.relpath(file, folder)


def _print_reload(changes: dict[str, Any], json: bool) -> None:
    if json:
        print_json(changes)
        return
    parts = [
        *(f"added flow {name}" for name in changes["flowsAdded"]),
        *(f"removed flow {name}" for name in changes["flowsRemoved"]),
        *(f"added queue {name}" for name in changes["queuesAdded"]),
        *(f"removed queue {name}" for name in changes["queuesRemoved"]),
    ]
    if changes["kept"]:
        parts.append(f"kept the old version of {', '.join(changes['kept'])}")
    print_text(f"Reloaded {', '.join(changes['reloaded'])}{''.join(f'; {part}' for part in parts)}.")


def diff_registries(names: list[str], before: Registry, now: Registry) -> dict[str, Any]:
    """Return what a reload changed."""
    broken = {problem.file for problem in now.problems}
    return {
        "reloaded": names,
        "flowsAdded": _missing(now.flows, before.flows),
        "flowsRemoved": _missing(before.flows, now.flows),
        "queuesAdded": _missing(now.queues(), before.queues()),
        "queuesRemoved": _missing(before.queues(), now.queues()),
        "kept": sorted({Path(item.file).name for item in before.found if item in now.found and item.file in broken}),
        "problems": [{"code": problem.code, "message": str(problem)} for problem in now.problems],
    }


def _missing(names: Iterable[str], other: Iterable[str]) -> list[str]:
    return sorted({*names} - {*other})
