"""`penstock run FLOW`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ...app import App
from ...app.dag_files import register_dag_files
from ...core.ids import check_id
from ...worker import recording
from ..errors import EXIT_INTERRUPTED, warn
from ..live import resume_hint, work_and_watch
from ..options import COMMON_DEFAULTS, RUN_DEFAULTS, CommonOptions, RunOptions
from ..output import exit_code, has_unicode_output, print_json, print_text, run_to_dict
from ..parse import read_input
from ..run_view import failure_lines, render_text
from ..session import build_worker_app
from .start import start_run

if TYPE_CHECKING:
    from rich.console import Console


def run(
    flow: str,
    /,
    *,
    all: Annotated[
        bool, Parameter(negative="", show_default=False, help="Work on other runs and jobs too, as a worker does.")
    ] = False,
    options: RunOptions = RUN_DEFAULTS,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Start a run and work on it here, with live progress, until it ends.

    Works on this run only, and on the jobs and runs that its handlers start.
    With the --key of a run that has not ended, continue that run. Ctrl-C leaves
    the run in the store.

    Parameters
    ----------
    flow
        The flow's name.
    """
    return asyncio.run(_run(flow, options, common, all))


async def _run(flow: str, options: RunOptions, common: CommonOptions, all_work: bool) -> int:
    is_drawn = sys.stdout.isatty() and not common.json  # live on stdout, where the last drawing is the answer
    console = _open_terminal(is_drawn)
    # What handlers print must stay out of an answer that a program reads.
    with nullcontext() if is_drawn else redirect_stdout(sys.stderr):
        async with build_worker_app(common) as app:
            await register_dag_files(app)
            id = await _find_or_start(app, flow, options)
            is_shown = not common.json and app.settings.log_format == "pretty"
            with _hide_logged_failure(id) if is_shown else nullcontext():
                view = await work_and_watch(
                    app,
                    flow,
                    id,
                    console,
                    all_work=all_work,
                    keep=is_drawn,
                    flags=common.flags,
                    has_wait_lines=not common.json,
                )
            now = app.clock.now_ms()
    if view.completed_at is None:
        warn(resume_hint(flow, id, common.flags))
        return EXIT_INTERRUPTED
    if common.json:
        print_json(run_to_dict(view))
    elif not is_drawn:
        print_text(render_text(view, now, has_unicode_output()))
    if not common.json:
        for line in failure_lines(view):
            warn(line)
    return exit_code(view)


def _open_terminal(is_drawn: bool) -> Console | None:
    """Return the terminal to draw on: stdout, else stderr, else none."""
    if not is_drawn and not sys.stderr.isatty():
        return None
    from rich.console import Console

    return Console(stderr=not is_drawn)


@contextmanager
def _hide_logged_failure(run: str) -> Iterator[None]:
    """Keep the traceback of this run's failure out of the log: the command ends with it."""

    def is_other(record: logging.LogRecord) -> bool:
        return record.levelno != logging.ERROR or getattr(record, "run", None) != run

    recording.log.addFilter(is_other)
    try:
        yield
    finally:
        recording.log.removeFilter(is_other)


async def _find_or_start(app: App, flow: str, options: RunOptions) -> str:
    """Return the run of the key, which keeps its own input; start a new one if there is none."""
    key = options.key
    row = await app.store.run(check_id(key, "idempotency key")) if key is not None else None
    id = row.id if row is not None else ""
    # With an input, `start` warns if the run had another one. It refuses a run of another flow.
    if row is None or options.input is not None or row.flow != flow:
        run = await start_run(app, flow, options, await _evaluate_key(app, flow, options))
        id = str(run)
        if not run.existing:
            return id
        row = await app.store.run(id)
    is_closed = row is not None and row.closed
    warn(f"Run {id} {'has already ended' if is_closed else 'already exists; continuing it'}.")
    return id


async def _evaluate_key(app: App, flow: str, options: RunOptions) -> str | None:
    """Return the key of the run. This process is a worker: it can call a function of another language."""
    known = app.registry.flows.get(flow)
    if options.key is not None or known is None or known.definition.entry.handler.key_script is None:
        return options.key
    return await known.definition.entry.handler.evaluate_key(read_input(options.input), flow)
