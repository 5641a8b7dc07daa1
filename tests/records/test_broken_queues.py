"""Keys of BullMQ that another program wrote as another type: their queue stops alone, and continues once they are fixed."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import redis_server
from damage import Damage
from penstock import Context, Node, flow, job, step
from penstock.app.jobs import UnknownJob
from penstock.core.errors import BrokenQueue
from penstock.ports.store import Retention
from penstock.testing.until import until

TEST_TIMEOUT_S = 20
# Keys without which a queue cannot work. A set in place of `stalled` is what it is: that key becomes a string.
KEYS = ("wait", "active", "delayed", "meta", "id", "prioritized", "pc", "waiting-children", "stalled")
gates: dict[str, asyncio.Event] = {}
calls: Counter[str] = Counter()


@pytest.fixture
def damage() -> Damage:
    gates.clear()
    calls.clear()
    return Damage(redis_server.url())


def job_of(queue: str) -> Any:
    """Return a handler that waits for its gate, if there is one."""

    @job(queue=queue)
    async def work(input: Any) -> Any:
        calls[queue] += 1
        if queue in gates:
            await gates[queue].wait()
        return input

    return work


def spoil(damage: Damage, key: str) -> None:
    if damage.redis("EXISTS", key):
        damage.redis("RENAME", key, f"saved:{key}")
    damage.redis("SET", key, "x") if not key.endswith((":id", ":pc")) else damage.redis("SADD", key, "x")


def restore(damage: Damage, key: str) -> None:
    damage.redis("DEL", key)
    if damage.redis("EXISTS", f"saved:{key}"):
        damage.redis("RENAME", f"saved:{key}", key)


async def test_each_key(damage: Damage, app_factory: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is written half, other queues go on, results are kept, and every queue continues without a restart."""
    handlers = {key: job_of(f"q-{key}") for key in KEYS}
    good = job_of("good")
    async with app_factory(damage.url)(*handlers.values(), good) as app, app.workers.background():
        for key, handler in handlers.items():
            gates[f"q-{key}"] = asyncio.Event()
            await app.enqueue(handler, key, key=f"held-{key}")
            await app.wait_for_state(f"held-{key}", "active")
            spoil(damage, f"bull:q-{key}:{key}")
        for gate in gates.values():
            gate.set()
        for n in range(3):
            assert await app.jobs.result(await app.enqueue(good, n), timeout=TEST_TIMEOUT_S) == n
        for key, handler in handlers.items():
            with pytest.raises(BrokenQueue, match=rf"bull:q-{key}:{key} of queue q-{key} as a s"):
                await app.enqueue(handler, 1, key=f"late-{key}")
            with pytest.raises(UnknownJob):
                await app.jobs.get(f"late-{key}")
            with pytest.raises(BrokenQueue, match=f"q-{key}:{key}"):
                await app.queues.pause(f"q-{key}")
        (store,) = [check for check in await app.diagnose() if check.name == "store"]
        assert all(f"bull:q-{key}:{key}" in store.detail for key in KEYS)
        assert all(f"cannot claim from queue 'q-{key}'" in caplog.text for key in KEYS)
        await app.queues.list()
        while any((await app.store.sweep(Retention(jobs_before=2**52))).values()):
            pass
        for key in KEYS:
            restore(damage, f"bull:q-{key}:{key}")
        for key, handler in handlers.items():
            assert await app.jobs.result(f"held-{key}", timeout=TEST_TIMEOUT_S) == key
            assert await app.jobs.result(await app.enqueue(handler, 2), timeout=TEST_TIMEOUT_S) == 2
        assert calls == {**{f"q-{key}": 2 for key in KEYS}, "good": 3}


@pytest.mark.parametrize("key", ["id", "pc"])
async def test_a_counter_that_is_no_number(damage: Damage, app_factory: Any, key: str) -> None:
    work = job_of("work")
    async with app_factory(damage.url)(work) as app, app.workers.background():
        damage.redis("SET", f"bull:work:{key}", "many")
        with pytest.raises(BrokenQueue, match=f'bull:work:{key} of queue work as "many", not as a number'):
            await app.enqueue(work, 1)
        damage.redis("DEL", f"bull:work:{key}")
        assert await app.jobs.result(await app.enqueue(work, 1), timeout=TEST_TIMEOUT_S) == 1


