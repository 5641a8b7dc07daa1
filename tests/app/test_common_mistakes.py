"""Common mistakes raise errors that name what was wrong and what to write instead."""

from __future__ import annotations

import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Context, Node, Permanent, SyncContext, flow, job
from penstock.errors import BadArgument, BadId, ConfigError, NotJSON

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


async def test_a_time_without_a_zone_is_refused(memory: Any) -> None:
    async with memory(nap) as app, app.workers.background():
        with pytest.raises(BadArgument, match="has no time zone"):
            await app.start("nap", "", at=NAIVE)
        with pytest.raises(BadArgument, match="has no time zone"):
            await app.runs.list(since=NAIVE)
        run, status = await app.run_to_end("nap", NAIVE.isoformat())
        assert status == "failed"
        assert "has no time zone" in (await app.events_of(run, "step.failed"))[0].data["error"]
        past = datetime.now(UTC) - timedelta(seconds=1)
        assert (await app.run_to_end("nap", past.isoformat()))[1] == "completed"


async def test_an_empty_key_is_no_key(memory: Any) -> None:
    async with memory(nap, render) as app:
        with pytest.raises(BadId):
            await app.start("nap", "", key="")
        with pytest.raises(BadId):
            await app.enqueue("pages", 1, key="")
        with pytest.raises(BadArgument, match="key must be a non-empty string"):
            await app.emit("order.paid", key="")


async def test_one_key_twice_in_a_tree_is_refused(app: Any) -> None:
    async with app(render, bind) as a:
        for tree in (
            Node(bind, "t", key="one", children=[Node(render, 1, key="one")]),
            Node(bind, "t", children=[Node(render, 1, key="one"), Node(render, 2, key="one")]),
        ):
            with pytest.raises(BadArgument, match="2 jobs with the key 'one'"):
                await a.jobs.enqueue_tree(tree)
        assert await a.store.job("one") is None


async def test_a_child_that_failed_its_parent_cannot_be_redriven_with_another_input(app: Any) -> None:
    async with app(render, bind) as a, a.workers.background():
        await a.jobs.enqueue_tree(Node(bind, "t", key="book", children=[Node(render, 1), Node(render, 13)]))
        await a.wait_for_state("book", "failed")
        for id in ("book-c2", "book"):
            done = await a.dead_letters.redrive(id, input=3)
            assert not done.sent
            assert "enqueue the whole tree again" in done.refused[f"{id}.dlq"]
        assert await a.dead_letters.queues() == {"pages-dlq": 1, "books-dlq": 1}


async def test_a_retried_job_leaves_no_old_dead_letter(app: Any) -> None:
    broken = ["first"]

    @job(queue="words")
    async def fail(_: Any) -> None:
        if broken:
            raise Permanent(broken[0])

    async with app(fail) as a, a.workers.background():
        id = await a.enqueue("words", key="word")
        await a.wait_for_state(id, "failed")
        assert [one.error["message"] for one in await a.list_dead_letters("words")] == ["first"]
        broken.clear()
        assert await a.jobs.retry(id)
        await a.wait_for_state(id, "completed")
        assert await a.list_dead_letters("words") == []


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


