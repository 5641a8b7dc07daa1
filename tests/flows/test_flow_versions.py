"""Code that changes while runs are open: pinned trigger tables, and workers that do not know a step yet."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import flow, job, step
from penstock.core.ids import step_job_id
from penstock.testing.clock import FakeClock


def old(version: str | None, release: asyncio.Event) -> list[Any]:
    @flow("shop", version=version, emits=["paid"])
    async def pay(ctx: Any) -> None:
        await release.wait()
        ctx.emit("paid")

    @step(on="paid", name="letter", queue="post")
    async def by_letter() -> str:
        return "sent a letter"

    return [pay, by_letter]


def new(version: str | None, release: asyncio.Event) -> list[Any]:
    @flow("shop", version=version, emits=["paid"])
    async def pay(ctx: Any) -> None:
        await release.wait()
        ctx.emit("paid")

    @step(on="never", name="letter", flow="shop", queue="post")
    async def by_letter() -> str:
        return "sent a letter, by new code"

    @step(on="paid", name="mail", queue="post")
    async def by_mail() -> str:
        return "sent a mail"

    return [pay, by_letter, by_mail]


async def finish_under_new_code(shared: Any, versions: tuple[str | None, str | None]) -> tuple[Any, list[str]]:
    """Start a run under old code and finish it under new code; return its result and steps."""
    release = asyncio.Event()
    async with shared(*old(versions[0], release)) as before:
        run = await before.start("shop")
    async with shared(*new(versions[1], release)) as after, after.workers.background():
        release.set()
        result = await after.result(run, timeout=20)
        started = [e.step for e in await after.events_of(run, "step.started")]
        fresh = await after.run_for_result("shop")
        assert fresh == "sent a mail", "new runs go by the new table"
        return result, started


@pytest.mark.spec("000-8.12")
async def test_a_versioned_run_keeps_its_first_trigger_table(shared: Any) -> None:
    result, started = await finish_under_new_code(shared, ("1", "2"))
    assert result == "sent a letter, by new code", "the table is pinned, the code is the newest"
    assert started == ["pay", "letter"]


async def test_a_run_without_a_version_uses_the_newest_code(shared: Any) -> None:
    result, started = await finish_under_new_code(shared, (None, None))
    assert result == "sent a mail"
    assert started == ["pay", "mail"]


async def test_two_apps_with_different_code_at_the_same_time(shared: Any) -> None:
    """Both workers run steps of both versions; each run uses its own table."""
    release = asyncio.Event()
    release.set()
    async with shared(*old("1", release)) as one, shared(*new("2", release)) as two:
        ones = [await one.start("shop") for _ in range(5)]
        twos = [await two.start("shop") for _ in range(5)]
        # The older code does not know the step "mail", so it leaves that queue to the newer worker.
        async with one.workers.background(queues=["default"]), two.workers.background():
            for run, second in [*((run, "letter") for run in ones), *((run, "mail") for run in twos)]:
                await two.wait_for_end(run)
                assert [e.step for e in await two.events_of(run, "step.started")] == ["pay", second]


async def refused(app: Any, id: str, attempt: int) -> Any:
    """Wait until a worker that does not know the job has tried it `attempt` times."""
    row = await app.wait_for_state(id, "delayed")
    while row.attempt < attempt:
        row = await app.wait_for_state(id, "delayed")
    return row


async def test_a_step_an_old_worker_does_not_know_waits_for_one_that_does(shared: Any, clock: FakeClock) -> None:
    release = asyncio.Event()
    release.set()
    async with shared(*old(None, release), clock=clock) as behind, shared(*new(None, release), clock=clock) as ahead:
        run = await ahead.start("shop")
        async with ahead.workers.background(queues=["default"]):
            await ahead.wait_for_step(run, "mail", "waiting")
        async with behind.workers.background():
            row = await refused(behind, step_job_id(run, "mail", 1), 1)
            assert b"unknown_step" in row.error
            assert row.due > clock.now_ms()
        async with ahead.workers.background():
            ahead.advance_clock((row.due - clock.now_ms()) / 1000)
            assert await ahead.result(run, timeout=20) == "sent a mail"
        assert await ahead.list_dead_letters("post") == []


async def test_an_unknown_step_ends_as_a_dead_letter(shared: Any, clock: FakeClock) -> None:
    release = asyncio.Event()
    release.set()
    async with shared(*old(None, release), clock=clock) as behind, shared(*new(None, release), clock=clock) as ahead:
        run = await ahead.start("shop")
        async with ahead.workers.background(queues=["default"]):
            await ahead.wait_for_step(run, "mail", "waiting")
        async with behind.workers.background():
            for attempt in range(1, 5):
                row = await refused(behind, step_job_id(run, "mail", 1), attempt)
                behind.advance_clock((row.due - clock.now_ms()) / 1000)
            assert await behind.wait_for_end(run) == "failed"
        (letter,) = await behind.list_dead_letters("post")
        assert (letter.error["code"], letter.attempts_made) == ("unknown_step", 5)
        await ahead.dead_letters.redrive(letter.original_job_id)
        async with ahead.workers.background():
            assert await ahead.result(run, timeout=20) == "sent a mail"


async def test_an_unknown_job_ends_as_a_dead_letter(app: Any, clock: FakeClock) -> None:
    @job(queue="mail", name="known")
    async def known() -> None: ...

    async with app(known, clock=clock) as a, a.workers.background():
        id = await a.enqueue("mail", {"x": 1}, name="unknown")
        for attempt in range(1, 5):
            row = await refused(a, id, attempt)
            a.advance_clock((row.due - clock.now_ms()) / 1000)
        await a.wait_for_state(id, "failed")
        (letter,) = await a.list_dead_letters("mail")
        assert (letter.error["code"], letter.original_data) == ("unknown_queue", {"x": 1})
        assert await a.jobs.result(await a.enqueue("mail", name="known"), timeout=20) is None


async def test_the_diagram_of_a_run_is_that_of_the_version_it_was_started_with(shared: Any) -> None:
    release = asyncio.Event()
    async with shared(*old("1", release)) as before:
        run = await before.start("shop")
        drawn = await before.runs.diagram(run)
        assert (drawn["isLoaded"], drawn["version"]) == (True, "1")
        assert [(one["from"], one["to"]) for one in drawn["edges"]] == [("pay", "letter")]
    async with shared(*new("2", release)) as after:
        drawn = await after.runs.diagram(run)
        assert (drawn["isLoaded"], drawn["version"]) == (False, "1")
        assert [one["id"] for one in drawn["nodes"]] == ["pay", "letter"]
        assert [(one["from"], one["to"], one["label"]) for one in drawn["edges"]] == [("pay", "letter", "paid")]
        assert (await after.runs.diagram(await after.start("shop")))["isLoaded"] is True
    async with shared() as nothing:  # a process without the code
        assert [one["id"] for one in (await nothing.runs.diagram(run))["nodes"]] == ["pay", "letter"]
