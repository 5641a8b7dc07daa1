"""Ordered keys: strict order per key over retries, delays, dead letters and redrives, on every store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import Node, Permanent, Retry, flow, job
from penstock.core.errors import BadArgument, DefinitionError, RunError
from penstock.handlers.module_contract import read_module
from penstock.ports.unit import JobState
from penstock.schedules.spec import BadSchedule
from penstock.testing.until import until

FAST = {"attempts": 3, "backoff": {"type": "fixed", "delay": "20ms", "jitter": False}}


@dataclass
class Order:
    customer: str
    n: int


class Log:
    """Records executions, and whether two of one key overlap."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.overlaps = 0
        self._running: set[str] = set()

    async def run(self, key: str, what: Any) -> None:
        self.overlaps += key in self._running
        self._running.add(key)
        await asyncio.sleep(0.001)
        self._running.discard(key)
        self.done.append(what)


async def test_a_retried_job_is_not_overtaken(app: Any) -> None:
    log = Log()

    @job(queue="mail", retry=FAST)
    async def send(n: int, ctx: Any) -> None:
        if n == 2 and ctx.attempt < 3:
            raise Retry("later")
        await log.run("ada", n)

    async with app(send) as a, a.workers.background():
        ids = await a.jobs.enqueue_many("mail", [1, 2, 3, 4, 5], order_key="ada")
        await a.jobs.result(ids[-1], timeout="20s")
    assert (log.done, log.overlaps) == ([1, 2, 3, 4, 5], 0)


async def test_other_keys_are_not_held_up(app: Any) -> None:
    blocked, log = asyncio.Event(), Log()

    @job(queue="mail", order_key="customer")
    async def send(order: Order) -> None:
        if order == Order("ada", 1):
            await blocked.wait()
        await log.run(order.customer, (order.customer, order.n))

    async with app(send) as a, a.workers.background():
        ids = await a.jobs.enqueue_many("mail", [Order(name, n) for n in (1, 2, 3) for name in ("ada", "bob")])
        for id in ids[1::2]:
            await a.jobs.result(id, timeout="20s")
        assert log.done == [("bob", n) for n in (1, 2, 3)]
        assert [(await a.jobs.get(id)).state for id in ids[::2]] == ["active", "held", "held"]
        blocked.set()
        await a.jobs.result(ids[4], timeout="20s")
    assert log.done[3:] == [("ada", n) for n in (1, 2, 3)]
    assert log.overlaps == 0


async def test_two_apps_add_and_run_jobs_of_the_same_keys(shared: Any) -> None:
    log = Log()

    @job(queue="mail", order_key=lambda input: input[0])
    async def send(input: list[Any]) -> None:
        await log.run(input[0], tuple(input))

    async with shared(send) as a, shared(send) as b, a.workers.background(), b.workers.background():
        ids: list[str] = []

        async def add(app: Any, name: str) -> None:
            for n in range(40):
                ids.append(await app.enqueue("mail", [f"k{n % 2}", name, n]))

        await asyncio.gather(add(a, "a"), add(b, "b"))
        for id in ids:
            await a.jobs.result(id, timeout="20s")
    assert log.overlaps == 0
    for name in ("a", "b"):
        for key in ("k0", "k1"):
            mine = [n for of, by, n in log.done if (of, by) == (key, name)]
            assert mine == sorted(mine)
            assert len(mine) == 20


@pytest.mark.parametrize("key", ["customer", lambda order: order.customer])
async def test_the_key_is_a_path_or_a_function_of_the_typed_input(memory: Any, key: Any) -> None:
    @job(queue="mail", order_key=key)
    async def send(order: Order) -> None: ...

    async with memory(send) as a:
        first, second = [await a.enqueue(send, Order("ada", n)) for n in (1, 2)]
        other = await a.enqueue(send, Order("ada", 3), order_key="own")
        view = await a.jobs.get(second)
        assert (view.state, view.order_key, view.waits_for) == (JobState.HELD, "ada", first)
        assert (await a.jobs.get(other)).order_key == "own"


async def test_a_function_may_leave_a_job_without_an_order(memory: Any) -> None:
    @job(queue="mail", order_key=lambda input: input.get("to"))
    async def send(input: Any) -> None: ...

    async with memory(send) as a:
        ids = [await a.enqueue("mail", {}) for _ in range(2)]
        assert [(await a.jobs.get(id)).state for id in ids] == ["waiting", "waiting"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("to.id", "the value at 'to.id', the order_key of send .* must be a string or a whole number, got None"),
        (lambda input: input["missing"], "the order_key function of send .* failed for this input: KeyError"),
        (lambda _: 7, "order_key must be a string of 1 to 200 printable characters, got 7"),
    ],
)
async def test_an_input_without_a_key_is_refused(memory: Any, key: Any, message: str) -> None:
    @job(queue="mail", order_key=key)
    async def send(input: Any) -> None: ...

    async with memory(send) as a:
        with pytest.raises(BadArgument, match=message):
            await a.enqueue("mail", {"to": {}})


@pytest.mark.parametrize("key", ["", 7, "x" * 201, "a\nb"])
async def test_a_bad_key_is_refused(memory: Any, key: Any) -> None:
    async with memory() as a:
        with pytest.raises(BadArgument, match="order_key must be a string"):
            await a.enqueue("mail", 1, order_key=key)


async def test_a_delayed_job_holds_its_followers(kit: Any) -> None:
    done: list[int] = []

    @job(queue="mail")
    async def send(n: int) -> None:
        done.append(n)

    async with kit(send) as a:
        await a.enqueue("mail", 1, order_key="ada", delay="1h")
        await a.enqueue("mail", 2, order_key="ada")
        await a.advance("59m")
        assert done == []
        await a.advance("1m")
    assert done == [1, 2]


