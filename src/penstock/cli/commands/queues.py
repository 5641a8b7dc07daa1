"""`penstock queues list|rates|limits|keys|pause|resume|drain`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from cyclopts import App as Commands
from cyclopts import Parameter

from ...app.views import LimitValues, QueueKeysView, QueueLimitsView, QueueMinute
from ...core.durations import format_ms
from ...core.errors import BadArgument
from ...core.text import pluralize
from ...ports.unit import JobState
from ..errors import EXIT_FAILED
from ..options import COMMON_DEFAULTS, CommonOptions
from ..output import Yes, confirm
from ..session import build_admin_app
from ..tables import print_result, print_rows

queues = Commands(name="queues", help="List queues; show rates, limits and keys of one; pause, resume or drain it.")
_COLUMNS = ("queue", "paused", "oldest", *(state.value for state in JobState))
_LIMIT_COLUMNS = ("limits", "concurrency", "maxActive", "rateLimit", "perKey")
_KEY_COLUMNS = ("key", "jobs", "waiting", "held", "delayed", "active")
_RATE_COLUMNS = ("minute", "added", "completed", "failed", "retried")


@queues.command(name="list")
@queues.default
def list_queues(
    *,
    all: Annotated[bool, Parameter(negative="", show_default=False, help="Include the engine's own queue.")] = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """List queues with their counts by state, and how long the job that is next in line has waited."""
    rows = asyncio.run(_list(common, all))
    if not common.json:
        rows = [row | {"oldest": format_ms(row["ageMs"]) if row["oldest"] is not None else None} for row in rows]
    print_rows(rows, _COLUMNS, json=common.json, empty="No queues.")
    return 0


@queues.command
def rates(
    queue: str,
    /,
    *,
    since: Annotated[str, Parameter(help="How far to look back: 10m, 24h, 7d.")] = "1h",
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Show how many jobs were added, completed, failed and retried, by minute. A week is kept.

    With --json, minutes without any job are shown too.

    Parameters
    ----------
    queue
        The queue's name.
    """
    rows = [
        {"minute": one.at, "added": one.added, "completed": one.completed, "failed": one.failed, "retried": one.retried}
        for one in asyncio.run(_rates(common, queue, since))
    ]
    if not common.json:
        rows = [row for row in rows if any(row[column] for column in _RATE_COLUMNS[1:])]
    print_rows(rows, _RATE_COLUMNS, json=common.json, empty=f"Nothing happened in queue {queue} in the last {since}.")
    return 0


