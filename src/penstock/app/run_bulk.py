"""Bulk actions: select runs by a filter, count them, and act on each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from ..core.argument_checks import check_count
from ..core.errors import BadArgument, CountChanged, RunError, UnknownFlow, UnknownRun, UnreadableRecord
from ..flows.run_record import FAILED, OPEN, PAUSED
from .arguments import check_choice
from .run_list import RunFilter, find_runs

if TYPE_CHECKING:
    from .app import App

BulkAction = Literal["cancel", "pause", "resume", "retry", "replay"]
MAX_RUNS = 100_000
PAGE_RUNS = 500
# What an action selects without a status: the runs that it can change. A replay needs a status or another filter.
_STATUSES: Mapping[str, tuple[str, ...]] = {
    "cancel": tuple(OPEN),
    "pause": tuple(OPEN),
    "resume": (PAUSED,),
    "retry": (FAILED,),
}


class BulkResult(msgspec.Struct, rename="camel"):
    """What a bulk action did. A dry run has only the count."""

    action: str
    matched: int  # runs that the filter selects, at most `limit`
    more: bool = False  # whether the filter selects more than `limit`
    changed: list[str] = []  # runs on which the action took effect
    started: dict[str, str] = {}  # of a replay: run -> its new run
    refused: dict[str, str] = {}  # run -> reason


async def act_on_runs(
    app: App, action: BulkAction, wanted: RunFilter, reason: str | None, limit: int, dry_run: bool, expect: int | None
) -> BulkResult:
    """Select runs and act on each. The ids are read first: runs leave the filter while they change."""
    check_choice(action, get_args(BulkAction), "action")
    if check_count(limit) > MAX_RUNS:
        raise BadArgument(f"limit must be 1 to {MAX_RUNS:,}, got {limit}; repeat the call for more runs")
    ids, more = await _select(app, _with_statuses(action, wanted), limit)
    result = BulkResult(action, len(ids), more)
    if expect is not None and expect != len(ids):
        raise CountChanged(
            f"the filter selects {len(ids)} {'run' if len(ids) == 1 else 'runs'} now, not {expect}; nothing was done. "
            "Count again, then confirm"
        )
    if not dry_run:
        for id in ids:
            await _act(app, action, id, reason, result)
    return result


def _with_statuses(action: str, wanted: RunFilter) -> RunFilter:
    if wanted == RunFilter():
        raise BadArgument(f'a bulk {action} needs a filter, such as flow="order" or status="open"')
    if not wanted.statuses and action in _STATUSES:
        return msgspec.structs.replace(wanted, statuses=_STATUSES[action])
    return wanted


async def _select(app: App, wanted: RunFilter, limit: int) -> tuple[list[str], bool]:
    """Return the ids of at most `limit` runs, newest first, and whether there are more."""
    ids: list[str] = []
    before: str | None = None
    while rows := await find_runs(app.store, wanted, before, PAGE_RUNS):
        ids += [row.id for row in rows]
        before = rows[-1].id
        if len(rows) < PAGE_RUNS or len(ids) > limit:
            break
    return ids[:limit], len(ids) > limit


async def _act(app: App, action: str, id: str, reason: str | None, result: BulkResult) -> None:
    more: Any = {"reason": reason} if reason is not None else {}
    try:
        if action == "replay":
            result.started[id] = str(await app.runs.replay(id))
            done = True
        elif action == "retry":
            redriven = await app.runs.retry(id)
            done = bool(redriven.sent)
            if not done:
                result.refused[id] = "; ".join(redriven.refused.values()) or "it has no failed step"
        else:
            done = bool(await getattr(app.runs, action)(id, **more))
    except (RunError, UnknownRun, UnknownFlow, UnreadableRecord) as problem:
        result.refused[id] = str(problem)
        return
    if done:
        result.changed.append(id)
