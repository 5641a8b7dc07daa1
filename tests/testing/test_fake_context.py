"""FakeContext: test a single step."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Context, SyncContext
from penstock.core.errors import NotJSON, UndeclaredEvent
from penstock.core.events import BadEmit
from penstock.testing import FakeClock, FakeContext


async def charge(order: dict[str, Any], ctx: Context) -> str:
    ctx.log.warning("charging", order=order["id"])
    ctx.progress(50)
    ctx.partial("half")
    seen = await ctx.state.patch("charges", lambda before: (before or 0) + 1)
    await ctx.emit("order.paid", {"id": order["id"], "try": ctx.attempt})
    return f"{ctx.idempotency_key('charge')} {seen}"


def ship(order: dict[str, Any], ctx: SyncContext) -> str:
    ctx.log("shipping")
    ctx.emit({"kind": "order.shipped", "data": order})
    ctx.state.set("shipped", True)
    return "stopped" if ctx.cancelled else f"{ctx.run_id} {ctx.state.get('shipped')}"


async def test_an_async_step() -> None:
    ctx = FakeContext(attempt=2, idempotency_key="k", state={"charges": 4})
    assert await charge({"id": 7}, ctx) == "k.charge 5"
    assert ctx.emitted == [("order.paid", {"id": 7, "try": 2})]
    assert ctx.logs == [("warning", "charging", {"order": 7})]
    assert ctx.progressed == [50]
    assert ctx.partials == ["half"]


def test_a_sync_step_without_a_loop() -> None:
    ctx = FakeContext(run_id="r-1")
    assert ship({"id": 7}, ctx.sync) == "r-1 True"
    assert ctx.emitted == [("order.shipped", {"id": 7})]
    assert ctx.logs[0].message == "shipping"
    assert ctx.sync.state.list() == {"shipped": True}
    assert ctx.sync.shared.patch("n", lambda before: before) is None
    ctx.sync.state.delete("shipped")
    assert ctx.sync.state.get("shipped", "gone") == "gone"


def test_the_step_sees_what_the_test_sets() -> None:
    ctx = FakeContext(cancelled=True)
    assert ship({}, ctx.sync) == "stopped"
    ctx.cancelled = False
    ctx.run_id = "other"
    ctx.attempt = 9
    assert ship({}, ctx.sync).startswith("other")
    assert ctx.sync.attempt == 9
    assert FakeContext(correlation_id="c").correlation_id() == "c"


async def test_state_expires_with_the_clock() -> None:
    clock = FakeClock()
    ctx = FakeContext(clock=clock, shared={"rate": 3})
    await ctx.state.set("short", 1, ttl="1h")
    await ctx.state.patch("patched", lambda _: 2, ttl="2h")
    await ctx.state.set(["a", "b"], 3)
    assert await ctx.state.list() == {"a/b": 3, "patched": 2, "short": 1}
    clock.advance("1h")
    assert await ctx.state.get("short") is None
    assert await ctx.state.list() == {"a/b": 3, "patched": 2}
    assert await ctx.state.list("a") == {"a/b": 3}
    assert await ctx.state.list(limit=1) == {"a/b": 3}
    assert await ctx.shared.get("rate") == 3
    await ctx.state.delete("patched")
    assert await ctx.state.patch("patched", lambda before: before) is None


async def test_emits_that_a_flow_refuses_are_refused() -> None:
    ctx = FakeContext(step="charge", emits=["order.paid"])
    ctx.emit("order.paid")
    with pytest.raises(
        UndeclaredEvent,
        match=r"step 'charge' emitted 'order\.lost', but declares emits=\['order\.paid'\]; add 'order\.lost' to",
    ):
        ctx.emit("order.lost")
    with pytest.raises(BadEmit, match="reserved for the engine"):
        ctx.emit("step.completed")
    with pytest.raises(BadEmit):
        FakeContext().emit("flow.done")
    with pytest.raises(NotJSON):
        FakeContext().emit("order.paid", object())
    assert ctx.emitted == [("order.paid", None)]


async def test_children_by_their_keys() -> None:
    ctx = FakeContext(children={"bull:pages:1": {"page": 1}}, failed_children={"bull:pages:2": "torn"})
    assert await ctx.children_values() == ctx.sync.children_values() == {"bull:pages:1": {"page": 1}}
    assert await ctx.failed_children() == ctx.sync.failed_children() == {"bull:pages:2": "torn"}
    assert await ctx.remove_children() == ctx.sync.remove_children() == 0
    assert await FakeContext().children_values() == {}


async def test_emitted_data_is_copied() -> None:
    ctx, order = FakeContext(), {"id": 7}
    ctx.emit("order.paid", order)
    order["id"] = 8
    assert ctx.emitted == [("order.paid", {"id": 7})]