@queues.command
def limits(
    queue: str,
    /,
    *,
    concurrency: Annotated[int | None, Parameter(help="Maximum number of handlers at once in each worker.")] = None,
    max_active: Annotated[int | None, Parameter(help="Maximum number of jobs at once, over all workers.")] = None,
    rate_limit: Annotated[str | None, Parameter(help="Maximum number of starts over all workers: 100/1m.")] = None,
    per_key: Annotated[
        bool, Parameter(negative="", show_default=False, help="The rate limit applies to each rate key.")
    ] = False,
    reset: Annotated[
        bool, Parameter(negative="", show_default=False, help="Return to what the handlers declare.")
    ] = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Show the limits of a queue, or change them while workers run. They follow within two seconds.

    What is not set is as the handlers declare. --reset removes the change.

    Parameters
    ----------
    queue
        The queue's name.
    """
    wanted = {"concurrency": concurrency, "max_active": max_active, "rate_limit": rate_limit}
    is_change = per_key or any(value is not None for value in wanted.values())
    if reset and is_change:
        raise BadArgument("--reset removes all changed limits: pass no limit with it")
    found = asyncio.run(_limits(common, queue, {**wanted, "per_key": per_key} if is_change else None, reset))
    if common.json:
        print_result("", msgspec.to_builtins(found), json=True)
        return 0
    rows = [{"limits": "in use"} | _show_limits(found.effective)]
    rows += [{"limits": "declared"} | _show_limits(found.declared)] if found.declared is not None else []
    rows += [{"limits": "changed"} | _show_limits(found.override)] if found.override is not None else []
    print_rows(rows, _LIMIT_COLUMNS, json=False, empty="")
    return 0


@queues.command
def keys(
    queue: str,
    /,
    *,
    limit: Annotated[int, Parameter(help="Maximum number of keys.")] = 10,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Show the order keys and rate keys with the most open jobs. The first 2,000 jobs of each state are read.

    Parameters
    ----------
    queue
        The queue's name.
    """
    found = asyncio.run(_keys(common, queue, limit))
    states = _KEY_COLUMNS[2:]
    rows = [
        {"key": one.key, "jobs": one.total, **{state: one.counts.get(state, 0) for state in states}}
        for one in found.keys
    ]
    print_rows(rows, _KEY_COLUMNS, json=common.json, empty=f"No open job of queue {queue} has a key.")
    return 0


@queues.command
def pause(queue: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Pause a queue: running jobs finish, no other job starts.

    Parameters
    ----------
    queue
        The queue's name.
    """
    asyncio.run(_set_paused(common, queue, True))
    print_result(f"Queue {queue} is paused.", {"queue": queue, "paused": True}, json=common.json)
    return 0


@queues.command
def resume(queue: str, /, *, common: CommonOptions = COMMON_DEFAULTS) -> int:
    """Resume a paused queue.

    Parameters
    ----------
    queue
        The queue's name.
    """
    asyncio.run(_set_paused(common, queue, False))
    print_result(f"Queue {queue} is resumed.", {"queue": queue, "paused": False}, json=common.json)
    return 0


@queues.command
def drain(
    queue: str,
    /,
    *,
    delayed: Annotated[bool, Parameter(negative="", show_default=False, help="Delete delayed jobs too.")] = False,
    yes: Yes = False,
    common: CommonOptions = COMMON_DEFAULTS,
) -> int:
    """Delete the waiting jobs of a queue. Steps of runs stay; cancel their run instead.

    Parameters
    ----------
    queue
        The queue's name.
    """
    if not confirm(f"Delete the waiting jobs of queue {queue}?", yes):
        return EXIT_FAILED
    count = asyncio.run(_drain(common, queue, delayed))
    message = f"Removed {pluralize(count, 'job')} from queue {queue}."
    print_result(message, {"queue": queue, "removed": count}, json=common.json)
    return 0


async def _list(common: CommonOptions, all: bool) -> list[dict[str, Any]]:
    async with build_admin_app(common) as app:
        rows = await app.queues.list(internal=all)
        return [
            {"queue": row.name, "paused": row.paused, "oldest": row.oldest_at, "ageMs": row.age_ms, **row.counts}
            for row in rows
        ]


async def _rates(common: CommonOptions, queue: str, since: str) -> Sequence[QueueMinute]:
    async with build_admin_app(common) as app:
        return await app.queues.rates(queue, since=since)


async def _limits(common: CommonOptions, queue: str, wanted: dict[str, Any] | None, reset: bool) -> QueueLimitsView:
    async with build_admin_app(common) as app:
        if reset:
            return await app.queues.reset_limits(queue)
        return await (app.queues.limits(queue) if wanted is None else app.queues.set_limits(queue, **wanted))


def _show_limits(values: LimitValues) -> dict[str, Any]:
    return {key: value or None for key, value in msgspec.to_builtins(values).items()}


async def _keys(common: CommonOptions, queue: str, limit: int) -> QueueKeysView:
    async with build_admin_app(common) as app:
        return await app.queues.top_keys(queue, limit=limit)


async def _set_paused(common: CommonOptions, queue: str, paused: bool) -> None:
    async with build_admin_app(common) as app:
        await (app.queues.pause(queue) if paused else app.queues.resume(queue))


async def _drain(common: CommonOptions, queue: str, delayed: bool) -> int:
    async with build_admin_app(common) as app:
        return await app.queues.drain(queue, delayed=delayed)
