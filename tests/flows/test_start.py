"""Starting runs: once per key, delayed, by priority, or refused with a reason."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import flow
from penstock.core.errors import (
    BadArgument,
    NotJSON,
    PayloadTooDeep,
    PayloadTooLarge,
    RunError,
    RunFailed,
    UnknownFlow,
    WaitTimeout,
)
from penstock.core.ids import BadId
from penstock.ports.store import Retention
from penstock.testing.clock import FakeClock


@flow("one")
async def one(input: Any) -> Any:
    return input


@flow("two", queue="second")
async def two(input: Any) -> Any:
    return input


@pytest.mark.spec("001-4.6")
async def test_concurrent_starts_with_one_key_start_one_run(app: Any) -> None:
    async with app(one) as a, a.workers.background():
        ids = await asyncio.gather(*(a.start("one", i, key="order-7") for i in range(50)))
        assert set(ids) == {"order-7"}
        await a.wait_for_end("order-7")
        assert [row.id for row in await a.runs.list()] == ["order-7"]
        assert (await a.kinds("order-7")).count("flow.started") == 1
        await a.start("one", "later", key="order-7")
        assert (await a.kinds("order-7")).count("flow.started") == 1


async def test_one_key_over_two_apps(shared: Any) -> None:
    async with shared(one) as a, shared(one) as b:
        await asyncio.gather(*(x.start("one", i, key="k") for i in range(25) for x in (a, b)))
        assert len(await a.runs.list()) == 1
        assert len(await a.jobs.list("default")) == 1


async def test_a_key_used_by_another_flow_is_refused(app: Any) -> None:
    async with app(one, two) as a:
        await a.start("one", key="k")
        with pytest.raises(RunError, match=r"belongs to flow 'one', not 'two'"):
            await a.start("two", key="k")


async def test_a_key_is_free_again_once_its_run_is_swept(app: Any) -> None:
    async with app(one) as a, a.workers.background():
        assert await a.run_for_result("one", 1, key="k") == 1
        assert (await a.store.sweep(Retention(keep_runs=0)))["runs"] == 1
        assert await a.run_for_result("one", 2, key="k") == 2


async def test_auto_keys_depend_on_input_and_flow(memory: Any) -> None:
    @flow("left", key="auto")
    async def begin() -> None: ...

    def other() -> Any:
        @flow("right", key="auto")
        async def begin() -> None: ...

        return begin

    @flow("named", key=lambda order: f"order-{order['id']}")
    async def named() -> None: ...

    @flow("placed", key="order.id")
    async def placed() -> None: ...

    async with memory(begin, other(), named, placed) as a:
        first = await a.start("left", {"a": 1, "b": [1, 2]})
        assert await a.start("left", {"b": [1, 2], "a": 1}) == first
        assert await a.start("left", {"b": [2, 1], "a": 1}) != first
        assert await a.start("right", {"a": 1, "b": [1, 2]}) != first
        assert await a.start("named", {"id": 5}) == "order-5"
        assert await a.start("named", {"id": 5}, key="mine") == "mine"
        assert await a.start("placed", {"order": {"id": "o-5"}}) == "o-5"
        assert await a.start("placed", {"order": {"id": 5}}) == "placed-5"
        for wrong in ({"order": {}}, {"order": 5}, None, {"order": {"id": True}}):
            with pytest.raises(BadArgument, match=r"the value at 'order\.id', the key of placed"):
                await a.start("placed", wrong)


@pytest.mark.parametrize("key", ["a:b", "with space", "123", "ü", "x" * 201, "a/b"])
async def test_a_key_that_not_every_store_can_hold_is_refused(memory: Any, key: str) -> None:
    async with memory(one) as a:
        with pytest.raises(BadId):
            await a.start("one", key=key)
        assert await a.runs.list() == []


async def test_a_delayed_start_waits_for_its_time(app: Any, clock: FakeClock) -> None:
    async with app(one, clock=clock) as a, a.workers.background():
        run = await a.start("one", "late", delay="1h")
        moment = datetime.fromtimestamp(clock.now_ms() / 1000 + 7200, UTC)
        later = await a.start("one", "later", at=moment)
        row = await a.wait_for_step(run, "one", "delayed")
        assert row.due == clock.now_ms() + 3_600_000
        a.advance_clock("59m59s")
        assert await a.kinds(run) == ["flow.started"]
        a.advance_clock("1s")
        assert await a.result(run, timeout=20) == "late"
        assert await a.kinds(later) == ["flow.started"]
        a.advance_clock("1h")
        assert await a.result(later, timeout=20) == "later"


async def test_a_time_in_the_past_is_now(app: Any) -> None:
    async with app(one) as a, a.workers.background():
        assert await a.run_for_result("one", 1, at=datetime(2001, 1, 1, tzinfo=UTC)) == 1


@pytest.mark.spec("002-7.6")
async def test_lower_priority_numbers_go_first(app: Any) -> None:
    order: list[str] = []

    @flow("ranked", concurrency=1)
    async def ranked(input: str) -> None:
        order.append(input)

    async with app(ranked) as a:
        runs = [await a.start("ranked", name, priority=p) for name, p in [("c", 5), ("a", 0), ("d", 5), ("b", 1)]]
        async with a.workers.background():
            for run in runs:
                await a.wait_for_end(run)
    assert order == ["a", "b", "c", "d"]


async def test_an_unknown_flow_suggests_the_nearest(memory: Any) -> None:
    @flow("checkout")
    async def checkout() -> None: ...

    async with memory(checkout) as a:
        with pytest.raises(UnknownFlow, match="did you mean 'checkout'"):
            await a.start("chekout")
        with pytest.raises(UnknownFlow, match="known flows: checkout"):
            await a.start("zzz")


@pytest.mark.parametrize(
    ("input", "error"),
    [
        (object(), NotJSON),
        ({1: 2}, NotJSON),
        (float("nan"), NotJSON),
        (2**60, NotJSON),
        ("\ud800", NotJSON),
        ("x" * 70_000, PayloadTooLarge),
    ],
)
async def test_an_input_that_cannot_be_stored_is_refused(memory: Any, input: Any, error: type) -> None:
    async with memory(one) as a:
        with pytest.raises(error, match="flow 'one'"):
            await a.start("one", input)
        assert await a.runs.list() == []


async def test_an_input_too_deep_is_refused(memory: Any) -> None:
    deep: Any = []
    for _ in range(70):
        deep = [deep]
    async with memory(one) as a:
        with pytest.raises(PayloadTooDeep):
            await a.start("one", deep)


@pytest.mark.parametrize("tags", [{"n": 1}, {1: "n"}])
async def test_tags_that_are_not_strings_are_refused(memory: Any, tags: Any) -> None:
    async with memory(one) as a:
        with pytest.raises(BadArgument, match="tags must have strings as names and values"):
            await a.start("one", tags=tags)


async def test_a_correlation_id_that_is_not_a_string_is_refused(memory: Any) -> None:
    async with memory(one) as a:
        with pytest.raises(BadArgument, match="correlation_id must be a string"):
            await a.start("one", correlation_id=7)


async def test_tags_are_in_the_first_event(app: Any) -> None:
    async with app(one) as a:
        run = await a.start("one", tags={"tenant": "acme"})
        assert (await a.stream(run))[0].meta == {"tags": {"tenant": "acme"}}


async def test_a_wait_timeout_suggests_what_may_be_wrong(memory: Any) -> None:
    async with memory(one) as a:
        run = await a.start("one")
        with pytest.raises(WaitTimeout, match="check that a worker listens to its queues"):
            await a.runs.wait(run, timeout="10ms")


async def test_the_result_of_a_failed_run_is_its_error(app: Any) -> None:
    @flow("fails")
    async def breaks() -> None:
        raise ValueError("the roof is on fire")

    async with app(breaks) as a, a.workers.background():
        with pytest.raises(RunFailed, match="the roof is on fire"):
            await a.run_for_result("fails")
