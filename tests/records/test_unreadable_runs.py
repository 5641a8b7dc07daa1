"""A run whose record cannot be read: its steps fail once, its neighbours complete, and people can see and cancel it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from damage import JUNK, Damage
from penstock import ChildFailure, Context, flow, step
from penstock.core.errors import UnreadableRecord
from penstock.ports.store import Retention
from penstock.testing.until import until

TEST_TIMEOUT_S = 20


@flow("order", emits=["order.placed"])
async def order(input: Any, ctx: Context) -> int:
    ctx.emit("order.placed", input)
    return 1


@step(on="order.placed")
async def ship(input: Any) -> str:
    return "shipped"


@flow("patient")
async def patient(input: Any, ctx: Context) -> str:
    event = await ctx.wait.event("go", timeout="1h")
    return str(event.data)


@flow("parent")
async def parent(input: Any, ctx: Context) -> Any:
    found = await ctx.call("patient", input, on_failure="return")
    return [found.status, found.code] if isinstance(found, ChildFailure) else found


@flow("parent-of-many")
async def parent_of_many(input: Any, ctx: Context) -> Any:
    found = await ctx.call_many("patient", [1, 2], on_failure="return")
    return [one.status if isinstance(one, ChildFailure) else one for one in found]


@pytest.fixture
def app(shared_url: str, app_factory: Any) -> Callable[..., Any]:
    return app_factory(shared_url)  # type: ignore[no-any-return]


@pytest.fixture
def damage(shared_url: str) -> Damage:
    return Damage(shared_url)


@pytest.mark.parametrize("junk", JUNK)
async def test_its_step_fails_once_and_its_neighbours_complete(
    app: Callable[..., Any], damage: Damage, junk: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with app(order, ship) as one:
        runs = [await one.start("order", n) for n in range(5)]
        damage.run(runs[2], JUNK[junk])
        async with one.workers.background():
            ends = [await one.wait_for_end(run) for run in runs if run != runs[2]]
            job = await one.wait_for_step(runs[2], "order", "failed")
            late = await one.start("order", 9)  # the worker lives
            assert await one.wait_for_end(late) == "completed"
        assert ends == ["completed"] * 4
        assert (job.attempt, job.failures) == (1, 1)
        assert b"unreadable_record" in (job.error or b"")
        letters = await one.list_dead_letters()
        assert [(letter.run, letter.original_data) for letter in letters] == [(runs[2], 2)]
        assert f"the record of run {runs[2]!r} cannot be read" in letters[0].error["message"]
        failed = await one.events_of(runs[2], "step.failed")
        assert [event.data["willRetry"] for event in failed] == [False]
        assert not [record for record in caplog.records if "could not be recorded" in record.getMessage()]


async def test_lists_mark_it_and_go_on(app: Callable[..., Any], damage: Damage) -> None:
    async with app(order, ship) as one:
        runs = [await one.start("order", n) for n in range(3)]
        damage.run(runs[1], b"junk")
        found = {row.id: row for row in await one.runs.list()}
        assert [found[run].unreadable is None for run in runs] == [True, False, True]
        assert f"the record of run {runs[1]!r}" in (found[runs[1]].unreadable or "")
        view = await one.runs.get(runs[1])
        assert (view.id, view.name, view.unreadable) == (runs[1], "order", found[runs[1]].unreadable)
        assert any("cannot be read" in reason for reason in await one.runs.why(runs[1]))
        checks = {check.name: check for check in await one.diagnose()}
        assert not checks["records"].ok
        assert runs[1] in checks["records"].detail
        lines = [line async for line in one.runs.export_all()]
        assert len(lines) == 2
        assert len(await one.runs.list(tags={"x": "y"})) == 0
        assert [row.id for row in await one.runs.list(where=1)] == [runs[1]]


async def test_what_needs_the_record_is_refused_by_name(app: Callable[..., Any], damage: Damage) -> None:
    async with app(order, ship) as one:
        run = await one.start("order", 1)
        damage.run(run, b'{"flow":"order","correlationId":"x","startedMs":1,"tags":{"a":null}}')
        for call in (
            lambda: one.runs.pause(run),
            lambda: one.runs.resume(run),
            lambda: one.runs.retry(run),
            lambda: one.emit("order.placed", 1, run=run),
            lambda: one.runs.export(run),
            lambda: one.runs.fork(run, "0-1"),
        ):
            with pytest.raises(UnreadableRecord, match=r"the record of (the )?run.*penstock runs cancel"):
                await call()
        assert (await one.runs.get(run)).status == "running"
        new = await one.runs.replay(run)  # its events still have its input
        assert (await one.runs.get(new)).input == 1


async def test_it_can_be_cancelled_and_swept(app: Callable[..., Any], damage: Damage) -> None:
    async with app(order, ship, patient) as one:
        run, other = await one.start("order", 1), await one.start("order", 2)
        damage.run(run, b"\xff")
        assert await one.runs.cancel(run, "its record is damaged") is True
        assert await one.runs.cancel(run) is False
        row = (await one.runs.list(status="cancelled"))[0]
        assert (row.id, row.closed, row.unreadable) == (run, True, None)
        assert (await one.store.job(f"{run}.order.1")).state.value == "cancelled"  # type: ignore[union-attr]
        async with one.workers.background():
            assert await one.wait_for_end(other) == "completed"
        removed = await one.store.sweep(Retention(runs_before=2**61))
        assert removed["runs"] == 2
        assert await one.runs.list() == []


async def test_a_closed_one_stays_closed(app: Callable[..., Any], damage: Damage) -> None:
    async with app(order, ship) as one, one.workers.background():
        run, status = await one.run_to_end("order", 1)
        assert status == "completed"
        damage.run(run, b"junk")
        assert await one.runs.cancel(run) is False
        assert (await one.runs.wait(run)).status == "completed"
        with pytest.raises(UnreadableRecord, match=f"record of run {run!r} cannot be read"):
            await one.result(run, timeout=TEST_TIMEOUT_S)
        assert (await one.store.sweep(Retention(runs_before=2**61)))["runs"] == 1


async def test_one_that_waits_can_be_cancelled_with_its_waits(app: Callable[..., Any], damage: Damage) -> None:
    async with app(patient) as one:
        async with one.workers.background():
            run = await one.start("patient", 1)
            await one.wait_for_step(run, "patient", "delayed")
            damage.run(run, b"junk")
            (wait,) = await one.waits.list(run=run)
            damage.wait(wait.id, b"junk")
            (wait,) = await one.waits.list(run=run)
            assert "cannot be read" in (wait.unreadable or "")
        assert await one.runs.cancel(run) is True
        assert await one.waits.list(run=run) == []


async def test_an_event_to_it_from_a_transaction_fails_once(app: Callable[..., Any], damage: Damage) -> None:
    async with app(order, ship, patient) as one, one.workers.background():
        run = await one.start("patient", 1)
        await one.wait_for_step(run, "patient", "delayed")
        damage.run(run, b"junk")
        await one.emit("go", 1)  # wakes its step, which then fails
        job = await one.wait_for_step(run, "patient", "failed")
        assert b"unreadable_record" in (job.error or b"")
        other = await one.start("patient", 2)
        await one.wait_for_step(other, "patient", "delayed")
        await one.emit("go", 2)
        assert await one.result(other, timeout=TEST_TIMEOUT_S) == "2"


async def test_a_repaired_record_continues_from_the_dead_letter(app: Callable[..., Any], damage: Damage) -> None:
    async with app(order, ship) as one:
        run = await one.start("order", 1)
        record = (await one.store.run(run)).record  # type: ignore[union-attr]
        damage.run(run, b"junk")
        async with one.workers.background():
            await one.wait_for_step(run, "order", "failed")
            refused = await one.dead_letters.redrive(f"{run}.order.1")
            assert list(refused.refused) == [f"{run}.order.1.dlq"]
            damage.run(run, record)
            sent = await one.dead_letters.redrive(f"{run}.order.1")
            assert not sent.refused
            assert await one.wait_for_end(run) == "completed"


async def test_its_errors_are_logged_once(
    app: Callable[..., Any], damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "penstock")
    async with app(order, ship) as one:
        run = await one.start("order", 1)
        damage.run(run, b"junk")
        async with one.workers.background():
            await one.wait_for_step(run, "order", "failed")
            await until(lambda: caplog.records, TEST_TIMEOUT_S)
    assert [record.getMessage().startswith("step order of run") for record in caplog.records] == [True]


async def _waiting_children(one: Any, run: str, count: int) -> list[str]:
    await until(lambda: _has_waiting(one, run, count), TEST_TIMEOUT_S)
    return sorted(row.id for row in await one.runs.children(run))


async def _has_waiting(one: Any, run: str, count: int) -> bool:
    rows = await one.runs.children(run)
    jobs = [await one.store.job(f"{row.id}.patient.1") for row in rows]
    return len(jobs) == count and all(job is not None and job.state.value == "delayed" for job in jobs)


async def test_a_cancelled_child_ends_the_wait_of_its_parent(app: Callable[..., Any], damage: Damage) -> None:
    async with app(parent, patient) as one, one.workers.background():
        run = await one.start("parent", 1)
        (child,) = await _waiting_children(one, run, 1)
        damage.run(child, b"junk")
        assert await one.runs.cancel(child, "its record is damaged") is True
        assert await one.result(run, timeout=TEST_TIMEOUT_S) == ["cancelled", None]


async def test_one_of_many_children_ends_alone(app: Callable[..., Any], damage: Damage) -> None:
    async with app(parent_of_many, patient) as one, one.workers.background():
        run = await one.start("parent-of-many", 1)
        children = await _waiting_children(one, run, 2)
        damage.run(children[0], b"junk")
        assert await one.runs.cancel(children[0]) is True
        await one.emit("go", 7)
        assert await one.result(run, timeout=TEST_TIMEOUT_S) == ["cancelled", "7"]


async def test_a_child_that_ended_and_was_damaged_counts_as_failed(app: Callable[..., Any], damage: Damage) -> None:
    async with app(parent, patient) as one:
        run = await one.start("parent", 1)
        async with one.workers.background():
            (child,) = await _waiting_children(one, run, 1)
        assert await one.runs.cancel(child) is True  # no worker: the parent does not know of it yet
        damage.run(child, b"junk")
        async with one.workers.background():
            assert await one.result(run, timeout=TEST_TIMEOUT_S) == ["cancelled", "unreadable_record"]


async def test_the_children_of_a_cancelled_one_are_cancelled_too(app: Callable[..., Any], damage: Damage) -> None:
    async with app(parent, patient) as one, one.workers.background():
        run = await one.start("parent", 1)
        (child,) = await _waiting_children(one, run, 1)
        damage.run(run, b"junk")
        assert await one.runs.cancel(run) is True
        assert await one.wait_for_end(child) == "cancelled"
