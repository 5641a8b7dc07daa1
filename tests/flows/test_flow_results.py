"""The result of a run: the results of its last steps, and a list in the order of events for `mode="each"`."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Context, flow, step
from penstock.core.errors import PayloadTooLarge
from penstock.testing import TestApp


@flow("list", emits=["item"])
async def items(values: list[Any], ctx: Context) -> None:
    for value in values:
        ctx.emit("item", value)


@step(on="item", mode="each")
async def double(value: Any) -> Any:
    return None if value is None else value * 2


@pytest.mark.parametrize(
    ("given", "result"),
    [
        ([3], [6]),
        ([3, 4], [6, 8]),
        ([3, None, 5], [6, None, 10]),
        ([None, 4], [None, 8]),
        ([4, None], [8, None]),
        ([None, None], None),  # a step that returns nothing adds nothing
        ([], None),
        ([[1]], [[1, 1]]),
    ],
)
async def test_each_returns_a_list(given: list[Any], result: Any) -> None:
    async with TestApp(handlers=[items, double]) as app:
        run = await app.run_flow("list", given)
        assert run.result == result
        assert await app.result(run.id) == result


@step(on="item", mode="each", emits=["counted"])
async def count(value: Any, ctx: Context) -> Any:
    if await ctx.state.patch("n", lambda n: (n or 0) + 1) == 5:
        ctx.emit("counted")
    return value


@step(on="counted")
async def report(nothing: None) -> str:
    return "all five"


async def test_the_order_of_completion_does_not_matter() -> None:
    """Another step follows one of the instances, so none of them is a last step."""
    async with TestApp(handlers=[items, count, report]) as app:
        assert (await app.run_flow("list", [1, 2, 3, 4, 5])).result == "all five"


async def test_large_results_before_a_join_are_allowed() -> None:
    async with TestApp(handlers=[items, count, report]) as app:
        run = await app.run_flow("list", ["x" * 10_000] * 5)
        assert await app.result(run.id) == "all five"


@flow("wide", emits=["item"])
async def wide(size: int, ctx: Context) -> None:
    for _ in range(5):
        ctx.emit("item", "x" * size)


@step(on="item", mode="each")
async def echo(value: str) -> str:
    return value


async def test_results_above_the_payload_limit_are_reported() -> None:
    async with TestApp(handlers=[wide, echo]) as app:
        run = await app.run_flow("wide", 10_000)
        assert len(await app.result(run.id)) == 5
        run = await app.run_flow("wide", 13_200)
        assert run.status == "completed"
        with pytest.raises(PayloadTooLarge, match="result of each step"):
            await app.result(run.id)
        assert len(await app.step_result(run.id, "echo", n=5)) == 13_200
