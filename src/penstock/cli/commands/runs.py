"""`penstock runs list|show|pause|resume|cancel|retry|replay|fork|bulk`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence, Set
from contextlib import redirect_stdout
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from ...app import App
from ...app.arguments import UNSET
from ...app.live_workers import advise_run
from ...app.redrive import RedriveResult
from ...app.views import RunSummary
from ...core.clock import from_iso
from ...core.durations import format_ms
from ...core.errors import RunError, UnknownFlow
from ...core.near_match import did_you_mean
from ...core.text import escape_line
from ...entities.reducer import EntityView
from ...flows.reducer import RunView
from ...flows.run_record import PAUSED
from ..errors import EXIT_FAILED, warn
from ..options import COMMON_DEFAULTS, KEY_HELP, CommonOptions
from ..output import Yes, confirm, has_unicode_output, print_json, print_text, run_to_dict
from ..parse import read_ago, read_input, read_limit, read_tags
from ..preview import DryRun, IfVersion, print_dry_run
from ..run_view import failure_lines, one_line, render_text
from ..session import build_admin_app, build_store_app, is_server_url
from ..tables import print_result, print_rows
from .dlq import print_redriven
from .run_bulk import bulk

_COLUMNS = ("id", "flow", "status", "createdAt", "took", "waitsFor", "unreadable")
UNREADABLE = "unreadable"  # shown instead of the status of a run whose record cannot be read
MAX_LOG_LINES, MAX_STATE_KEYS, MAX_LINE_CHARS, MAX_CHILDREN = 20, 20, 1000, 10
runs = Commands(name="runs", help="List runs, newest first; show, pause, resume, cancel, retry, replay or fork one.")


@runs.command(name="list")
@runs.default
def list_runs(
    *,
    flow: Annotated[str | None, Parameter(help="Only runs of this flow.")] = None,
    status: Annotated[
        str | None,
        Parameter(help="Only runs with this status, such as failed or waiting; open: all that have not ended."),
    ] = None,
    tag: Annotated[
        list[str] | None, Parameter(negative="", help="Only runs with this tag, name=value; may be repeated.")
    ] = None,
    attribute: Annotated[
        list[str] | None, Parameter(negative="", help="Only runs with this attribute, name=value; may be repeated.")
    ] = None,
    correlation_id: Annotated[str | None, Parameter(help="Only runs with this correlation id.")] = None,
    step: Annotated[str | None, Parameter(help="Only runs in which this step failed.")] = None,
    error: Annotated[str | None, Parameter(help="Only runs that failed with an error that has these words.")] = None,
    where: Annotated[
        str | None, Parameter(allow_leading_hyphen=True, help="Only runs whose input contains this JSON (@FILE, -).")
    ] = None,
    parent: Annotated[str | None, Parameter(help="Only runs that the run with this id started.")] = None,
    since: Annotated[str | None, Parameter(help="Only runs started after this time, or in the last 2h.")] = None,
    until: Annotated[str | None, Parameter(help="Only runs started before this time, or over 2h ago.")] = None,
    before: Annotated[str | None, Parameter(help="Only runs older than the run with this id.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of rows.")] = 20,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List runs, newest first; 'runs show ID' shows one with its steps."""
    filters: dict[str, Any] = {
        "flow": flow,
        "status": status,
        "tags": read_tags(tag),
        "attributes": read_tags(attribute, "--attribute"),
        "correlation_id": correlation_id,
        "step": step,
        "error": error,
        "where": read_input(where, "--where"),
        "parent": parent,
        "since": read_ago(since, "--since"),
        "until": read_ago(until, "--until"),
        "before": before,
        "limit": read_limit(limit),
    }
    rows = asyncio.run(_list(common, filters))
    empty = "No runs." if flow is None else f"No runs of flow {flow}."
    columns = [*_COLUMNS[:-2]]
    columns += [name for name, is_used in zip(_COLUMNS[-2:], _uses(rows), strict=True) if is_used]
    print_rows([_run_row_to_dict(row) for row in rows], columns, json=common.json, empty=empty)
    return 0


