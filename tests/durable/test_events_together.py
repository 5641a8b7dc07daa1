"""Events of one commit may be delivered together: the effect is the same as if each came alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Context, flow
from penstock.core.events import Event
from penstock.core.json_match import MAX_LEAVES, index_key
from penstock.flows.delivery import DeliveredEvent, EventBatch
from penstock.ports.store import WaitRow


@flow("any", emits=[])
async def anyone(order: Any, ctx: Context) -> Any:
    return (await ctx.wait.event("vote")).data["n"]


@flow("one", emits=[])
async def one(order: Any, ctx: Context) -> Any:
    return (await ctx.wait.event("vote", match={"for": order})).data["n"]


@flow("three", emits=[])
async def three(order: Any, ctx: Context) -> Any:
    votes = await ctx.all([ctx.wait.event("vote", match={"for": order}, name=f"v{n}") for n in range(3)])
    return sorted(vote.data["n"] for vote in votes)


@flow("counted", emits=[], start_on={"kind": "vote", "when": {"for": "a"}})
async def counted(order: Any, ctx: Context) -> Any:
    return order["n"]


async def together(app: Any, *votes: dict[str, Any]) -> None:
    await asyncio.gather(*(app.emit("vote", vote) for vote in votes))


async def test_each_wait_gets_one_matching_event(kit: Any) -> None:
    async with kit(anyone, one) as app:
        runs = [await app.start(f, order) for f, order in ((anyone, None), (one, "b"), (one, "c"), (one, "d"))]
        await app.settle()
        await together(app, *({"for": who, "n": n} for n, who in enumerate("abcabc")))
        await app.settle()
        first, b, c, d = [await app.runs.get(run) for run in runs]
        assert first.result in range(6)
        assert (b.result in (1, 4), c.result in (2, 5), d.status) == (True, True, "waiting")
        for run in runs[:3]:
            assert len([e for e in await app.history(run) if e["kind"] == "step.resumed"]) == 1


async def test_a_step_with_several_waits_receives_each_event_once(kit: Any) -> None:
    async with kit(three) as app:
        run = await app.start(three, "a")
        await app.settle()
        await together(app, *({"for": who, "n": n} for n, who in enumerate("abaa")))
        await app.settle()
        assert (await app.runs.get(run)).result == [0, 2, 3]


async def test_each_event_starts_a_run(kit: Any) -> None:
    async with kit(counted) as app:
        await app.settle()
        await together(app, *({"for": who, "n": n} for n, who in enumerate("abaca")))
        await app.settle()
        assert sorted([(await app.runs.get(row.id)).result for row in await app.runs.list(flow="counted")]) == [0, 2, 4]


async def test_more_events_than_one_delivery_holds(kit: Any) -> None:
    async with kit(one) as app:
        runs = [await app.start(one, n) for n in range(120)]
        await app.settle()
        await together(app, *({"for": n, "n": -n} for n in range(120)))
        await app.settle()
        assert [(await app.runs.get(run)).result for run in runs] == [-n for n in range(120)]


@pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])
def test_a_wait_is_compared_with_the_events_it_may_match(wide: bool) -> None:
    """An event with too many values to index may match any wait."""
    many = {f"k{n}": n for n in range(MAX_LEAVES + 1)}
    data: list[Any] = [{"order": 1}, {"order": 2, **(many if wide else {})}, {"order": 1, "more": True}]
    events = [DeliveredEvent("s", str(7 + n), Event(f"1-{n}", "", "paid", "", data=one)) for n, one in enumerate(data)]
    bundle = EventBatch(events)
    row = WaitRow("w", "r", "r.a.1", "event", "pending", b"{}", topic="paid", key=index_key({"order": 1}))
    assert bundle.candidates(row) == (events if wide else [events[0], events[2]])
    assert bundle.before == "7"
    assert (bundle.keys is None) is wide
    assert wide or row.key in (bundle.keys or [])
