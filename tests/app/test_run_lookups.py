"""Look-ups of runs by correlation id, attributes, failed step and error, on every store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import App, Context, SyncApp, flow, step
from penstock.core.errors import BadArgument, DefinitionError
from penstock.testing import FakeClock


@dataclass
class Order:
    id: int
    customer: str = "ada"
    vip: bool = False


class CardDeclined(Exception):
    pass


@flow("order", attributes={"customer": "customer", "order": "id", "vip": "vip", "note": "not.there"}, emits=["paid"])
async def order(input: Order, ctx: Context) -> None:
    ctx.emit("paid", {"id": input.id})


@step(on="paid")
async def charge(input: dict[str, Any]) -> None:
    if input["id"] % 2:
        raise CardDeclined(f"the card of order {input['id']} was declined by the bank")


@flow("typed", attributes=lambda order: {"id": order.id, "big": order.id > 5})
async def typed(input: Order) -> None: ...


@flow("broken", attributes=lambda input: {"items": [1]})
async def broken(input: Any) -> None: ...


@flow("parent")
async def parent(input: Any, ctx: Context) -> None:
    ctx.start(typed, {"id": 1}, key="child", correlation_id=ctx.correlation_id)


HANDLERS = (order, charge, typed, broken, parent)


async def found(app: Any, **which: Any) -> list[str]:
    return [row.id for row in await app.runs.list(**which)]


@pytest.mark.spec("000-7.10", "000-8.15")
async def test_runs_by_correlation_id(app: Callable[..., Any], clock: FakeClock) -> None:
    async with app(*HANDLERS, clock=clock) as one:
        for n in range(3):
            await one.start(typed, {"id": n}, key=f"r{n}", correlation_id="cart-7")
            await one.start(typed, {"id": n}, key=f"x{n}")
            clock.advance("1s")
        await one.start(typed, {"id": 9}, key="child", correlation_id="r1")
        await one.start(order, {"id": 9}, key="cart-7")
        clock.advance("1s")
        await one.start(typed, {"id": 9}, key="last", correlation_id="cart-7")
        assert await found(one, correlation_id="cart-7") == ["last", "cart-7", "r2", "r1", "r0"]
        assert await found(one, correlation_id="cart-7", flow="typed") == ["last", "r2", "r1", "r0"]
        assert await found(one, correlation_id="cart-7", flow="order", status="running") == ["cart-7"]
        assert await found(one, correlation_id="cart-7", since="500ms") == ["last"]
        assert await found(one, correlation_id="cart-7", where={"id": 9}) == ["last", "cart-7"]
        assert await found(one, correlation_id="r1") == ["child"], "r1 itself has another correlation id"
        assert await found(one, correlation_id="x1") == ["x1"]
        assert await found(one, correlation_id="nobody") == []
        pages: list[str] = []
        while page := await found(one, correlation_id="cart-7", before=pages[-1] if pages else None, limit=2):
            pages += page
        assert pages == ["last", "cart-7", "r2", "r1", "r0"]


async def test_runs_that_a_handler_starts_share_its_correlation_id(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one, one.workers.background():
        run = await one.start(parent, None)
        await one.runs.wait(run)
        from penstock.testing import until

        async def child() -> bool:
            return await one.store.run("child") is not None

        await until(child)
        assert sorted(await found(one, correlation_id=run)) == sorted(["child", run])


async def test_runs_by_declared_attributes(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one, one.workers.background():
        for n in range(3):
            await one.start(order, {"id": n, "customer": "ada" if n else "eve", "vip": n == 2}, key=f"o{n}")
        await one.start(typed, Order(7), key="t7", tags={"customer": "ada"})
        assert await found(one, attributes={"customer": "ada"}) == ["o2", "o1"]
        assert await found(one, attributes={"customer": "ada", "order": 2}) == ["o2"]
        assert await found(one, attributes={"order": "2"}) == await found(one, attributes={"vip": True}) == ["o2"]
        assert (
            await found(one, attributes={"id": 7, "big": True}) == await found(one, tags={"customer": "ada"}) == ["t7"]
        )
        assert await found(one, attributes={"note": "x"}) == await found(one, attributes={"customer": "bob"}) == []
        started = (await one.stream("o2"))[0]
        assert (started.meta or {})["attributes"] == {"customer": "ada", "order": "2", "vip": "true"}
        fork = await one.runs.fork("o2", started.id, key="fork")
        await fork.wait()
        assert await found(one, attributes={"order": 2}) == ["fork", "o2"]


async def test_runs_by_failed_step_and_error(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one, one.workers.background():
        for n in range(4):
            await one.run_to_end(order, {"id": n}, key=f"o{n}")
        assert await found(one, step="charge") == await found(one, error="card") == ["o3", "o1"]
        assert await found(one, step="charge", error="CARD declined 3") == ["o3"]
        assert await found(one, error="CardDeclined", status="failed", flow="order") == ["o3", "o1"]
        assert await found(one, step="charge", limit=1) == ["o3"]
        assert await found(one, step="charge", before="o3") == ["o1"]
        for which in ({"step": "order"}, {"error": "car"}, {"error": "card missing"}, {"error": "…"}):
            assert await found(one, **which) == []


async def test_a_redriven_failure_is_not_found(app: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    fails = True

    @flow("flaky")
    async def flaky(input: Any) -> None:
        if fails:
            raise ValueError("no luck")

    async with app(flaky) as one, one.workers.background():
        run, _ = await one.run_to_end(flaky, None)
        assert await found(one, error="luck") == [run]
        fails = False
        await one.runs.retry(run)
        assert await one.wait_for_end(run) == "completed"
        assert await found(one, error="luck") == await found(one, step="flaky") == []


async def test_invalid_attributes(memory: Callable[..., Any]) -> None:
    async with memory(*HANDLERS) as one:
        with pytest.raises(BadArgument, match=r"attributes\['items'\] must be a string, a number or a boolean"):
            await one.start(broken, 1)
        with pytest.raises(BadArgument, match="attributes must be a mapping"):
            await one.runs.list(attributes=["a"])
    for wrong in ({"a": 1}, ["a"], {"": "x"}):
        with pytest.raises(DefinitionError, match="attributes must be names with paths"):
            flow("wrong", attributes=wrong, step="wrong")(lambda input: None)  # type: ignore[arg-type]


async def test_an_imported_run_is_found(tmp_path: Path, memory: Callable[..., Any]) -> None:
    async with memory(*HANDLERS) as one, one.workers.background():
        await one.run_to_end(order, {"id": 1}, key="o1", correlation_id="c", tags={"shop": "rome"})
        line = await one.runs.export("o1")
    async with App(f"sqlite:///{tmp_path}/other.db", handlers=HANDLERS) as two:
        await two.runs.import_(line)
        for which in (
            {"correlation_id": "c"},
            {"tags": {"shop": "rome"}},
            {"attributes": {"order": 1}},
            {"step": "charge"},
        ):
            assert await found(two, **which) == ["o1"]


def test_look_ups_with_the_sync_app() -> None:
    with SyncApp(":memory:", handlers=HANDLERS) as app:
        run = app.start(order, {"id": 7}, correlation_id="c")
        assert [row.id for row in app.runs.list(correlation_id="c", attributes={"order": 7})] == [run]
