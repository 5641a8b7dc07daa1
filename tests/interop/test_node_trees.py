"""Job trees across languages: a parent on one side, children on the other, added by either."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App, Context, Node, job
from penstock.worker import polling

pytestmark = pytest.mark.xdist_group("interop")


@pytest.fixture(autouse=True)
def _claim_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node does not wake our workers, so let them claim often."""
    monkeypatch.setattr(polling, "MAX_IDLE_S", 0.1)


@job(queue="pages", retry=1)
async def render(page: Any) -> Any:
    if page == "tear":
        raise ValueError("the page is torn")
    return {"page": page}


@job(queue="books", retry=1)
async def bind(_title: Any, ctx: Context) -> Any:
    return {"values": await ctx.children_values(), "failed": await ctx.failed_children()}


def page(data: Any, **opts: Any) -> dict[str, Any]:
    return {"name": "render", "queueName": "pages", "data": data, "opts": opts}


@pytest.mark.spec("002-9.6", "004-1.3", "004-2.7")
async def test_node_runs_the_parent_of_our_tree(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[render]) as app:
        children = [Node(render, 1), Node(render, "tear", on_failure="ignore")]
        tree = await app.jobs.enqueue_tree(Node("books", "Emma", key="emma", children=children))
        assert (await node.call("job", queue="books", id="emma"))["state"] == "waiting-children"
        counts = await node.call("dependencies", queue="books", id="emma")
        assert (counts["unprocessed"], counts["processed"]) == (2, 0)
        await node.call("bind", queue="books")
        async with app.workers.background():
            done = await node.job_in("books", "emma", "completed")
        whole, torn = (f"bull:pages:{child.id}" for child in tree.children)
        assert done["returnvalue"] == {"values": {whole: {"page": 1}}, "failed": {torn: "the page is torn"}}


async def test_node_runs_the_children_of_our_tree(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[bind]) as app:
        tree = await app.jobs.enqueue_tree(Node(bind, children=[Node("pages", n) for n in (1, 2)]))
        await node.call("work", queue="pages")
        async with app.workers.background():
            result = await app.jobs.result(tree.id, timeout="30s")
        keys = [f"bull:pages:{child.id}" for child in tree.children]
        assert result["values"] == {key: {"seen": n, "by": "node"} for n, key in enumerate(keys, 1)}


@pytest.mark.spec("002-9.6", "004-5.2")
async def test_we_run_the_parent_of_a_node_tree(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[render, bind]) as app:
        children = [page(1, jobId="one"), page("tear", jobId="two", ignoreDependencyOnFailure=True)]
        tree = {"name": "bind", "queueName": "books", "data": "Emma", "children": children}
        parent = await node.call("flow", tree=tree)
        async with app.workers.background():
            done = await node.job_in("books", parent, "completed")
        assert await app.jobs.count_children(parent) == {
            "processed": 1, "unprocessed": 0, "ignored": 1, "failed": 0
        }  # fmt: skip
        values, failed = {"bull:pages:one": {"page": 1}}, {"bull:pages:two": "the page is torn"}
        assert done["returnvalue"] == {"values": values, "failed": failed}


@pytest.mark.spec("004-5.1")
async def test_our_failed_child_fails_node_parents(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[render, bind]) as app:
        children = [page("tear", failParentOnFailure=True)]
        book = {"name": "bind", "queueName": "books", "children": children, "opts": {"failParentOnFailure": True}}
        tree = {"name": "shelve", "queueName": "shelves", "children": [{**book, "data": "Emma"}], "data": {}}
        shelf = await node.call("flow", tree=tree)
        await node.call("work", queue="shelves")
        async with app.workers.background():
            failed = await node.job_in("shelves", shelf, "failed")
        # Our worker failed the book without running it, and Node's worker the shelf.
        assert "failed" in failed["failedReason"]
        (letter,) = [letter for _, letter in await app.dead_letters.list("books")]
        assert letter.error["code"] == "child_failed"


async def test_a_failed_node_child_fails_our_parent(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[bind]) as app:
        tree = await app.jobs.enqueue_tree(Node(bind, "Emma", key="emma", children=[Node("pages", 1)]))
        await node.call("work", queue="pages", fail=True)
        async with app.workers.background():
            failed = await node.job_in("books", "emma", "failed")
        assert f"its child '{tree.children[0].id}' failed" in failed["failedReason"]
        assert (await node.call("dependencies", queue="books", id="emma"))["failed"] == 1


async def test_node_goes_on_after_we_cancel_its_jobs(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[render]) as app:
        await app.enqueue("pages", 5)  # a queue is known once it has had a job of ours
        await node.call("events", queue="pages")
        ids = [await node.call("add", queue="pages", name="render", data=n) for n in range(3)]
        late = await node.call("add", queue="pages", name="render", data=9, opts={"delay": 3_600_000})
        for id in (ids[1], late):
            assert await app.jobs.cancel(id, "torn out")
        assert (await node.wait_for_event("failed", ids[1]))["failedReason"] == "torn out"
        counts = await node.call("counts", queue="pages")
        assert (counts["waiting"], counts["delayed"], counts["failed"]) == (3, 0, 0)
        await node.call("work", queue="pages")
        for id in (ids[0], ids[2]):
            await node.job_in("pages", id, "completed")
        assert (await app.jobs.get(ids[1])).state.value == "cancelled"
        assert await app.jobs.retry(ids[1])
        assert (await node.job_in("pages", ids[1], "completed"))["returnvalue"]["by"] == "node"


async def test_node_runs_a_parent_whose_child_we_cancelled(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[render]) as app:
        tree = {
            "name": "bind",
            "queueName": "books",
            "opts": {"jobId": "emma"},
            "children": [page(1, jobId="kept"), page(2, jobId="torn", ignoreDependencyOnFailure=True)],
        }
        await app.enqueue("pages", 5)
        await node.call("flow", tree=tree)
        assert await app.jobs.cancel("torn", "torn out")
        await node.call("bind", queue="books")
        async with app.workers.background():
            done = await node.job_in("books", "emma", "completed")
        assert done["returnvalue"] == {
            "values": {"bull:pages:kept": {"page": 1}},
            "failed": {"bull:pages:torn": "torn out"},
        }
