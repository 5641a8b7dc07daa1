"""`app.jobs.enqueue_tree`: parents that wait for their children, on every store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Context, Node, SyncApp, SyncContext, job
from penstock.core.errors import BadArgument, ConfigError, RunFailed
from penstock.jobs.job_trees import MAX_JOBS

Make = Callable[..., Any]
TEST_TIMEOUT_S = 20  # seconds until a test that waits gives up


@job(queue="pages", retry=1)
async def render(input: Any) -> Any:
    if input == "tear":
        raise ValueError("the page is torn")
    return {"page": input}


@job(queue="books", retry=1)
async def bind(input: Any, ctx: Context) -> Any:
    values = await ctx.children_values()
    return {"title": input, "pages": sorted(v["page"] for v in values.values()), "torn": await ctx.failed_children()}


@job(queue="shelves", retry=1)
def shelve(_input: Any, ctx: SyncContext) -> Any:
    return {"books": list(ctx.children_values().values()), "torn": ctx.failed_children()}


@pytest.mark.spec("004-1.3", "004-2.1", "004-2.7")
async def test_a_parent_reads_the_results_of_its_children(app: Make) -> None:
    async with app(render, bind) as one, one.workers.background():
        tree = await one.jobs.enqueue_tree(Node(bind, "Emma", children=[Node(render, n) for n in (1, 2, 3)]))
        assert await one.jobs.result(tree.id, timeout=TEST_TIMEOUT_S) == {
            "title": "Emma",
            "pages": [1, 2, 3],
            "torn": {},
        }
        assert [child.id for child in tree.children] == [f"{tree.id}-c{n}" for n in (1, 2, 3)]
        rows = await one.jobs.children(tree.id)
        assert [row.key for row in rows] == [f"bull:pages:{child.id}" for child in tree.children]
        assert await one.jobs.count_children(tree.id) == {
            "processed": 3, "unprocessed": 0, "ignored": 0, "failed": 0
        }  # fmt: skip


@pytest.mark.parametrize("how", ["ignore", "fail", "continue"])
async def test_children_are_listed_with_results_and_errors(app: Make, how: Any) -> None:
    async with app(render, bind) as one, one.workers.background():
        tree = await one.jobs.enqueue_tree(Node(bind, children=[Node(render, "tear", on_failure=how), Node(render, 2)]))
        for child in tree.children:
            await one.wait_for_state(child.id, "completed", "failed")
        torn, page = await one.jobs.children(tree.id)
        assert (page.state, page.value, page.reason) == ("processed", {"page": 2}, None)
        assert (torn.value, torn.reason) == (None, "the page is torn")
        assert torn.state == ("failed" if how == "fail" else "ignored")


async def test_three_levels_and_a_def_handler_from_bullmqs_dict(app: Make) -> None:
    pages = [{"name": "render", "queueName": "pages", "data": n} for n in (1, 2)]
    book = {"name": "bind", "queue": "books", "data": "Emma", "children": pages}
    async with app(render, bind, shelve) as one:
        tree = await one.jobs.enqueue_tree(
            {"name": "shelve", "queue": "shelves", "opts": {"jobId": "shelf"}, "children": [book]}
        )
        assert tree.id == "shelf"
        assert (await one.queues.counts("shelves"))["waiting-children"] == 1
        assert (await one.queues.counts("books"))["waiting-children"] == 1
        assert await one.jobs.count_children("shelf") == {
            "processed": 0, "unprocessed": 1, "ignored": 0, "failed": 0
        }  # fmt: skip
        async with one.workers.background():
            result = await one.jobs.result("shelf", timeout=TEST_TIMEOUT_S)
        assert result == {"books": [{"title": "Emma", "pages": [1, 2], "torn": {}}], "torn": {}}


@pytest.mark.spec("004-5.1")
async def test_a_failed_child_fails_all_its_ancestors(app: Make) -> None:
    async with app(render, bind, shelve) as one, one.workers.background():
        book = Node(bind, "Emma", children=[Node(render, 1), Node(render, "tear")])
        tree = await one.jobs.enqueue_tree(Node(shelve, None, children=[book]))
        with pytest.raises(RunFailed, match="was not run because its child"):
            await one.jobs.result(tree.id, timeout=TEST_TIMEOUT_S)
        bound = await one.wait_for_state(tree.children[0].id, "failed")
        assert b'"code":"child_failed"' in (bound.error or b"")
        # Nothing of theirs was run, and each has left a letter.
        failed = await one.job_events("books", "job.failed")
        assert [event.data["name"] for event in failed] == ["ChildFailed"]
        assert len(await one.list_dead_letters("shelves")) == 1


async def test_a_child_that_is_redriven_first_lets_its_parent_be_redriven(app: Make) -> None:
    torn = [True]

    @job(queue="pages", retry=1)
    async def repaired(_input: Any) -> Any:
        if torn[0]:
            raise ValueError("the page is torn")
        return {"page": 7}

    async with app(repaired, bind) as one, one.workers.background():
        tree = await one.jobs.enqueue_tree(Node(bind, "Emma", key="book", children=[Node(repaired)]))
        await one.wait_for_state("book", "failed")
        torn[0] = False
        child = tree.children[0].id
        assert (await one.dead_letters.redrive(child)).sent == {f"{child}.dlq": child}
        await one.wait_for_state(child, "completed")
        assert (await one.dead_letters.redrive("book")).sent == {"book.dlq": "book"}
        assert (await one.jobs.result("book", timeout=TEST_TIMEOUT_S))["pages"] == [7]


@pytest.mark.spec("004-5.2")
async def test_a_failed_child_may_be_ignored(app: Make) -> None:
    async with app(render, bind) as one, one.workers.background():
        children = [Node(render, "tear", on_failure="ignore"), Node(render, 2)]
        tree = await one.jobs.enqueue_tree(Node(bind, "Emma", children=children))
        result = await one.jobs.result(tree.id, timeout=TEST_TIMEOUT_S)
        torn = {f"bull:pages:{tree.children[0].id}": "the page is torn"}
        assert result == {"title": "Emma", "pages": [2], "torn": torn}


async def test_retries_of_a_child_count_before_it_fails(app: Make) -> None:
    tries: list[int] = []

    @job(queue="pages")
    async def stubborn(_input: Any, ctx: Context) -> Any:
        tries.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return {"page": ctx.attempt}

    opts = {"attempts": 3, "backoff": 1, "failParentOnFailure": True}
    async with app(stubborn, bind) as one, one.workers.background():
        child = {"name": "stubborn", "queue": "pages", "opts": opts}
        tree = await one.jobs.enqueue_tree({"name": "bind", "queue": "books", "data": "Emma", "children": [child]})
        assert (await one.jobs.result(tree.id, timeout=TEST_TIMEOUT_S))["pages"] == [3]
    assert tries == [1, 2, 3]


@pytest.mark.spec("004-5.3")
async def test_a_parent_that_runs_early_misses_the_other_results(app: Make) -> None:
    @job(queue="books", retry={"attempts": 2, "backoff": {"type": "fixed", "delay": 0}})
    async def hasty(_input: Any, ctx: Context) -> Any:
        return await ctx.remove_children() if ctx.attempt == 2 else None

    async with app(render, hasty) as one:
        children = [Node(render, "tear", on_failure="continue"), Node("unworked", 2)]
        tree = await one.jobs.enqueue_tree(Node(hasty, children=children))
        async with one.workers.background():
            assert await one.jobs.result(tree.id, timeout=TEST_TIMEOUT_S) == 1
        (first,) = await one.job_events("books", "job.failed")
        assert first.data["code"] == "children_pending"
        assert await one.store.job(tree.children[1].id) is None


@pytest.mark.spec("004-2.1")
async def test_a_tree_with_a_key_is_added_once(app: Make) -> None:
    async with app(render, bind) as one:
        tree = Node(bind, "Emma", key="emma", children=[Node(render, 1)])
        assert await one.jobs.enqueue_tree(tree) == await one.jobs.enqueue_tree(tree)
        assert await one.count_waiting("pages") == 1
        with pytest.raises(BadArgument, match="a job with key 'emma-c1' already exists"):
            await one.jobs.enqueue_tree(Node(bind, "Persuasion", children=[Node(render, 1, key="emma-c1")]))
        assert (await one.queues.counts("books"))["waiting-children"] == 1


async def test_a_tree_of_one_node_is_a_job(app: Make) -> None:
    async with app(render) as one, one.workers.background():
        tree = await one.jobs.enqueue_tree(Node(render, 1))
        assert await one.jobs.result(tree.id, timeout=TEST_TIMEOUT_S) == {"page": 1}


def test_trees_with_sync_app() -> None:
    with SyncApp(":memory:", handlers=[render, shelve]) as one, one.workers.background():
        tree = one.jobs.enqueue_tree(Node(shelve, children=[Node(render, 1)]))
        assert one.jobs.result(tree.id, timeout=TEST_TIMEOUT_S) == {"books": [{"page": 1}], "torn": {}}
        assert one.jobs.count_children(tree.id)["processed"] == 1
        assert [row.id for row in one.jobs.children(tree.id)] == [tree.children[0].id]


BOTH = {"failParentOnFailure": True, "ignoreDependencyOnFailure": True}


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"name": "x"}, "the 'queue' of the tree must be the name of a queue, got None"),
        ({"queue": "books", "child": []}, "did you mean 'children'"),
        ({"queue": "books", "children": [{"queue": "a", "opts": {"atempts": 3}}]}, "opts of child 1 of the tree"),
        ({"queue": "books", "children": [{"queue": "a", "opts": BOTH}]}, "use only one of them"),
        ({"queue": "books", "children": {"queue": "a"}}, "the children of the tree must be a list"),
        ("books", "the tree must be a Node"),
        ({"queue": "books", "children": [{"queue": "a"}] * MAX_JOBS}, "Split it into several trees"),
    ],
)
async def test_an_invalid_tree_is_refused(memory: Make, tree: Any, expected: str) -> None:
    async with memory(render) as one:
        with pytest.raises(BadArgument, match=expected):
            await one.jobs.enqueue_tree(tree)


async def test_an_invalid_node_is_refused(memory: Make) -> None:
    with pytest.raises(BadArgument, match=r"on_failure must be .* or .*, got 'explode'"):
        Node("books", on_failure="explode")  # type: ignore[arg-type]
    endless: list[Any] = []
    endless.append({"queue": "a", "children": endless})
    async with memory(render) as one:
        with pytest.raises(ConfigError, match="is not a job"):
            await one.jobs.enqueue_tree(Node(print))
        with pytest.raises(BadArgument, match="check that no node contains itself"):
            await one.jobs.enqueue_tree({"queue": "books", "children": endless})


@pytest.mark.parametrize("keep", [0, 1])
async def test_a_parent_gets_the_results_of_children_that_are_removed_at_their_end(app: Any, keep: int) -> None:
    @job(queue="leaves", keep_completed=keep, keep_failed=keep)
    async def leaf(n: int) -> dict[str, int]:
        if n == 13:
            raise ValueError("unlucky")
        return {"page": n}

    async with app(leaf, bind) as one, one.workers.background():
        whole = await one.jobs.enqueue_tree(
            Node(bind, "Emma", key="whole", children=[Node(leaf, n) for n in (1, 2, 3)])
        )
        torn = await one.jobs.enqueue_tree(Node(bind, "Emma", key="torn", children=[Node(leaf, 1), Node(leaf, 13)]))
        assert (await one.jobs.result(whole.id, timeout=TEST_TIMEOUT_S))["pages"] == [1, 2, 3]
        assert (await one.wait_for_state(torn.id, "failed", "completed")).state.value == "failed"
        assert (await one.queues.counts("leaves"))["completed"] == keep