async def test_a_durable_call_that_is_not_awaited_is_reported(memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with memory(hasty) as app, app.workers.background():
        await app.run_to_end("hasty")
        (row,) = await app.runs.list()
    assert f"step 'hasty' of run {row.id}: charge#1 was never awaited" in caplog.text


@pytest.mark.parametrize(
    ("name", "message"),
    [("listed", "requires a mapping of names to calls"), ("worded", "match must be a mapping of the fields")],
)
async def test_bad_arguments_of_waits(memory: Any, name: str, message: str) -> None:
    async with memory(listed, worded) as app, app.workers.background():
        run, status = await app.run_to_end(name)
        assert status == "failed"
        assert message in (await app.events_of(run, "step.failed"))[0].data["error"]


async def charge() -> None: ...


def wrong_arguments(which: str) -> tuple[Any, ...]:
    """Return wrong arguments for `ctx.run`."""
    if which == "called":
        return "a", charge()
    return {"value": ("a", 5), "swapped": (render, "a"), "nameless": (charge,), "alone": ("a",), "none": ()}[which]


@flow("wrong-call", emits=[])
async def wrong_call(which: str, ctx: Context) -> None:
    await ctx.run(*wrong_arguments(which))


@flow("wrong-sync-call", emits=[])
def wrong_sync_call(which: str, ctx: SyncContext) -> None:
    if which == "all":
        ctx.all([5])  # type: ignore[list-item]
    ctx.run(*wrong_arguments(which))


@flow("wrong-branch", emits=[])
def wrong_branch(which: str, ctx: SyncContext) -> None:
    ctx.all([ctx.branch.run(*wrong_arguments(which))])


MISTAKES = {
    "value": "the second argument of ctx.run('a') must be a function, got 5",
    "swapped": "the first argument of ctx.run must be a name, got render",
    "nameless": 'ctx.run(charge) requires a name before the function, for example: ctx.run("charge", charge, 7)',
    "alone": "ctx.run('a') requires a function after the name",
    "called": "the second argument of ctx.run('a') must be a function, got the coroutine charge(…). Pass the function "
    "without calling it, then its arguments: ctx.run('a', charge, …)",
    "none": "ctx.run() requires a name, a function and its arguments",
}


@flow("wrong-patch", emits=[])
async def wrong_patch(_: Any, ctx: Context) -> None:
    await ctx.state.patch("a", 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "which", "expected"),
    [
        *(("wrong-call", which, expected) for which, expected in MISTAKES.items()),
        *(("wrong-sync-call", which, expected) for which, expected in MISTAKES.items()),
        *(("wrong-branch", which, expected) for which, expected in MISTAKES.items()),
        ("wrong-sync-call", "all", "In a `def` handler, pass ctx.branch.run(…)"),
        (
            "wrong-patch",
            "",
            "the second argument of state.patch must be a function that takes the old value and returns the new one",
        ),
    ],
)
async def test_bad_arguments_of_durable_calls(memory: Any, name: str, which: str, expected: str) -> None:
    async with memory(wrong_call, wrong_sync_call, wrong_branch, wrong_patch) as app, app.workers.background():
        run, status = await app.run_to_end(name, which)
        assert status == "failed"
        assert expected in (await app.events_of(run, "step.failed"))[0].data["error"]


async def test_a_job_can_be_enqueued_by_its_function(memory: Any) -> None:
    async with memory(nap, render) as app, app.workers.background():
        assert await app.jobs.result(await app.enqueue(render, 1), timeout=20) == "page 1"
        ids = await app.jobs.enqueue_many(render, [2, 3])
        assert [await app.jobs.result(id, timeout=20) for id in ids] == ["page 2", "page 3"]
        with pytest.raises(
            ConfigError, match=r"'nap' is not a job; decorate it with @job, or pass the name of a queue"
        ):
            await app.enqueue(nap, "")


async def test_the_bad_input_of_many_is_named(memory: Any) -> None:
    async with memory(render) as app:
        with pytest.raises(NotJSON, match=r"^item 1 of 3: the input of a job of queue 'pages'") as it:
            await app.jobs.enqueue_many("pages", [1, object(), 3])
        assert "cannot be converted to JSON: it is an instance of the class 'object'. Use dicts, lists" in str(it.value)
        assert sum((await app.queues.counts("pages")).values()) == 0


async def test_a_fork_at_a_missing_event_raises(memory: Any) -> None:
    async with memory(nap) as app:
        run = await app.start("nap", "")
        with pytest.raises(BadId, match="invalid event id '5'; an event id looks like"):
            await app.runs.fork(run, "5")
