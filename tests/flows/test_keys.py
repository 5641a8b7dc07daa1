"""Idempotency keys that flows and jobs declare: they hold on every path that starts a run or adds a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from penstock import Node, flow, job
from penstock.app.bridges import AppBridgeHost
from penstock.jobs.engine import JobOptions


@dataclass
class DataclassOrder:
    id: int
    note: str = ""


class StructOrder(msgspec.Struct):
    id: int
    note: str = ""


class ModelOrder(pydantic.BaseModel):
    id: int
    note: str = ""


MODELS = [DataclassOrder, StructOrder, ModelOrder]
typed = pytest.mark.parametrize("model", MODELS, ids=["dataclass", "msgspec", "pydantic"])


def make_bill(key: Any, start_on: Any = None, model: Any = dict) -> Any:
    async def bill(order: Any) -> Any:
        return order if isinstance(order, dict) else order.note

    bill.__annotations__["order"] = model
    return flow("bill", key=key, start_on=start_on, emits=[])(bill)


def make_mail(key: Any, model: Any = dict) -> Any:
    async def mail(order: Any) -> None: ...

    mail.__annotations__["order"] = model
    return job(queue="mail", key=key)(mail)


def by_id(order: Any) -> str:
    return f"order-{order['id'] if isinstance(order, dict) else order.id}"


async def runs(app: Any) -> list[str]:
    await app.settle()
    return sorted(row.id for row in await app.runs.list(flow="bill"))


# Events


async def test_two_events_with_one_key_start_one_run(kit: Any) -> None:
    async with kit(make_bill(by_id, "order.placed")) as app:
        await app.settle()
        for note in ("one", "two"):
            await app.emit("order.placed", {"id": 7, "note": note})
        await app.emit("order.placed", {"id": 8})
        assert await runs(app) == ["order-7", "order-8"]
        assert await app.result("order-7") == {"id": 7, "note": "one"}
        assert await app.start("bill", {"id": 7}) == "order-7"
        assert len(await runs(app)) == 2


async def test_the_key_of_an_event_is_made_from_the_mapped_input(kit: Any) -> None:
    on = {"kind": "order.placed", "map": lambda event: {"id": event.data["number"]}}
    async with kit(make_bill(by_id, on)) as app:
        await app.settle()
        for n in range(2):
            await app.emit("order.placed", {"number": 7, "n": n})
        assert await runs(app) == ["order-7"]


async def test_a_key_from_a_hash_is_the_same_for_an_event_and_a_start(kit: Any) -> None:
    async with kit(make_bill("auto", "order.placed")) as app:
        await app.settle()
        for _ in range(2):
            await app.emit("order.placed", {"id": 7})
        (run,) = await runs(app)
        assert await app.start("bill", {"id": 7}) == run


async def test_an_event_with_an_invalid_input_starts_a_run_that_fails(kit: Any) -> None:
    async with kit(make_bill(by_id, "order.placed", StructOrder)) as app:
        await app.settle()
        await app.emit("order.placed", {"id": "seven"})
        (run,) = await runs(app)
        view = await app.runs.get(run)
        assert (view.status, view.steps["bill"].code) == ("failed", "schema_violation")


# The function of a key receives what the handler receives


@typed
async def test_the_key_of_a_run_is_made_from_the_typed_input(kit: Any, model: Any) -> None:
    async with kit(make_bill(by_id_of(model), "order.placed", model)) as app:
        await app.settle()
        assert await app.start("bill", {"id": 7}) == "order-7"
        assert await app.start("bill", model(id=8)) == "order-8"
        for _ in range(2):
            await app.emit("order.placed", {"id": 9})
        assert await runs(app) == ["order-7", "order-8", "order-9"]


@typed
async def test_the_key_of_a_job_is_made_from_the_typed_input(kit: Any, model: Any) -> None:
    async with kit(make_mail(by_id_of(model), model)) as app:
        assert await app.enqueue("mail", {"id": 1}) == "order-1"
        assert await app.jobs.enqueue_many("mail", [{"id": 1}, model(id=2), {"id": 2}]) == [
            "order-1",
            "order-2",
            "order-2",
        ]
        tree = await app.jobs.enqueue_tree(Node("mail", {"id": 3}, children=[Node("mail", {"id": 4})]))
        assert (tree.id, tree.children[0].id) == ("order-3", "order-4")
        await app.settle()
        done = await app.jobs.list("mail", "completed")
        assert sorted(row.id for row in done) == ["order-1", "order-2", "order-3", "order-4"]


@typed
async def test_the_rate_key_is_made_from_the_typed_input(memory: Any, model: Any) -> None:
    async def call(order: Any) -> None: ...

    call.__annotations__["order"] = model
    limit = {"max": 1, "duration": "1h", "per_key": True}
    async with memory(job(queue="calls", rate_limit=limit, rate_key=by_id_of(model))(call)) as app:
        assert app._transactions.direct.jobs.build("calls", {"id": 7}, JobOptions()).rate_key == "order-7"


def by_id_of(model: Any) -> Any:
    def key(order: Any) -> str:
        assert isinstance(order, model), order
        return f"order-{order.id}"

    return key


# Other paths


async def test_a_key_of_the_caller_takes_the_place_of_the_declared_one(kit: Any) -> None:
    async with kit(make_bill(by_id), make_mail(by_id)) as app:
        assert await app.start("bill", {"id": 7}, key="mine") == "mine"
        assert await app.enqueue("mail", {"id": 7}, key="my-mail") == "my-mail"
        tree = await app.jobs.enqueue_tree(Node("mail", {"id": 7}, key="root", children=[Node("mail", {}, key="leaf")]))
        assert (tree.id, tree.children[0].id) == ("root", "leaf")


async def test_messages_of_a_bridge(kit: Any) -> None:
    """A message that is delivered again is known by its id; two messages with one declared key start one run."""
    async with kit(make_bill(by_id), make_mail(by_id)) as app:
        host = AppBridgeHost(app)
        for message in ("m-1", "m-2"):
            await host.start("bill", {"id": 7}, message)
            await host.enqueue("mail", None, {"id": 7}, message)
        assert await runs(app) == ["order-7"]
        assert [row.id for row in await app.jobs.list("mail", "completed")] == ["order-7"]
    async with kit(make_bill(None), make_mail(None)) as app:
        host = AppBridgeHost(app)
        for _ in range(2):
            await host.start("bill", {"id": 7}, "m-3")
            await host.enqueue("mail", None, {"id": 7}, "m-3")
        assert "m-3" in await runs(app)
        assert "m-3" in [row.id for row in await app.jobs.list("mail", "completed")]


async def test_each_slot_of_a_schedule_starts_a_run(kit: Any) -> None:
    async with kit(make_bill(by_id)) as app:
        await app.schedules.add("daily", flow="bill", input={"id": 7}, every="1d")
        await app.settle()
        await app.advance("1d")
        await app.advance("1d")
        started = await runs(app)
        assert len(started) >= 2
        assert all(run.startswith("daily.") for run in started)
        assert await app.schedules.run_now("daily") in await runs(app)


async def test_a_replay_starts_a_new_run_although_the_flow_declares_a_key(kit: Any) -> None:
    async with kit(make_bill(by_id)) as app:
        run = await app.start("bill", {"id": 7})
        await app.finish(run)
        again = [await app.runs.replay(run), await app.runs.replay(run), await app.runs.replay(run, key="third")]
        assert len({run, *again}) == 4
        assert again[2] == "third"
        await app.settle()
        assert [await app.result(id) for id in again] == [{"id": 7}] * 3
        assert await app.start("bill", {"id": 7}) == run


# Events with a key


async def test_emit_returns_whether_the_event_is_new(kit: Any) -> None:
    @flow("listener", accepts=["paid"], emits=[])
    async def listener(input: Any) -> None: ...

    async with kit(listener) as app:
        run = await app.start(listener, None, delay="1h")
        assert [await app.emit("tick", n, key="k") for n in range(3)] == [True, False, False]
        assert [await app.emit("paid", n, run=run, key="k") for n in range(3)] == [True, False, False]
        assert await app.emit("tick") is True
        assert [event.data for event in await app.events.read("nq:global")] == [0, None]
        assert [event.data for event in await app.events.read_all(f"nq:flow:{run}") if event.kind == "paid"] == [0]
