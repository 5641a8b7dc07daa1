"""`penstock dev`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..app import App
from ..core.errors import PenstockError
from ..handlers.registry import Registry
from .errors import Manner, say_error, warn
from .file_watch import changes
from .options import USUAL_PLACE, Common
from .output import print_json
from .session import begun, check_kept, working_app
from .shutdown_signals import on_stop, stopping
from .worker import about, introduce


def dev(
    *,
    concurrency: Annotated[int | None, Parameter(help="Handlers at once; else PENSTOCK_CONCURRENCY, else 10.")] = None,
    common: Common = USUAL_PLACE,
) -> int:
    """Work, and load the worker files anew whenever one changes, or a file beside their folder that they import.

    What is running goes on with the code it began with. An error in a file is shown, and its old version goes on.
    """
    return asyncio.run(_dev(concurrency, common))


async def _dev(concurrency: int | None, common: Common) -> int:
    check_kept(common)
    app = working_app(common, chatty=True, concurrency=concurrency)
    async with begun(app) as ready:
        if ready:
            await _work_and_watch(app, concurrency, common)
    warn("Stopped.")
    return 0


async def _work_and_watch(app: App, concurrency: int | None, common: Common) -> None:
    folder = _folder(app)
    found = changes(folder)  # from here on, before anyone is told that it watches
    working = asyncio.create_task(app.workers.run(concurrency=concurrency))
    watching = asyncio.create_task(_watch(app, folder, found, Manner(common.json, common.debug)))
    with on_stop(lambda: _stop(app)):
        await asyncio.sleep(0)
        if not working.done():
            introduce(about(app) | {"watching": app.settings.dir}, common.json, "dev")
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
    warn(stopping(app))
    app.workers.stop()


async def _watch(app: App, folder: Path, changed: AsyncIterator[list[str]], manner: Manner) -> None:
    async with aclosing(changed) as found:  # type: ignore[type-var]
        async for files in found:
            names = [_shown(file, folder) for file in files]
            before = app.registry
            try:
                app.reload()
            except PenstockError as problem:
                say_error(manner, f"{problem}; the old version goes on", problem.code)
                continue
            _tell(names, before, app.registry, manner.json)


def _shown(file: str, folder: Path) -> str:
    return os.path.relpath(file, folder)


def _tell(names: list[str], before: Registry, now: Registry, json: bool) -> None:
    told = reloaded(names, before, now)
    if json:
        print_json(told)
        return
    parts = [
        *(f"flow {name} is new" for name in told["flowsAdded"]),
        *(f"flow {name} is gone" for name in told["flowsRemoved"]),
        *(f"queue {name} is new" for name in told["queuesAdded"]),
        *(f"queue {name} is gone" for name in told["queuesRemoved"]),
    ]
    kept = told["kept"]
    if kept:
        parts.append(f"the old version of {', '.join(kept)} goes on")
    print(f"Reloaded: {', '.join(names)} changed{''.join(f'; {part}' for part in parts)}.", flush=True)


def reloaded(names: list[str], before: Registry, now: Registry) -> dict[str, Any]:
    """What a reload has changed."""
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
