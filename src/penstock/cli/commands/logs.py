"""`penstock logs RUN` and `penstock logs --job ID`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

import msgspec
from cyclopts import Parameter

from ...app import App
from ...app.log_lines import LogView, build_filter, read_line
from ...core.text import escape_json, escape_line
from ..errors import EXIT_INTERRUPTED, UsageError, warn
from ..live import follow_until_end
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import has_unicode_output, print_text
from ..parse import read_limit
from ..run_view import one_line
from ..session import build_store_app
from ..shutdown_signals import handle_stop_signals

PAGE_LINES = 500


def logs(
    run: str | None = None,
    /,
    *,
    job: Annotated[str | None, Parameter(help="Lines of this job instead of a run.")] = None,
    step: Annotated[str | None, Parameter(help="Only lines of this step.")] = None,
    attempt: Annotated[int | None, Parameter(help="Only lines of this attempt.")] = None,
    level: Annotated[
        str | None, Parameter(help="Only lines of this level and above: debug, info, warning, error.")
    ] = None,
    after: Annotated[str | None, Parameter(help="Only lines after the line with this id.")] = None,
    limit: Annotated[int | None, Parameter(help="Maximum number of lines, oldest first.")] = None,
    follow: Annotated[
        bool, Parameter(negative="", show_default=False, help="Keep printing new lines until the run ends.")
    ] = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Print the log lines of a run or a job, oldest first.

    With --json, each line is one object with its fields.

    Parameters
    ----------
    run
        The run's id, or the id of a plain job.
    """
    if (run is None) == (job is None):
        raise UsageError("pass either the id of a run or --job ID, such as `penstock logs --job mail-7`")
    if job is not None and (follow or step is not None):
        raise UsageError("--job cannot be combined with --follow or --step; use the id of the run for its steps")
    if limit is not None:
        read_limit(limit)
    build_filter(step, attempt, level)
    return asyncio.run(_logs(run, job, step, attempt, level, after, limit, follow, common))


async def _logs(
    run: str | None,
    job: str | None,
    step: str | None,
    attempt: int | None,
    level: str | None,
    after: str | None,
    limit: int | None,
    follow: bool,
    common: CommonOptions,
) -> int:
    async with build_store_app(common) as app:
        if run is not None and step is None and not follow and await _is_job(app, run):
            run, job = None, run
        if follow:
            lines = _follow(app, run or "", step, attempt, level, after)
        else:
            lines = _read(app, run, job, step, attempt, level, after)
        printing = asyncio.create_task(_print(lines, limit, common.json))
        with handle_stop_signals(lambda: printing.cancel()):
            await asyncio.wait((printing,))
        if printing.cancelled():
            return EXIT_INTERRUPTED
        if not printing.result() and after is None:
            such = " that match" if step is not None or attempt is not None or level is not None else ""
            warn(f"{f'Run {run}' if run is not None else f'Job {job}'} has no log lines{such}.")
        return 0


async def _is_job(app: App, id: str) -> bool:
    return await app.store.run(id) is None and await app.store.job(id) is not None


async def _read(
    app: App,
    run: str | None,
    job: str | None,
    step: str | None,
    attempt: int | None,
    level: str | None,
    after: str | None,
) -> AsyncIterator[LogView]:
    while True:
        if run is not None:
            page = await app.runs.logs(run, step=step, attempt=attempt, level=level, after=after, limit=PAGE_LINES)
        else:
            page = await app.jobs.logs(job or "", attempt=attempt, level=level, after=after, limit=PAGE_LINES)
        for line in page:
            yield line
        if len(page) < PAGE_LINES:
            return
        after = page[-1].id


async def _follow(
    app: App, run: str, step: str | None, attempt: int | None, level: str | None, after: str | None
) -> AsyncIterator[LogView]:
    wanted = build_filter(step, attempt, level)
    async with aclosing(follow_until_end(app, run, after)) as events:  # type: ignore[type-var]
        async for event in events:
            if (line := read_line(event)) is not None and wanted.accepts(line):
                yield line


async def _print(lines: AsyncIterator[LogView], limit: int | None, json: bool) -> int:
    count = 0
    async with aclosing(lines) as source:  # type: ignore[type-var]
        async for line in source:
            print_text(_json(line) if json else _line(line))
            count += 1
            if count == limit:
                break
    return count


def _json(line: LogView) -> str:
    text = escape_json(msgspec.json.encode(line).decode())
    return text if has_unicode_output() else text.encode("ascii", "backslashreplace").decode()


def _line(line: LogView) -> str:
    step = f"{line.step or ''}{f'#{line.n}' if line.n > 1 else ''}"
    attempt = f"attempt {line.attempt}" if line.attempt > 1 else ""
    fields = one_line(line.fields, 10_000) if line.fields else ""
    return escape_line(
        "  ".join(part for part in (line.ts[:23], f"{line.level:<5}", step, attempt, line.msg, fields) if part)
    )
