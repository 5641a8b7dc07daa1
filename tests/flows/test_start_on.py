"""Flows that events start."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Context, flow
from penstock.core.errors import DefinitionError
from penstock.ports.unit import DELIVER, DELIVERIES, NewJob, Unit
from penstock.testing import TestApp
from penstock.worker.outcomes import pack_record


def starting(start_on: Any, name: str = "big") -> Any:
    @flow(name, emits=[], start_on=start_on)
    async def begin(order: Any, ctx: Context) -> Any:
        return order

    return begin


async def results(app: Any, name: str = "big") -> list[Any]:
    await app.settle()
    return [(await app.runs.get(row.id)).result for row in reversed(await app.runs.list(flow=name))]


async def test_one_run_per_matching_event(kit: Any) -> None:
    async with kit(starting({"kind": "bang", "when": {"size": "big"}})) as app:
        await app.settle()
        for n, size in enumerate(("big", "small", "big")):
            await app.emit("bang", {"size": size, "n": n})
        assert sorted(data["n"] for data in await results(app)) == [0, 2]


async def test_functions_choose_events_and_build_inputs(kit: Any) -> None:
    on = {"kind": "bang", "when": lambda e: e.data["n"] > 1, "map": lambda e: {"twice": e.data["n"] * 2}}
    async with kit(starting(on)) as app:
        await app.settle()
        for n in range(4):
            await app.emit("bang", {"n": n})
        assert sorted(data["twice"] for data in await results(app)) == [4, 6]


async def test_an_event_that_matches_several_patterns_starts_one_run(kit: Any) -> None:
    on = [{"kind": "bang", "when": {"a": 1}}, {"kind": "bang", "when": {"b": 2}}, "boom"]
    async with kit(starting(on)) as app:
        await app.settle()
        await app.emit("bang", {"a": 1, "b": 2})
        await app.emit("boom", "two")
        assert len(await results(app)) == 2


async def test_an_event_delivered_again_starts_no_second_run(kit: Any) -> None:
    async with kit(starting("bang")) as app:
        await app.settle()
        await app.emit("bang", 1)
        assert await results(app) == [1]
        (item,), (last,) = await app.store.events_by_kind("bang"), await app.store.feed(None)
        again = {"stream": item.stream, "id": item.event.id, "cursor": last.cursor, "body": {"kind": "bang", "data": 1}}
        await app.store.commit([Unit("again", jobs=[NewJob("again", DELIVERIES, DELIVER, pack_record(again))])])
        assert await results(app) == [1]


async def test_a_removed_flow_is_not_started(shared_url: str) -> None:
    async with TestApp(shared_url, handlers=[starting("bang")]) as app:
        await app.settle()
    async with TestApp(shared_url, handlers=[starting("boom")]) as app:
        await app.settle()
        await app.emit("bang", 1)
        await app.emit("boom", 2)
        assert await results(app) == [2]


async def test_a_broken_function_does_not_block_other_flows(kit: Any) -> None:
    def broken(event: Any) -> bool:
        raise ValueError("no")

    @flow("waiter", emits=[])
    async def waiter(order: Any, ctx: Context) -> Any:
        return (await ctx.wait.event("bang")).data

    async with kit(starting({"kind": "bang", "when": broken}), starting("bang", "other"), waiter) as app:
        run = await app.start(waiter, None)
        await app.settle()
        await app.emit("bang", 1)
        await app.settle()
        assert (await app.runs.get(run)).result == 1
        assert await results(app, "other") == [1]
        assert await results(app, "big") == []


def test_engine_events_start_nothing() -> None:
    with pytest.raises(DefinitionError, match=r"flow\.completed"):
        starting("flow.completed")
