"""Replaces the executor of a type of node in a test."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from ..core.retry import RetryPolicy
from ..dags.engine import DagEngine
from ..handlers.nodes import NodeHandler
from ..ports.unit import DELIVERIES


class ExecutorCall(msgspec.Struct, frozen=True):
    """One call of a replaced executor."""

    node: str
    input: Any
    config: Any


def replace_executor(engine: DagEngine, type: str, result: Any) -> list[ExecutorCall]:
    """Replace the executor of a type, and return the list that its calls are added to."""
    before, calls = engine.executor(type), list[ExecutorCall]()

    async def replaced(input: Any, config: Any, ctx: Any) -> Any:
        calls.append(ExecutorCall(ctx.step, input, config))
        found = result(input, config) if callable(result) else result
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, BaseException):
            raise found
        return found

    queue = before.queue_name if before is not None else DELIVERIES
    retry = before.retry if before is not None else RetryPolicy()
    engine.replaced[type] = NodeHandler(name=type, fn=replaced, queue=queue, retry=retry, dead_letters=False)
    return calls
