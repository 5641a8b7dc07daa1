"""A run that only waits has the status `waiting`, in lists and in its view, on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import App, flow, step
from penstock.core.errors import WaitTimeout
from penstock.core.ids import step_job_id
from penstock.flows.run_record import MAX_WAITING, RunRecord
from penstock.testing.until import until


def handlers(gate: asyncio.Event | None = None) -> list[Any]:
    @flow("approve", queue="approvals")
    async def approve(input: Any, ctx: Any) -> Any:
        trigger = await ctx.wait.trigger("approval", timeout="1h")
        answer = await trigger.wait()
        if gate is not None:
            await gate.wait()
        return answer

    @flow("pay", queue="pays", emits=["invoiced"])
    async def pay(input: Any, ctx: Any) -> Any:
        ctx.emit("invoiced", input)
        return await ctx.wait.event("payment.confirmed", match={"order": 7})

    @step(on="invoiced", queue="slow")
    async def remind(input: Any, ctx: Any) -> None:
        await ctx.wait.time("2h")

    return [approve, pay, remind]


async def ids(app: App, **filters: Any) -> list[str]:
    return [row.id for row in await app.runs.list(**filters)]


async def status_of(app: App, run: str) -> str:
    return (await app.runs.list(flow=(await app.runs.get(run)).name))[0].status


async def test_a_waiting_run_is_listed_with_what_it_waits_for(app: Any) -> None:
    async with app(*handlers()) as a, a.workers.background():
        run = await a.start("approve")
        (row,) = await until(lambda: a.runs.list(status="waiting"))
        assert (row.id, row.status, row.closed) == (run, "waiting", False)
        (text,) = row.waits_for
        assert text.startswith("waiting for trigger 'approval' until 20")
        assert await ids(a, status="running") == []
        assert await ids(a, status="open") == [run]
        assert await ids(a, flow="approve", status="waiting") == [run]
        assert (await a.runs.get(run)).status == "waiting"


async def test_a_run_waits_only_if_every_open_step_waits(app: Any) -> None:
    async with app(*handlers()) as a:
        async with a.workers.background(["pays"]):
            run = await a.start("pay")
            await a.wait_for_step(run, "pay", "suspended", "delayed")
            assert await status_of(a, run) == "running", "remind is queued"
            assert (await a.runs.get(run)).status == "running"
        async with a.workers.background():
            (row,) = await until(lambda: a.runs.list(status="waiting"))
            event, sleep = sorted(row.waits_for, reverse=True)
            assert event == 'waiting for event payment.confirmed {"order":7}'
            assert sleep.startswith("sleeping until 20")


async def test_a_resumed_run_runs_until_it_waits_again_or_ends(app: Any) -> None:
    gate = asyncio.Event()
    async with app(*handlers(gate)) as a, a.workers.background():
        run = await a.start("approve")
        await until(lambda: a.runs.list(status="waiting"))
        (wait,) = await a.waits.list(run=run)
        await a.waits.fire(await a.waits.token(wait.id), "yes")
        assert await until(lambda: ids(a, status="running")) == [run]
        assert (await a.runs.get(run)).status == "running"
        assert await ids(a, status="waiting") == []
        gate.set()
        assert await a.result(run, timeout=20) == "yes"
        assert await ids(a, status="open") == []


async def test_a_resumed_step_without_a_worker_is_not_shown_as_running(app: Any) -> None:
    async with app(*handlers()) as a:
        async with a.workers.background():
            run = await a.start("approve")
            await until(lambda: a.runs.list(status="waiting"))
        (wait,) = await a.waits.list(run=run)
        await a.waits.fire(await a.waits.token(wait.id), "yes")
        view = await a.runs.get(run)
        assert view.steps["approve"].status == "pending"
        assert (await a.runs.list())[0].waits_for == ["ready to resume; no worker has claimed it yet"]


async def test_secrets_are_hidden_in_what_a_run_waits_for(memory: Any) -> None:
    @flow("upload")
    async def upload(input: Any, ctx: Any) -> None:
        await ctx.wait.event("uploaded", match={"uploadToken": "hunter2"})

    async with memory(upload) as a, a.workers.background():
        await a.start("upload")
        (row,) = await until(lambda: a.runs.list(status="waiting"))
        assert row.waits_for == ['waiting for event uploaded {"uploadToken":"[redacted]"}']


async def test_pause_and_resume_keep_the_status_waiting(app: Any) -> None:
    async with app(*handlers()) as a, a.workers.background():
        run = await a.start("approve")
        await until(lambda: a.runs.list(status="waiting"))
        assert await a.runs.pause(run)
        assert (await ids(a, status="paused"), await ids(a, status="waiting")) == ([run], [])
        assert await ids(a, status="open") == [run]
        assert await a.runs.resume(run)
        assert (await ids(a, status="paused"), await ids(a, status="waiting")) == ([], [run])
        assert await a.runs.cancel(run)
        assert await ids(a, status="open") == []


async def test_pages_of_open_runs(app: Any) -> None:
    async with app(*handlers()) as a:
        async with a.workers.background(["approvals"]):
            waiting = [await a.start("approve", key=f"w-{n}") for n in range(3)]
            await until(lambda: _has(a, 3))
            queued = [await a.start("pay", key=f"q-{n}") for n in range(3)]
        every = await ids(a, status="open")
        assert sorted(every) == sorted(waiting + queued)
        assert every == await ids(a)
        first = await ids(a, status="open", limit=2)
        assert first + await ids(a, status="open", limit=4, before=first[-1]) == every


async def _has(a: App, count: int) -> bool:
    return len(await a.runs.list(status="waiting")) == count


@pytest.mark.spec("003-7.8")
async def test_a_step_that_waits_with_a_timeout_is_suspended_and_not_promoted(app: Any) -> None:
    async with app(*handlers()) as a, a.workers.background():
        run = await a.start("approve")
        await until(lambda: a.runs.list(status="waiting"))
        job = step_job_id(run, "approve", 1)
        assert (await a.jobs.get(job)).state == "suspended"
        assert [one.id for one in await a.jobs.list("approvals", "suspended")] == [job]
        assert await a.jobs.list("approvals", "delayed") == []
        assert await a.jobs.list("approvals", "suspended", after=job) == []
        counts = await a.queues.counts("approvals")
        assert (counts["suspended"], counts["delayed"]) == (1, 0)
        assert await a.jobs.promote(job) is False
        delayed = await a.enqueue("mail", delay="1h")
        assert (await a.jobs.get(delayed)).state == "delayed"
        assert await a.jobs.promote(delayed) is True


def test_a_record_lists_a_bounded_number_of_waiting_instances() -> None:
    record = RunRecord("flow", "r", 0)
    record.counts_of("each").open = MAX_WAITING + 1
    for n in range(MAX_WAITING + 1):
        record.mark_waiting("each", n)
    assert len(record.waiting) == MAX_WAITING
    assert record.display_status == "running"
    record.counts_of("each").open = MAX_WAITING
    assert record.display_status == "waiting"
    assert record.unmark_waiting("each", 1)
    assert not record.unmark_waiting("each", 1)


async def test_a_wait_that_was_resolved_during_a_pause_is_not_listed_as_waiting(app: Any) -> None:
    async with app(*handlers()) as a:
        async with a.workers.background():
            run = await a.start("approve")
            await until(lambda: a.runs.list(status="waiting"))
        await a.runs.pause(run)
        await a.runs.resume(run)
        assert await ids(a, status="waiting") == [run]
        await a.runs.pause(run)
        (wait,) = await a.waits.list(run=run)
        await a.waits.fire(await a.waits.token(wait.id), "yes")
        await a.runs.resume(run)
        assert (await ids(a, status="running"), await ids(a, status="waiting")) == ([run], [])
        assert (await a.runs.get(run)).steps["approve"].status == "pending"


async def test_a_timeout_of_the_result_names_the_wait(app: Any) -> None:
    async with app(*handlers()) as a, a.workers.background():
        run = await a.start("approve")
        await until(lambda: a.runs.list(status="waiting"))
        for call in (a.result, a.runs.wait):
            with pytest.raises(WaitTimeout, match=r"did not end within 50 ms; it is waiting for trigger 'approval'"):
                await call(run, timeout=0.05)
