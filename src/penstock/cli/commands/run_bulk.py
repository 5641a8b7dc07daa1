"""`penstock runs bulk`: act on every run that a filter selects."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from ...app.run_bulk import BulkAction, BulkResult
from ...core.text import pluralize
from ..errors import EXIT_FAILED, warn
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Yes, confirm
from ..parse import read_ago, read_input, read_limit, read_tags
from ..preview import DryRun
from ..session import build_admin_app
from ..tables import print_result


def bulk(
    action: BulkAction,
    /,
    *,
    flow: Annotated[str | None, Parameter(help="Only runs of this flow.")] = None,
    status: Annotated[str | None, Parameter(help="Only runs with this status; open: all that have not ended.")] = None,
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
    reason: Annotated[str | None, Parameter(help="Reason to record.")] = None,
    limit: Annotated[int, Parameter(help="Maximum number of runs.")] = 10_000,
    yes: Yes = False,
    dry_run: DryRun = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Cancel, pause, resume, retry or replay every run that the options select. It counts them first and asks.

    Parameters
    ----------
    action
        What to do with each run: cancel, pause, resume, retry or replay.
    """
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
        "reason": reason,
        "limit": read_limit(limit),
    }
    counted = asyncio.run(_bulk(common, action, {**filters, "dry_run": True}))
    if dry_run or not counted.matched:
        return _print(counted, common.json, is_done=False)
    if not confirm(f"{action.capitalize()} {pluralize(counted.matched, 'run')}?", yes):
        return EXIT_FAILED
    return _print(asyncio.run(_bulk(common, action, {**filters, "expect": counted.matched})), common.json, is_done=True)


def _print(result: BulkResult, json: bool, *, is_done: bool) -> int:
    count = pluralize(result.matched, "run")
    more = " There are more: repeat the command." if result.more else ""
    done = f"{result.action.capitalize()}: {len(result.changed)} of {count}.{more}"
    text = done if is_done else f"The filter selects {count}; nothing was done."
    print_result(text, msgspec.to_builtins(result), json=json)
    if not json:
        for id, why in result.refused.items():
            warn(f"Run {id} was refused: {why}")
    return EXIT_FAILED if result.refused else 0


async def _bulk(common: CommonOptions, action: BulkAction, filters: dict[str, Any]) -> BulkResult:
    async with build_admin_app(common) as app:
        return await app.runs.bulk(action, **filters)
