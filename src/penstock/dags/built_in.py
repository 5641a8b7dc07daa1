"""Built-in nodes: what every dag can use without an executor of its own. Every worker runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from ..context.context import Context
from ..core.durations import Duration, to_ms
from ..core.errors import BadDuration, Permanent
from ..core.retry import RetryPolicy
from ..core.text import shorten
from ..handlers.nodes import MARKER, Next, NodeHandler
from ..ports.unit import DELIVERIES
from .child_nodes import map_items, sub_workflow
from .definition import Node
from .http_node import AddressGuard, HttpConfig, send_request

SUB_WORKFLOW, MAP, BATCH, HTTP = "sub-workflow", "map", "batch", "http"
MAX_CONCURRENT_ITEMS = 32


class DelayConfig(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Config of a `delay` node: one of the three, in this order of precedence."""

    duration: Any = None  # milliseconds as a number, or a text such as "10m"
    duration_seconds: float | None = None
    duration_minutes: float | None = None

    def to_ms(self) -> int:
        """Return the delay in milliseconds."""
        if self.duration is not None:
            found: Duration | None = self.duration if isinstance(self.duration, str) else self.duration / 1000
        elif self.duration_seconds is not None:
            found = self.duration_seconds
        else:
            found = self.duration_minutes * 60 if self.duration_minutes is not None else None
        if found is None:
            raise Permanent("a delay node needs duration, durationSeconds or durationMinutes in its config")
        try:
            return to_ms(found)
        except BadDuration as problem:
            raise Permanent(f"the config of a delay node: {problem}") from None


class BranchCase(msgspec.Struct, forbid_unknown_fields=True):
    """One case of a `branch` node: the nodes that follow if `when` is true."""

    when: Any
    next: list[str]


class BranchConfig(msgspec.Struct, forbid_unknown_fields=True):
    """Config of a `branch` node. The first case that holds decides, else `default`."""

    cases: list[BranchCase]
    default: list[str] = []


class TransformConfig(msgspec.Struct, forbid_unknown_fields=True):
    """Config of a `transform` node: `output` becomes its data."""

    output: Any = None


