"""Likely slips are answered with what was wrong and what to write instead, not taken for something else."""

from __future__ import annotations

import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Context, Node, Permanent, flow, job
from penstock.errors import BadArgument, BadId

NAIVE = datetime(2030, 1, 31, 9)


@flow("nap", emits=[])
async def nap(until: str, ctx: Context) -> None:
    await ctx.wait.time(datetime.fromisoformat(until))


@job(queue="pages")
async def render(page: int) -> str:
    if page == 13:
        raise Permanent("unlucky")
    return f"page {page}"


@job(queue="books")
async def bind(title: str, ctx: Context) -> dict[str, Any]:
    return await ctx.children_values()


async def test_a_moment_without_a_zone_is_refused(memory: Any) -> None:
    async with memory(nap) as app, app.working():
        with pytest.raises(BadArgument, match="has no time zone"):
            await app.start("nap", "", at=NAIVE)
        with pytest.raises(BadArgument, match="has no time zone"):
            await app.runs(since=NAIVE)
        run, status = await app.ends("nap", NAIVE.isoformat())
        assert status == "failed"
        assert "has no time zone" in (await app.said(run, "step.failed"))[0].data["error"]
        past = datetime.now(UTC) - timedelta(seconds=1)
        assert (await app.ends("nap", past.isoformat()))[1] == "completed"


async def test_an_empty_key_is_no_key(memory: Any) -> None:
    async with memory(nap, render) as app:
        with pytest.raises(BadId):
            await app.start("nap", "", idempotency_key="")
        with pytest.raises(BadId):
            await app.enqueue("pages", 1, id="")
        with pytest.raises(BadArgument, match="key=''"):
            await app.emit("order.paid", key="")


async def test_one_id_twice_in_a_tree_is_refused(app: Any) -> None:
    async with app(render, bind) as a:
        for tree in (
            Node(bind, "t", id="one", children=[Node(render, 1, id="one")]),
            Node(bind, "t", children=[Node(render, 1, id="one"), Node(render, 2, id="one")]),
        ):
            with pytest.raises(BadArgument, match="2 jobs with the id 'one'"):
                await a.add_flow(tree)
        assert await a.store.job("one") is None


async def test_a_child_that_failed_its_parent_takes_no_other_payload(app: Any) -> None:
    async with app(render, bind) as a, a.working():
        await a.add_flow(Node(bind, "t", id="book", children=[Node(render, 1), Node(render, 13)]))
        await a.in_state("book", "failed")
        for id in ("book-c2", "book"):
            done = await a.dead_letters.redrive(id, payload=3)
            assert not done.sent
            assert "add " in done.refused[f"{id}.dlq"]
        assert await a.dead_letters.queues() == {"pages-dlq": 1, "books-dlq": 1}


async def test_a_job_that_is_retried_leaves_no_old_letter(app: Any) -> None:
    broken = ["first"]

    @job(queue="words")
    async def say(_: Any) -> None:
        if broken:
            raise Permanent(broken[0])

    async with app(say) as a, a.working():
        id = await a.enqueue("words", id="word")
        await a.in_state(id, "failed")
        assert [one.error["message"] for one in await a.letters("words")] == ["first"]
        broken.clear()
        assert await a.queues.retry(id)
        await a.in_state(id, "completed")
        assert await a.letters("words") == []


@flow("hasty", emits=[])
async def hasty(_: Any, ctx: Context) -> None:
    ctx.run("charge", print)
    gc.collect()


@flow("listed", emits=[])
async def listed(_: Any, ctx: Context) -> None:
    await ctx.first([ctx.wait.time("1h")])  # type: ignore[arg-type]


@flow("worded", emits=[])
async def worded(_: Any, ctx: Context) -> None:
    await ctx.wait.event("order.paid", match="x")  # type: ignore[arg-type]


async def test_a_durable_call_that_is_not_awaited_is_told_of(memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with memory(hasty) as app, app.working():
        await app.ends("hasty")
    assert "charge#1 was never awaited" in caplog.text


@pytest.mark.parametrize(("name", "message"), [("listed", "give the calls names"), ("worded", "match='x'")])
async def test_what_a_wait_is_given(memory: Any, name: str, message: str) -> None:
    async with memory(listed, worded) as app, app.working():
        run, status = await app.ends(name)
        assert status == "failed"
        assert message in (await app.said(run, "step.failed"))[0].data["error"]
