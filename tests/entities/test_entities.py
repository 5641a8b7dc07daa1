"""Entities on every store: events, transitions, order, failures."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import Context, RetryPolicy
from penstock.app import entity_results
from penstock.core.errors import BadArgument, EntityFailed, EntityRefused, SchemaViolation, UnknownEntity
from penstock.core.events import Event
from penstock.core.retry import Backoff
from penstock.entities import Rejected, States, Transition, commands, entity, on_event, on_status_changed
from penstock.testing import until

AT_ONCE = RetryPolicy(3, Backoff("fixed", 1, jitter=False))
seen: list[Any] = []
TEST_TIMEOUT_S = 20


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@dataclass
class Price:
    amount: int


@dataclass
class Order:
    price: int = 0
    count: int = 0


def is_large(order: Order) -> bool:
    return order.price > 10


async def set_price(order: Order, payload: Price) -> None:
    order.price = payload.amount


async def count_one(order: Order) -> Order:
    before = order.count
    await asyncio.sleep(0)
    return Order(order.price, before + 1)


async def fail(order: Order, payload: Any, ctx: Context) -> None:
    seen.append((payload, ctx.attempt))
    order.count += 100
    if payload == "poison" or ctx.attempt < 3:
        raise OSError("the network is away")


def reject(order: Order) -> None:
    order.count += 100
    raise Rejected("out of stock")


@entity("order", retry=AT_ONCE)
class OrderMachine:
    data = Order
    events = {"price": Price}
    states = States("pending", idles=["pending", "processing"], finals=["done", "cancelled"], failed="broken")
    transitions = [
        Transition("price", "pending", "pending", actions=[set_price]),
        Transition("submit", "pending", "processing", conditions=[is_large]),
        Transition(["count", "again"], ["pending", "processing"], "processing", actions=[count_one]),
        Transition("shaky", ["pending", "processing"], "processing", actions=[fail]),
        Transition("reject", "pending", "processing", actions=[reject]),
        Transition("finish", "processing", "done"),
        Transition("cancel", ["pending", "processing", "broken"], "cancelled"),
    ]


@pytest.mark.spec("002-1.1")
async def test_an_event_moves_an_entity(app: Any) -> None:
    async with app(OrderMachine) as app, app.workers.background():
        priced = await app.entities.emit("urn:order:7", "price", {"amount": 100})
        assert (await priced.result(timeout=TEST_TIMEOUT_S)).to == "pending"
        submitted = await app.entities.emit("urn:order:7", "submit")
        done = await submitted.result(timeout=TEST_TIMEOUT_S)
        assert (done.from_, done.to, done.n) == ("pending", "processing", 2)
        view = await app.entities.get("urn:order:7")
        assert (view.id, view.urn, view.type, view.status) == (
            "x.urn--order--7",
            "urn:order:7",
            "order",
            "processing",
        )
        assert view.data == {"price": 100, "count": 0}
        assert await app.entities.data("urn:order:7") == Order(100)
        events = await app.events.read_all("nq:entity:x.urn--order--7")
        assert [event.kind for event in events] == [
            *("entity.created", "entity.received", "entity.started", "entity.transitioned"),
            *("entity.received", "entity.started", "entity.transitioned"),
        ]
        assert await app.store.stuck_runs() == []


async def test_concurrent_events_of_one_urn_are_applied_one_after_the_other(app: Any) -> None:
    async with app(OrderMachine) as app, app.workers.background():
        emitted = await asyncio.gather(*(app.entities.emit("order-1", "count") for _ in range(200)))
        assert sorted(one.n for one in emitted) == list(range(1, 201))
        await asyncio.gather(*(one.result(timeout=TEST_TIMEOUT_S) for one in emitted))
        view = await app.entities.get("order-1")
        assert view.data["count"] == 200
        assert [one.n for one in view.history] == list(range(1, 201))
        assert await app.store.states("run/order-1/") == []
        assert view.waiting == {}


async def test_a_retried_event_keeps_its_place(app: Any) -> None:
    async with app(OrderMachine) as app, app.workers.background():
        shaky = await app.entities.emit("order-1", "shaky", "x")
        after = await app.entities.emit("order-1", "count")
        await after.result(timeout=TEST_TIMEOUT_S)
        assert (await shaky.result(timeout=TEST_TIMEOUT_S)).to == "processing"
        view = await app.entities.get("order-1")
        assert [one.event for one in view.history] == ["shaky", "count"]
        assert view.data["count"] == 101, "only the successful attempt counts"
        assert [attempt for _, attempt in seen] == [1, 2, 3]


async def test_a_poison_event_makes_one_dead_letter_and_leaves_the_entity_untouched(app: Any) -> None:
    async with app(OrderMachine) as app, app.workers.background():
        await (await app.entities.emit("order-1", "count")).result(timeout=TEST_TIMEOUT_S)
        poison = await app.entities.emit("order-1", "shaky", "poison")
        after = await app.entities.emit("order-1", "count")
        await after.result(timeout=TEST_TIMEOUT_S)
        with pytest.raises(EntityFailed, match="the network is away"):
            await poison.result(timeout=TEST_TIMEOUT_S)
        assert (await app.entities.get("order-1")).data["count"] == 2
        [letter] = await app.list_dead_letters()
        assert (letter.step, letter.original_data, letter.attempts_made) == ("shaky", "poison", 3)


async def test_a_dead_letter_is_emitted_again(app: Any) -> None:
    async with app(OrderMachine) as app, app.workers.background():
        poison = await app.entities.emit("order-1", "shaky", "poison")
        with pytest.raises(EntityFailed):
            await poison.result(timeout=TEST_TIMEOUT_S)
        done = await app.dead_letters.redrive("order-1.event.1", input="fine")
        assert done.sent == {"order-1.event.1.dlq": "order-1.event.2"}
        assert (await app.entities.wait_for("order-1", "processing", timeout=TEST_TIMEOUT_S)).waiting == 0
        assert await app.list_dead_letters() == []


async def test_a_rejected_event_leads_to_the_failed_state_without_its_changes(app: Any) -> None:
    async with app(OrderMachine) as app, app.workers.background():
        done = await (await app.entities.emit("order-1", "reject")).result(timeout=TEST_TIMEOUT_S)
        assert (done.to, done.reason) == ("broken", "out of stock")
        assert (await app.entities.get("order-1")).data["count"] == 0
        assert await app.list_dead_letters() == []


async def test_an_event_that_a_state_does_not_accept_is_refused(app: Any) -> None:
    async with app(OrderMachine) as app, app.workers.background():
        with pytest.raises(EntityRefused, match="no condition for event 'submit'"):
            await (await app.entities.emit("order-1", "submit")).result(timeout=TEST_TIMEOUT_S)
        with pytest.raises(EntityRefused, match="accepts: price, submit, count"):
            await (await app.entities.emit("order-1", "finish")).result(timeout=TEST_TIMEOUT_S)
        assert (await app.entities.get("order-1")).refused == 2


async def test_a_final_state_accepts_nothing(app: Any) -> None:
    async with app(OrderMachine) as app, app.workers.background():
        await (await app.entities.emit("order-1", "count")).result(timeout=TEST_TIMEOUT_S)
        emitted = [await app.entities.emit("order-1", event) for event in ("finish", "count", "count")]
        assert (await emitted[0].result(timeout=TEST_TIMEOUT_S)).to == "done"
        for one in emitted[1:]:
            with pytest.raises(EntityRefused, match="'done' is final"):
                await one.result(timeout=TEST_TIMEOUT_S)
        await until(lambda: _is_closed(app, "order-1"), TEST_TIMEOUT_S)
        late = await app.entities.emit("order-1", "count")
        with pytest.raises(EntityRefused, match="'done' is final"):
            await late.result(timeout=TEST_TIMEOUT_S)
        assert (await app.entities.get("order-1")).data["count"] == 1


async def _is_closed(app: Any, id: str) -> bool:
    return bool((await app.store.run(id)).closed)


async def test_a_key_has_an_effect_once(app: Any) -> None:
    async with app(OrderMachine) as app, app.workers.background():
        first = await app.entities.emit("order-1", "count", key="k")
        again = await app.entities.emit("order-1", "count", key="k")
        assert (first.is_new, again.is_new) == (True, False)
        assert await again.result(timeout=TEST_TIMEOUT_S) == await first.result(timeout=TEST_TIMEOUT_S)
        assert (await app.entities.get("order-1")).data["count"] == 1
        await (await app.entities.emit("order-1", "finish", key="end")).result(timeout=TEST_TIMEOUT_S)
        await until(lambda: _is_closed(app, "order-1"), TEST_TIMEOUT_S)
        repeated = await app.entities.emit("order-1", "finish", key="end")
        assert not repeated.is_new, "a repeated message is not a refusal"
        assert (await repeated.result(timeout=TEST_TIMEOUT_S)).to == "done"


@pytest.mark.spec("002-1.5")
async def test_a_bad_payload_is_refused_on_entry(app: Any) -> None:
    async with app(OrderMachine) as app:
        with pytest.raises(SchemaViolation, match="the payload of 'price'"):
            await app.entities.emit("order-1", "price", {"amount": "much"})
        with pytest.raises(BadArgument, match="did you mean 'submit'"):
            await app.entities.emit("order-1", "submitt")
        with pytest.raises(UnknownEntity, match="pass type="):
            await app.entities.emit("thing 1", "count")
        with pytest.raises(UnknownEntity, match="did you mean 'order'"):
            await app.entities.emit("thing 1", "count", type="ordr")
        with pytest.raises(UnknownEntity):
            await app.entities.get("order-1")


class Hooks:
    calls: list[str]


@entity("chain", retry=AT_ONCE)
class Chain:
    states = States("new", idles=["new", "rest"], finals=["end"], failed="bad")
    transitions = [
        Transition("go", "new", "checked"),
        Transition("slow", "checked", "manual", conditions=[lambda data: data.get("slow", False)]),
        Transition("fast", "checked", "rest", actions=[lambda data: data.update(fast=True)]),
        Transition("back", "manual", "rest"),
        Transition("stop", "rest", "end"),
    ]

    @on_event("go", order=2)
    async def second(self, data: dict[str, Any], payload: Any) -> None:
        data["order"] = [*data.get("order", []), "second"]

    @on_event("go", order=1)
    def first(self, data: dict[str, Any], payload: Any, ctx: Any) -> None:
        data.update(payload or {})
        data["order"] = [*data.get("order", []), "first"]
        ctx.emit("chain.went", {"by": "first"})

    @on_status_changed("new", "checked", fail_on_error=False)
    def broken(self, data: dict[str, Any]) -> None:
        raise ValueError("the mail server is away")

    @on_status_changed(to="rest")
    def arrived(self, data: dict[str, Any]) -> None:
        if data.get("reject"):
            raise Rejected("no room")
        data["order"].append("arrived")

    def fallback(self, data: dict[str, Any], event: str, payload: Any) -> dict[str, Any]:
        return {**data, "fallback": [event, payload]}


async def test_states_that_do_not_rest_are_followed_automatically(app: Any) -> None:
    async with app(Chain) as app, app.workers.background():
        fast = await (await app.entities.emit("chain-1", "go")).result(timeout=TEST_TIMEOUT_S)
        assert fast.path == ["new", "checked", "rest"]
        assert (await app.entities.data("chain-1")) == {"fast": True, "order": ["first", "second", "arrived"]}
        slow = await (await app.entities.emit("chain-2", "go", {"slow": True})).result(timeout=TEST_TIMEOUT_S)
        assert slow.path == ["new", "checked", "manual", "rest"]
        assert "fast" not in await app.entities.data("chain-2")
        events = await app.events.read_all("nq:entity:chain-1")
        [moved] = [event for event in events if event.kind == "entity.transitioned"]
        assert moved.data["problems"] == ["broken: ValueError: the mail server is away"]
        assert "chain.went" in [event.kind for event in events]


async def test_a_hook_may_reject_and_a_fallback_takes_the_rest(app: Any) -> None:
    async with app(Chain) as app, app.workers.background():
        done = await (await app.entities.emit("chain-1", "go", {"reject": True})).result(timeout=TEST_TIMEOUT_S)
        assert (done.path, done.reason) == (["new", "checked", "rest", "bad"], "no room")
        kept = await (await app.entities.emit("chain-2", "stop", 7)).result(timeout=TEST_TIMEOUT_S)
        assert (kept.kind, await app.entities.data("chain-2")) == ("kept", {"fallback": ["stop", 7]})


@pytest.mark.spec("002-9.2")
async def test_a_delayed_event_arrives_when_it_is_due(kit: Any) -> None:
    async with kit(OrderMachine) as app:
        later = await app.entities.emit("order-1", "count", delay="1h", key="later")
        assert later.job is not None
        assert (await later.result(timeout="2h")).to == "processing"


async def test_entities_are_found_by_type_and_state(app: Any) -> None:
    async with app(OrderMachine, Chain) as app, app.workers.background():
        for n in range(5):
            await (await app.entities.emit(f"order-{n}", "count")).result(timeout=TEST_TIMEOUT_S)
        await app.entities.create("urn:chain:ä b", {"x": 1})
        await (await app.entities.emit("order-4", "cancel")).result(timeout=TEST_TIMEOUT_S)
        assert [one.urn for one in await app.entities.list(type="order", status="cancelled")] == ["order-4"]
        first = await app.entities.list(limit=2)
        assert [one.urn for one in first] == ["urn:chain:ä b", "order-4"]
        assert [one.urn for one in await app.entities.list(type="order", before="order-3")] == [
            "order-2", "order-1", "order-0"
        ]  # fmt: skip
        counts = await app.entities.counts("order")
        assert counts == {"pending": 0, "processing": 4, "done": 0, "cancelled": 1, "broken": 0}
        summary = await app.entities.wait_for("order-4", "cancelled", timeout=TEST_TIMEOUT_S)
        assert (summary.closed, summary.waiting) == (True, 0)


async def test_an_entity_as_it_was(app: Any) -> None:
    async with app(OrderMachine) as app, app.workers.background():
        for event in ("count", "count", "finish"):
            await (await app.entities.emit("order-1", event)).result(timeout=TEST_TIMEOUT_S)
        events = await app.events.read_all("nq:entity:order-1")
        moved = [event for event in events if event.kind == "entity.transitioned"]
        then = await app.entities.get("order-1", at=moved[0].id)
        assert (then.status, then.data["count"]) == ("processing", 1)
        assert (await app.entities.get("order-1")).status == "done"
        assert [one.event for one in await app.entities.history("order-1", limit=2)] == ["finish", "count"]


def test_a_reader_pauses_while_other_events_come_first() -> None:
    def end(n: int, ms: int) -> None:
        reader.remember(n, Event(id=f"{ms}-{n}", ts="", kind="entity.transitioned", subject="e", meta={"n": n}))

    reader = entity_results._Reader(0)
    reader.waiting[20] = []
    assert reader.pause_s == 0.0  # the pace is not known
    end(1, 1000)
    assert reader.pause_s == 0.0
    end(2, 1004)
    assert reader.pause_s == pytest.approx(17 * 0.004 / 2)
    for n in range(3, 20):
        end(n, 1004 + 10 * (n - 2))
    assert reader.pause_s == 0.0  # it is the next one
    reader.waiting = {1_000_000: []}
    assert reader.pause_s == entity_results.MAX_PAUSE_S


async def test_a_result_that_a_reader_has_forgotten_is_read_again(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entity_results, "MAX_ENDED", 3)
    async with memory(OrderMachine) as app, app.workers.background():
        never = asyncio.create_task((await app.entities.emit("order-1", "count", delay="1h")).result())
        emitted = [await app.entities.emit("order-1", "count") for _ in range(20)]
        held = asyncio.create_task(app.entities._results.wait("nq:entity:order-1", 1_000, emitted[0].cursor))
        await emitted[-1].result(timeout=TEST_TIMEOUT_S)
        [reader] = app.entities._results._readers.values()
        await until(lambda: len(reader.ended) == 3 and 20 in reader.ended, TEST_TIMEOUT_S)
        done = [await one.result(timeout=TEST_TIMEOUT_S) for one in emitted]
        assert [one.n for one in done] == list(range(1, 21))
        for task in (never, held):
            task.cancel()
        await asyncio.gather(never, held, return_exceptions=True)


async def test_the_record_of_an_entity_does_not_grow_with_its_events(memory: Any) -> None:
    async with memory(OrderMachine) as app, app.workers.background():
        sizes = []
        for events in (20, 300):
            emitted = [await app.entities.emit("order-1", "count") for _ in range(events)]
            await emitted[-1].result(timeout=TEST_TIMEOUT_S)
            sizes.append(len((await app.store.run("order-1")).record))
            assert await app.store.states("run/order-1/") == []
        assert sizes[1] - sizes[0] <= 10, "its numbers have more digits, and that is all"


async def test_without_the_mailbox_events_are_lost(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant of the test of concurrent events: each event gets a job at once."""
    real = commands.on_emit

    def on_emit(record: Any, *args: Any, **options: Any) -> Any:
        record.current = None
        return real(record, *args, **options)

    monkeypatch.setattr(commands, "on_emit", on_emit)
    async with memory(OrderMachine) as app:
        for _ in range(20):
            await app.entities.emit("order-1", "count")

        async def is_idle() -> bool:
            return not any(one.counts.get(state) for one in await app.store.queues() for state in ("waiting", "active"))

        async with app.workers.background():
            await until(is_idle, TEST_TIMEOUT_S)
        assert (await app.entities.get("order-1")).data["count"] < 20
