"""Nodes that run dags and flows: `sub-workflow`, and `map` with `workflowId`.

A node that is retried after its failure replays what it has recorded, so the call of a retry has a name of its own. A
child that has completed since, because it was retried itself, is not run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..context.context import Context
from ..core.errors import Permanent
from ..durable.child_runs import COMPLETED, ChildFailure, child_error

MAX_CONCURRENT_RETRIES = 32


async def sub_workflow(input: Any, config: Any, ctx: Context) -> Any:
    """Run a dag or a flow as a child run, wait for it, and return its result."""
    child = map_fields(input, config.input_mapping)
    result = await _call_child(ctx, config.workflow_id, child)
    if isinstance(result, ChildFailure):
        raise child_error(result)
    return map_fields(result, config.output_mapping)


async def map_items(config: Any, ctx: Context) -> list[Any]:
    """Run a dag or a flow for each item, and return the results in the order of the items."""
    if config.workflow_id is None:
        raise Permanent("a map node needs workflowId or executor in its config")
    if config.concurrency is None or config.concurrency >= len(config.items):
        found = await _call_all(ctx, config)
        return [_show_failure(one, n, config) for n, one in enumerate(found)]
    results: list[Any] = [None] * len(config.items)
    left = iter(enumerate(config.items))

    async def take_items() -> None:
        # Each of these tasks takes the next item when its run ends: a slow item holds up no other. A call is known by
        # its item, not by its task: when the node resumes, the items that have ended may be taken by another one.
        for n, item in left:
            results[n] = _show_failure(await _call_child(ctx, config.workflow_id, item, f"item-{n}"), n, config)

    await asyncio.gather(*(take_items() for _ in range(config.concurrency)))
    return results


async def _call_all(ctx: Context, config: Any) -> list[Any]:
    """Call a child for each item with one wait; after a retry of the node, one for each item that has failed."""
    flow, items = config.workflow_id, config.items
    names = [None, *(f"items retry-{n}" for n in range(2, ctx.n + 1))]
    first = next((n for n, name in enumerate(names, 1) if _is_recorded(ctx, name or f"call_many {flow}")), ctx.n)
    results: list[Any] = list(await ctx.call_many(flow, items, name=names[first - 1], on_failure="return"))
    if first == ctx.n:
        return results
    gate = asyncio.Semaphore(MAX_CONCURRENT_RETRIES)

    async def retry(n: int, failure: ChildFailure) -> None:
        async with gate:
            results[n] = await _retry_child(ctx, flow, items[n], f"item-{n}", first + 1, failure)

    await asyncio.gather(*(retry(n, one) for n, one in enumerate(results) if isinstance(one, ChildFailure)))
    return results


async def _call_child(ctx: Context, flow: str, input: Any, name: str | None = None) -> Any:
    """Return the result of a child run, or its failure."""
    if ctx.n == 1 or _is_recorded(ctx, name or f"call {flow}"):
        found = await ctx.call(flow, input, name=name, on_failure="return")
        if ctx.n == 1 or not isinstance(found, ChildFailure):
            return found
        return await _retry_child(ctx, flow, input, name, 2, found)
    return await _retry_child(ctx, flow, input, name, 2, None)


async def _retry_child(
    ctx: Context, flow: str, input: Any, name: str | None, first: int, failure: ChildFailure | None
) -> Any:
    """Return the result of the newest call of a child. `first` is the first retry of the node that may have one."""
    prefix = f"{name} " if name is not None else ""
    own = f"{prefix}retry-{ctx.n}"
    failures = [failure] if failure is not None else []
    for n in range(first, ctx.n):
        if _is_recorded(ctx, earlier := f"{prefix}retry-{n}"):
            found = await ctx.call(flow, input, name=earlier, on_failure="return")
            if not isinstance(found, ChildFailure):
                return found
            failures.append(found)
    if not _is_recorded(ctx, own):
        for one in reversed(failures):
            outcome = await ctx._channel.session.read_outcome(one.run)
            if outcome is not None and outcome.status == COMPLETED:
                return outcome.value()
    return await ctx.call(flow, input, name=own, on_failure="return")


def _is_recorded(ctx: Context, call: str) -> bool:
    return f"{call}#1" in ctx.calls.journal.entries


def _show_failure(result: Any, n: int, config: Any) -> Any:
    if not isinstance(result, ChildFailure):
        return result
    if not config.continue_on_fail:
        raise Permanent(f"item {n}: run {result.run!r} {result.status}: {result.error}")
    return {"error": {"error": result.error, "name": "ChildFailed", "code": result.code or "child_failed"}}


def map_fields(value: Any, mapping: Mapping[str, str] | None) -> Any:
    """Return `{target: value at the dotted path}`; a path without a value adds nothing. None maps nothing."""
    if mapping is None:
        return value
    found = {}
    for target, path in mapping.items():
        at, is_found = value, True
        for part in path.split("."):
            is_found = is_found and isinstance(at, Mapping) and part in at
            at = at[part] if is_found else None
        if is_found:
            found[target] = at
    return found