@runs.command
def show(
    id: str,
    /,
    *,
    at: Annotated[str | None, Parameter(help="Show the run as it was just after the event with this id.")] = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Show a run with its steps, logs and result or error.

    Parameters
    ----------
    id
        The run's id.
    """
    view, now, advice, children = asyncio.run(_show(common, id, at))
    details = [*_details(view), *_links(view, children)]
    if common.json:
        more = {"children": [_run_row_to_dict(row) for row in children]} if children else {}
        print_json({**run_to_dict(view), **more})
    elif sys.stdout.isatty():
        from rich.console import Console

        from ..run_panel import RunPanel

        Console().print(RunPanel(view, _FrozenClock(now)), *details, sep="\n", markup=False, highlight=False)
    else:
        print_text(render_text(view, now, has_unicode_output()), *details)
    for sentence in advice:
        warn(sentence)
    return 0


@runs.command
def pause(
    id: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Reason to record.")] = "paused by request",
    dry_run: DryRun = False,
    if_version: IfVersion = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Pause a run: running steps finish, no other step starts. Its waits can still resolve.

    Parameters
    ----------
    id
        The run's id.
    """
    if dry_run:
        return print_dry_run(common, lambda app: app.runs.pause(id, reason, dry_run=True, version=if_version))
    asyncio.run(_pause(common, id, reason, if_version))
    print_result(f"Run {id} is paused.", {"id": id, "paused": True}, json=common.json)
    return 0


@runs.command
def resume(
    id: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Reason to record.")] = "resumed by request",
    dry_run: DryRun = False,
    if_version: IfVersion = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Resume a paused run, with everything that arrived in the meantime.

    Parameters
    ----------
    id
        The run's id.
    """
    if dry_run:
        return print_dry_run(common, lambda app: app.runs.resume(id, reason, dry_run=True, version=if_version))
    asyncio.run(_resume(common, id, reason, if_version))
    print_result(f"Run {id} is resumed.", {"id": id, "paused": False}, json=common.json)
    return 0


@runs.command
def fork(
    id: str,
    /,
    *,
    at: Annotated[str, Parameter(help="Id of an event of that run; 'penstock events ID' lists them.")],
    key: Annotated[str | None, Parameter(help=KEY_HELP)] = None,
    dry_run: DryRun = False,
    if_version: IfVersion = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Start a new run that continues from an event of another run; prints its id.

    Parameters
    ----------
    id
        The run's id.
    """
    if dry_run:
        return print_dry_run(common, lambda app: app.runs.fork(id, at, key=key, dry_run=True, version=if_version))
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        new = asyncio.run(_fork(common, id, at, key, if_version))
    print_result(new, {"id": new, "forkOf": id, "at": at}, json=common.json)
    return 0


@runs.command
def cancel(
    id: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Reason to record.")] = "cancelled by request",
    yes: Yes = False,
    dry_run: DryRun = False,
    if_version: IfVersion = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Cancel a run permanently: queued steps are dropped, running ones are notified.

    Parameters
    ----------
    id
        The run's id.
    """
    if dry_run:
        return print_dry_run(common, lambda app: app.runs.cancel(id, reason, dry_run=True, version=if_version))
    if not confirm(f"Cancel run {id} permanently?", yes):
        return EXIT_FAILED
    asyncio.run(_cancel(common, id, reason, if_version))
    print_result(f"Run {id} is cancelled.", {"id": id, "cancelled": True}, json=common.json)
    return 0


@runs.command
def retry(
    id: str,
    /,
    *,
    dry_run: DryRun = False,
    if_version: IfVersion = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Retry the failed steps of a failed run; they keep their recorded results. A worker continues the run.

    Parameters
    ----------
    id
        The run's id.
    """
    if dry_run:
        return print_dry_run(common, lambda app: app.runs.retry(id, dry_run=True, version=if_version))
    return print_redriven(asyncio.run(_retry(common, id, if_version)), common.json, "Retried", "step")


@runs.command
def replay(
    id: str,
    /,
    *,
    input: Annotated[str | None, Parameter(allow_leading_hyphen=True, help="Another input: JSON, @FILE or -.")] = None,
    key: Annotated[str | None, Parameter(help=KEY_HELP)] = None,
    dry_run: DryRun = False,
    if_version: IfVersion = None,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Start a new run of the same flow with the recorded input; prints its id.

    Parameters
    ----------
    id
        The run's id.
    """
    value = UNSET if input is None else read_input(input)
    options: dict[str, Any] = {"input": value, "key": key, "version": if_version}
    if dry_run:
        return print_dry_run(common, lambda app: app.runs.replay(id, dry_run=True, **options))
    with redirect_stdout(sys.stderr):  # a worker file may print while it is imported
        new = asyncio.run(_replay(common, id, options))
    print_result(new, {"id": new, "replayOf": id}, json=common.json)
    if sys.stderr.isatty() and sys.stdout.isatty():
        warn(f"Started. Watch it with `penstock tail {new}`.")
    return 0


runs.command(bulk)


async def _list(common: CommonOptions, filters: dict[str, Any]) -> list[RunSummary]:
    async with build_store_app(common) as app:
        if (before := filters["before"]) is not None:
            await app.runs.get(before)  # an unknown run is an error, not the end of the list
        rows, flow = await app.runs.list(**filters), filters["flow"]
        if flow is not None and not rows and not await app.runs.list(flow=flow, limit=1):
            known = sorted({row.flow for row in await app.runs.list(limit=1000)})
            if hint := did_you_mean(flow, known):
                raise UnknownFlow(f"no runs of flow {flow!r}; {hint}")
        return rows


async def _show(
    common: CommonOptions, id: str, at: str | None
) -> tuple[RunView, int, Sequence[str], Sequence[RunSummary]]:
    async with build_store_app(common) as app:
        if at is not None:
            return await app.runs.at(id, at), int(at.partition("-")[0]), [], ()  # the time of that event
        view, children = await app.runs.get(id), await app.runs.children(id, limit=MAX_CHILDREN + 1)
        if is_server_url(common):
            return view, app.clock.now_ms(), [], children
        advice = await advise_run(app, id)
        if isinstance(view, EntityView):
            raise RunError(f"{id!r} is an entity; run `penstock entities show {view.urn}`")
        if not common.json:
            _mark_unclaimed(view, advice.unclaimed)
        return view, app.clock.now_ms(), advice.sentences, children


def _mark_unclaimed(view: RunView, unclaimed: Set[str]) -> None:
    """Show no step as running whose worker is gone: the next worker runs it again."""
    for step in view.steps.values():
        if step.status == "running" and f"{view.id}.{step.step}.{step.n}" in unclaimed:
            step.status, step.error = "retrying", "its worker is gone, and no other has claimed it"


async def _pause(common: CommonOptions, id: str, reason: str, version: int | None) -> None:
    async with build_store_app(common) as app:
        if not await app.runs.pause(id, reason, version=version):
            status = (await app.runs.get(id)).status
            raise RunError(f"run {id!r} is already {status}" + ("" if status == PAUSED else " and cannot be paused"))


async def _resume(common: CommonOptions, id: str, reason: str, version: int | None) -> None:
    async with build_store_app(common) as app:
        if not await app.runs.resume(id, reason, version=version):
            raise RunError(f"run {id!r} is {(await app.runs.get(id)).status}, not paused")


async def _fork(common: CommonOptions, id: str, at: str, key: str | None, version: int | None) -> str:
    async with build_admin_app(common) as app:
        existing = await _exists(app, key)
        new = str(await app.runs.fork(id, at, key=key, version=version))
        if existing:
            warn(f"Run {new} already exists; nothing was started.")
        return new


async def _cancel(common: CommonOptions, id: str, reason: str, version: int | None) -> None:
    async with build_store_app(common) as app:
        if not await app.runs.cancel(id, reason, version=version):
            status = (await app.runs.get(id)).status
            raise RunError(f"run {id!r} is already {status}")


async def _retry(common: CommonOptions, id: str, version: int | None) -> RedriveResult:
    async with build_admin_app(common) as app:
        return await app.runs.retry(id, version=version)


async def _replay(common: CommonOptions, id: str, options: dict[str, Any]) -> str:
    async with build_admin_app(common) as app:
        existing = await _exists(app, options["key"])
        new: str = await app.runs.replay(id, **options)
        if existing:
            warn(f"Run {new} already exists; nothing was started.")
        return new


async def _exists(app: App, key: str | None) -> bool:
    return key is not None and await app.store.run(key) is not None


def _details(view: RunView) -> list[str]:
    logs = map(_log_line, view.logs[-MAX_LOG_LINES:])
    problem = [f"unreadable: {escape_line(view.unreadable)}"] if view.unreadable is not None else []
    values = f"input {one_line(view.input, MAX_LINE_CHARS)}", *_state_lines(view)
    return [*problem, *values, *map(escape_line, logs), *failure_lines(view)]


def _state_lines(view: RunView) -> list[str]:
    """Return the state of the run, as of the last event that is shown."""
    lines = [f"state {key} {one_line(value, MAX_LINE_CHARS)}" for key, value in view.state.items()]
    more = [f"{len(lines) - MAX_STATE_KEYS} more keys of state"] if len(lines) > MAX_STATE_KEYS else []
    return [*map(escape_line, lines[:MAX_STATE_KEYS]), *more]


def _log_line(log: dict[str, Any]) -> str:
    fields = f" {one_line(log['fields'], MAX_LINE_CHARS)}" if log.get("fields") else ""
    return f"{log['ts']} {log['level']} {log['step']}: {one_line(log['msg'], MAX_LINE_CHARS)}{fields}"


def _links(view: RunView, children: Sequence[RunSummary]) -> list[str]:
    """Return lines on the run that started this one, and on those that it started."""
    parent = [f"parent {view.parent}"] if view.parent is not None else []
    if view.root not in (None, view.parent):
        parent.append(f"root {view.root}")
    lines = [f"child {row.id} {row.status}" for row in children[:MAX_CHILDREN]]
    more = [f"more children: penstock runs list --parent {view.id}"] if len(children) > MAX_CHILDREN else []
    return [*map(escape_line, parent), *map(escape_line, lines), *more]


def _run_row_to_dict(row: RunSummary) -> dict[str, Any]:
    times = {"createdAt": row.started_at, "updatedAt": row.updated_at, "took": _took(row) or None}
    return {
        "id": row.id,
        "flow": row.flow,
        "status": row.status if row.unreadable is None else UNREADABLE,
        "closed": row.closed,
        **times,
        "waitsFor": "; ".join(row.waits_for) or None,
        "unreadable": row.unreadable,
        "parent": row.parent,
        "root": row.root,
        "depth": row.depth,
    }


def _uses(rows: list[RunSummary]) -> tuple[bool, bool]:
    """Return whether a run waits, and whether one cannot be read."""
    return any(row.waits_for for row in rows), any(row.unreadable for row in rows)


def _took(row: RunSummary) -> str:
    return format_ms(from_iso(row.updated_at) - from_iso(row.started_at)) if row.closed else ""


class _FrozenClock:
    """A clock that stands still, at the moment the run was read."""

    def __init__(self, now: int) -> None:
        self._now = now

    def now_ms(self) -> int:
        return self._now
