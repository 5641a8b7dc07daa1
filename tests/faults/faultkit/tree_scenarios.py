"""Crash points of job trees: nothing is lost between the end of a child and the start of its parent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import Node, Permanent, job
from penstock.testing.history import History

from .scenario import Sandbox, Scenario

QUICK = {"attempts": 6, "backoff": {"type": "fixed", "delayMs": 100, "jitter": False}}


class TreeScenario(Scenario):
    name = "tree of jobs"

    def handlers(self, sandbox: Sandbox) -> list[Callable[..., Any]]:
        @job(queue="pages", retry=QUICK, dead_letters=False)
        async def page(n: int, ctx: Any) -> int:
            sandbox.record(ctx)
            if n < 0:
                raise Permanent("torn")
            return n

        @job(queue="books", retry=QUICK)
        async def book(title: str, ctx: Any) -> Any:
            sandbox.record(ctx)
            values, torn = await ctx.children_values(), await ctx.failed_children()
            return {"title": title, "parts": [values[key] for key in sorted(values)], "torn": list(torn)}

        return [page, book]

    async def drive(self, sandbox: Sandbox) -> None:
        chapter = Node("books", "chapter", children=[Node("pages", 1), Node("pages", -1, on_failure="ignore")])
        tree = Node("books", "book", key="book", children=[chapter, Node("pages", 2)])
        async with sandbox.app.workers.background():
            await sandbox.retry(lambda: sandbox.app.jobs.enqueue_tree(tree))
            sandbox.acknowledged.add("book")
            await sandbox.settle()
            inner = {"title": "chapter", "parts": [1], "torn": ["bull:pages:book-c1-c2"]}
            expected = {"title": "book", "parts": [inner, 2], "torn": []}
            assert await sandbox.retry(lambda: sandbox.app.jobs.result("book", timeout="30s")) == expected

    async def check(self, sandbox: Sandbox, history: History) -> None:
        ended = [e.subject for e in history.queues["nq:queue:books"] if e.kind == "job.completed"]
        assert sorted(ended) == ["book", "book-c1"], f"each parent ends once: {ended}"
        added = [e.subject for e in history.queues["nq:queue:pages"] if e.kind == "job.added"]
        assert sorted(added) == ["book-c1-c1", "book-c1-c2", "book-c2"], f"the tree is added once: {added}"


TREE_SCENARIOS = (TreeScenario(),)