async def test_a_redriven_dead_letter_goes_to_the_end_of_its_key(app: Any) -> None:
    done: list[Any] = []
    broken, release = [True], asyncio.Event()

    @job(queue="mail", retry=1)
    async def send(n: int) -> None:
        if n == 1 and broken:
            raise Permanent("no")
        if n == 2:
            await release.wait()
        done.append(n)

    async with app(send) as a, a.workers.background():
        ids = await a.jobs.enqueue_many("mail", [1, 2, 3], order_key="ada")
        await a.wait_for_state(ids[1], "active")
        broken.clear()
        redriven = (await a.dead_letters.redrive(ids[0])).sent
        (new,) = redriven.values()
        view = await a.jobs.get(new)
        assert (view.order_key, view.waits_for, view.state) == ("ada", ids[2], "held")
        release.set()
        await a.jobs.result(new, timeout="20s")
    assert done == [2, 3, 1]


async def test_a_held_job_cannot_be_promoted(app: Any) -> None:
    async with app() as a:
        ids = await a.jobs.enqueue_many("mail", [1, 2], order_key="ada", delay="1h")
        with pytest.raises(RunError, match=f"it waits for job '{ids[0]}', which has the same order key 'ada'"):
            await a.jobs.promote(ids[1])
        assert await a.jobs.promote(ids[0])


async def test_a_retried_job_goes_to_the_end_of_its_key(app: Any) -> None:
    done: list[int] = []

    @job(queue="mail", retry=1)
    async def send(n: int) -> None:
        if n == 1 and not done:
            raise Permanent("no")
        done.append(n)

    async with app(send) as a:
        ids = await a.jobs.enqueue_many("mail", [1, 2, 3], order_key="ada")
        async with a.workers.background():
            await a.jobs.result(ids[2], timeout="20s")
        await a.enqueue("mail", 4, order_key="ada")
        assert await a.jobs.retry(ids[0])
        async with a.workers.background():
            await a.jobs.result(ids[0], timeout="20s")
    assert done == [2, 3, 4, 1]


async def test_a_job_of_a_tree_has_no_order_key(memory: Any) -> None:
    @job(queue="mail", order_key="to")
    async def send(input: Any) -> None: ...

    async with memory(send) as a:
        with pytest.raises(BadArgument, match="has an order_key and cannot be part of a job tree; enqueue it alone"):
            await a.jobs.enqueue_tree(Node("books", children=[Node(send, {"to": "ada"})]))


async def test_a_schedule_enqueues_with_its_order_key(app: Any) -> None:
    async with app(orders) as a:
        view = await a.schedules.add("daily", queue="mail", every="1h", order_key="ada")
        assert view.order_key == "ada"
        first, second = [await a.schedules.run_now("daily") for _ in range(2)]
        assert (await a.jobs.get(second)).waits_for == first
        with pytest.raises(BadSchedule, match="order_key= only applies to queue="):
            await a.schedules.add("weekly", flow=orders, every="1h", order_key="ada")


async def test_a_slot_replaces_a_held_job(memory: Any, clock: Any) -> None:
    async with memory(clock=clock) as a:
        head = await a.enqueue("mail", 1, order_key="ada")
        await a.schedules.add("daily", queue="mail", every="1m", order_key="ada", overlap="replace")
        for _ in range(2):
            clock.advance("1m")
            await a._schedule_service.scheduler.fire_due()
        held = await a.jobs.list("mail", "held")
        assert [(view.waits_for, view.id.startswith("daily.")) for view in held] == [(head, True)]


@flow("orders")
async def orders() -> None: ...


@pytest.mark.parametrize("option", ["orderKey", "order_key"])
def test_a_module_declares_its_order_key(option: str) -> None:
    definition: Any = read_module(lambda input: input, "mail", {option: "to"}, "mail", "mail.py")
    assert definition.handler.make_order_key({"to": "ada"}) == "ada"
    with pytest.raises(DefinitionError, match="only applies to jobs outside a flow"):
        read_module(lambda input: input, "mail", {option: "to", "flow": {"id": "x", "role": "main"}}, "mail", "m.py")


async def test_jobs_of_a_transaction_keep_their_order(memory: Any, tmp_path: Any) -> None:
    path = tmp_path / "shop.db"
    async with memory() as a:
        with sqlite3.connect(path) as connection:
            connection.execute(a.outbox.sql("sqlite"))
            ids = [await a.enqueue("mail", n, order_key="ada", tx=connection) for n in range(3)]
        await a.outbox.drain(lambda: sqlite3.connect(path))
        assert [(await a.jobs.get(id)).waits_for for id in ids] == [None, ids[0], ids[1]]


async def test_a_handler_enqueues_in_order(app: Any) -> None:
    done: list[int] = []

    @job(queue="split")
    async def split(count: int, ctx: Any) -> None:
        for n in range(count):
            ctx.enqueue("part", n, order_key="ada")

    @job(queue="part", retry=FAST)
    async def part(n: int, ctx: Any) -> None:
        if n == 1 and ctx.attempt < 3:
            raise Retry("later")
        done.append(n)

    async with app(split, part) as a, a.workers.background():
        await a.jobs.result(await a.enqueue("split", 4), timeout="20s")

        async def all_done() -> bool:
            return len(done) == 4

        await until(all_done, 20)
    assert done == [0, 1, 2, 3]


async def test_a_sync_caller_can_order_jobs(tmp_path: Any, app_factory: Callable[..., Any]) -> None:
    from penstock import SyncApp

    with SyncApp(f"sqlite:///{tmp_path}/p.db", handlers=[]) as a:
        first, second = [a.enqueue("mail", n, order_key="ada") for n in range(2)]
        assert a.jobs.get(second).waits_for == first