class SubWorkflowConfig(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Config of a `sub-workflow` node: the dag or flow to run, and how input and output are mapped."""

    workflow_id: str
    input_mapping: dict[str, str] | None = None  # target -> dotted path in the input
    output_mapping: dict[str, str] | None = None  # target -> dotted path in the result


class WaitConfig(msgspec.Struct, forbid_unknown_fields=True):
    """Config of a `wait` node: an event and what it must contain, or a webhook by its name; and for how long."""

    event: str | None = None
    match: dict[str, Any] | None = None
    webhook: str | None = None
    payload: Any = None  # shown to the person who answers
    timeout: Any = None


class MapConfig(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Config of a `map` node: the dag or flow to run for each item, or the type of the executor to call."""

    items: list[Any]
    workflow_id: str | None = None
    executor: str | None = None
    config: Any = None  # of that executor
    concurrency: Annotated[int, msgspec.Meta(ge=1)] | None = None
    continue_on_fail: bool = False  # keep the error of an item in its place


class BatchConfig(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Config of a `batch` node: the executor that receives up to `size` items in one call."""

    items: list[Any]
    executor: str
    config: Any = None
    size: Annotated[int, msgspec.Meta(ge=1)] = 100


async def delay(input: Any, config: Any, ctx: Context) -> Any:
    """Wait, then pass the input on."""
    await ctx.wait.time(config.to_ms() / 1000)
    return input


async def branch(input: Any, config: Any) -> Next:
    """Pass the input on to the nodes of the first case that holds."""
    for case in config.cases:
        if case.when:
            return Next(case.next, input)
    return Next(config.default, input)


async def transform(config: Any) -> Any:
    """Return the rendered `output`."""
    return config.output


async def wait(config: Any, ctx: Context) -> Any:
    """Wait for an event or for a webhook, and return its data."""
    if (config.event is None) == (config.webhook is None):
        raise Permanent("a wait node needs either event or webhook in its config")
    if config.webhook is not None:
        trigger = await ctx.wait.trigger(config.webhook, timeout=config.timeout, payload=config.payload)
        return await trigger.wait()
    event = await ctx.wait.event(config.event, match=config.match, timeout=config.timeout)
    return event.data


def _built_in(type: str, fn: Any, config: Any) -> NodeHandler:
    return NodeHandler(name=type, fn=fn, queue=DELIVERIES, dead_letters=False, config_schema=config)


def make_http(guard: AddressGuard) -> NodeHandler:
    """Return the executor of `http` nodes."""

    async def http(config: Any) -> Any:
        return await send_request(config, guard)

    handler = _built_in(HTTP, http, HttpConfig)
    object.__setattr__(handler, "retry", RetryPolicy(3))
    return handler


class CollectingHandler(NodeHandler):
    """The executor of `map` and `batch` nodes that calls another executor in its own attempt, item by item."""


def find_inner_type(node: Node) -> str | None:
    """Return the type of the executor that a `map` or `batch` node calls."""
    if node.type not in (MAP, BATCH) or not isinstance(node.config, dict):
        return None
    found = node.config.get("executor")
    return found if isinstance(found, str) else None


def is_collecting(handler: NodeHandler) -> bool:
    """Return whether an executor calls another one."""
    return isinstance(handler, CollectingHandler)


def make_collecting(outer: NodeHandler, inner: NodeHandler) -> NodeHandler:
    """Return the executor of a `map` or `batch` node that calls `inner`, in the queue of `inner`."""
    call = _call_each if outer.name == MAP else _call_batches

    async def collect(config: Any, ctx: Context) -> list[Any]:
        return await call(inner.bind(config.config), config, ctx)

    return CollectingHandler(
        name=outer.name,
        fn=collect,
        queue=inner.queue_name,
        retry=inner.retry,
        dead_letters=False,
        config_schema=outer.config_schema,
    )


async def _call_each(inner: NodeHandler, config: Any, ctx: Context) -> list[Any]:
    """Call the executor for each item; each result is recorded, so a retry of the node repeats no item."""
    gate = asyncio.Semaphore(config.concurrency or MAX_CONCURRENT_ITEMS)

    async def call(n: int, item: Any) -> Any:
        async with gate:
            return await ctx.run(f"item-{n}", _call_inner, inner, item, config.continue_on_fail)

    return list(await asyncio.gather(*(call(n, item) for n, item in enumerate(config.items))))


async def _call_inner(inner: NodeHandler, item: Any, keeps_error: bool) -> Any:
    try:
        return _read_item(await _run_inner(inner, item))
    except Exception as problem:
        if not keeps_error:
            raise
        code = getattr(problem, "code", None)
        return {"error": {"error": str(problem), "name": type(problem).__name__, "code": code}}


async def _call_batches(inner: NodeHandler, config: Any, ctx: Context) -> list[Any]:
    """Call the executor with lists of items; it returns a list with an outcome for each."""
    results: list[Any] = []
    for at in range(0, len(config.items), config.size):
        results += await ctx.run(f"batch-{at}", _call_batch, inner, config.items[at : at + config.size])
    return results


async def _call_batch(inner: NodeHandler, items: list[Any]) -> list[Any]:
    found = await _run_inner(inner, items)
    if not isinstance(found, list) or len(found) != len(items):
        raise Permanent(
            f"the executor {inner.name!r} must return a list of {len(items)} outcomes, got {shorten(found)}"
        )
    return found


async def _run_inner(inner: NodeHandler, value: Any) -> Any:
    checked = inner.check_input(value)
    if inner.is_async:
        return await inner.call(checked, None)
    return await asyncio.to_thread(inner.call, checked, None)


def _read_item(result: Any) -> Any:
    """Return the data of an item: None for a skipped one."""
    if isinstance(result, dict) and MARKER in result:
        return result.get("data")
    return result


BUILT_IN: Mapping[str, NodeHandler] = {
    "delay": _built_in("delay", delay, DelayConfig),
    "branch": _built_in("branch", branch, BranchConfig),
    "transform": _built_in("transform", transform, TransformConfig),
    SUB_WORKFLOW: _built_in(SUB_WORKFLOW, sub_workflow, SubWorkflowConfig),
    "wait": _built_in("wait", wait, WaitConfig),
    MAP: _built_in(MAP, map_items, MapConfig),
    BATCH: _built_in(BATCH, map_items, BatchConfig),
    HTTP: make_http(AddressGuard()),
}
