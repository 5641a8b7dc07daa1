"""`penstock start FLOW`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from contextlib import redirect_stdout
from typing import Any

from ...app import App
from ...app.dag_files import register_dag_files
from ...app.run_handle import Run
from ..errors import warn
from ..options import COMMON_DEFAULTS, RUN_DEFAULTS, CommonOptions, RunOptions
from ..output import print_json, print_text
from ..parse import read_delay, read_input, read_tags
from ..session import build_worker_app, refuse_memory_store


def start(flow: str, /, *, options: RunOptions = RUN_DEFAULTS, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Start a run for a worker; prints its id.

    Parameters
    ----------
    flow
        The flow's name.
    """
    run = asyncio.run(_start(flow, options, common))
    id = str(run)
    if common.json:
        print_json({"id": id, "existing": run.existing, **({"differs": run.differs} if run.existing else {})})
    else:
        print_text(id)
    if run.existing:
        with_other = " with another input" if run.differs else ""
        warn(f"Run {id} already exists{with_other}; nothing was started. Show it with `penstock runs show {id}`.")
    elif sys.stderr.isatty() and sys.stdout.isatty():
        url = f" --url {shlex.quote(common.url)}" if common.url is not None else ""
        warn(f"Started. Work on it with `penstock worker{common.flags}`, watch it with `penstock tail {id}{url}`.")
    return 0


async def start_run(app: App, flow: str, options: RunOptions, key: str | None = None) -> Run[Any]:
    """Start a run with the options of the command line. `key` is the one that they have, or one made from the input."""
    return await app.runs.start(
        flow,
        read_input(options.input),
        key=key if key is not None else options.key,
        delay=read_delay(options.delay),
        priority=options.priority,
        tags=read_tags(options.tag) or None,
        correlation_id=options.correlation_id,
    )


async def _start(flow: str, options: RunOptions, common: CommonOptions) -> Run[Any]:
    refuse_memory_store(common)
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        async with build_worker_app(common, may_be_remote=True) as app:
            if isinstance(app, App):
                await register_dag_files(app)
            return await start_run(app, flow, options)