async def test_a_kept_result_takes_no_slot(damage: Damage, app_factory: Any) -> None:
    bad, good = job_of("bad"), job_of("good")
    gates["bad"] = asyncio.Event()
    async with app_factory(damage.url)(bad, good) as app, app.workers.background(concurrency=1):
        await app.enqueue(bad, "kept", key="kept")
        await app.wait_for_state("kept", "active")
        spoil(damage, "bull:bad:active")
        gates["bad"].set()
        assert await app.jobs.result(await app.enqueue(good, 1), timeout=TEST_TIMEOUT_S) == 1
        restore(damage, "bull:bad:active")
        assert await app.jobs.result("kept", timeout=TEST_TIMEOUT_S) == "kept"
        assert await app.jobs.result(await app.enqueue(bad, "next"), timeout=TEST_TIMEOUT_S) == "next"
        assert calls == {"bad": 2, "good": 1}


@flow("shop", emits=["order.placed"])
async def place(input: Any, ctx: Context) -> None:
    calls["place"] += 1
    await ctx.emit("order.placed", input)


@step(flow="shop", queue="packing", on="order.placed", emits=[])
async def pack(input: Any) -> Any:
    calls["pack"] += 1
    return input


async def test_a_step_whose_next_step_is_in_a_broken_queue(damage: Damage, app_factory: Any) -> None:
    """The attempt is recorded once the queue works again, with its event and the next job, and runs once."""
    async with app_factory(damage.url)(place, pack) as app, app.workers.background():
        spoil(damage, "bull:packing:wait")
        run = await app.start("shop", 1)
        await until(lambda: calls["place"] == 1, TEST_TIMEOUT_S)
        with pytest.raises(BrokenQueue):
            await app.enqueue("packing", 1)
        assert [event.kind for event in await app.stream(run) if event.kind == "order.placed"] == []
        restore(damage, "bull:packing:wait")
        assert await app.wait_for_end(run) == "completed"
        assert calls == {"place": 1, "pack": 1}


async def test_a_run_with_a_job_in_a_broken_queue_can_be_cancelled(damage: Damage, app_factory: Any) -> None:
    async with app_factory(damage.url)(place, pack) as app:
        await app.queues.pause("packing")
        async with app.workers.background():
            run = await app.start("shop", 1)
            await app.wait_for_step(run, "pack", "waiting")
        spoil(damage, "bull:packing:delayed")
        assert await app.runs.cancel(run)
        restore(damage, "bull:packing:delayed")
        await app.queues.resume("packing")
        async with app.workers.background():
            await app.wait_for_step(run, "pack", "cancelled")
        assert calls["pack"] == 0


async def test_a_child_whose_parent_is_in_a_broken_queue(damage: Damage, app_factory: Any) -> None:
    """The child is recorded once the parent can be released with it."""
    parent, child = job_of("parents"), job_of("children")
    gates["children"] = asyncio.Event()
    async with app_factory(damage.url)(parent, child) as app, app.workers.background():
        await app.jobs.enqueue_tree(Node(parent, "p", key="p", children=[Node(child, "c", key="c")]))
        await app.wait_for_state("c", "active")
        spoil(damage, "bull:parents:prioritized")
        gates["children"].set()
        await until(lambda: app._committer._held, TEST_TIMEOUT_S)
        restore(damage, "bull:parents:prioritized")
        assert await app.jobs.result("p", timeout=TEST_TIMEOUT_S) == "p"
        assert calls == {"parents": 1, "children": 1}


@flow("patient")
async def patient(input: Any, ctx: Context) -> Any:
    return (await ctx.wait.event("go")).data


async def test_an_event_that_cannot_be_delivered_is_not_appended(damage: Damage, app_factory: Any) -> None:
    async with app_factory(damage.url)(patient) as app, app.workers.background():
        run = await app.start("patient", 1)
        await app.wait_for_step(run, "patient", "suspended")
        spoil(damage, "bull:penstock-events:wait")
        with pytest.raises(BrokenQueue, match="penstock-events"):
            await app.emit("go", 1, key="once")
        await app.emit("other", 1)
        assert [event.kind for event in await app.events.read_all("nq:global")] == ["other"]
        restore(damage, "bull:penstock-events:wait")
        await app.emit("go", 2, key="once")
        assert await app.result(run, timeout=TEST_TIMEOUT_S) == 2
