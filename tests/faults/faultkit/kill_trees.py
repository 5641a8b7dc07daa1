"""Job trees whose workers are killed: no end of a child is lost, and each parent ends once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from penstock import App, Node
from penstock.core.errors import WaitTimeout
from penstock.testing.until import until

from .backends import Backend
from .fleet import Fleet

TEST_TIMEOUT_S = 60


class TreeReport(msgspec.Struct):
    """What happened, and the problems found."""

    kills: int = 0
    trees: int = 0
    attempts: int = 0
    executions: int = 0
    orphaned: int = 0  # attempts whose worker died before they ended
    problems: list[str] = []

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.trees} trees, {self.attempts} attempts recorded, {self.executions} executed, "
            f"{self.orphaned} orphaned, {len(self.problems)} problems"
        )


def _tree(n: int) -> Node:
    chapter = Node("books", "chapter", children=[Node("pages", 1), Node("pages", -1, on_failure="ignore")])
    return Node("books", "book", key=f"book-{n}", children=[chapter, Node("pages", 2), Node("pages", 3)])


EXPECTED = {"title": "book", "parts": [{"title": "chapter", "parts": [1], "torn": 1}, 2, 3], "torn": 0}


async def kill_tree_workers(backend: Backend, folder: Path, *, trees: int, kills: int, seed: int) -> TreeReport:
    """Run two workers and kill one at a time, each after some jobs were executed since the last kill."""
    rng, report = random.Random(seed), TreeReport()
    async with App(backend.url(folder), handlers=[]) as app:
        with Fleet(backend.url(folder), folder, spares=2, step_ms=200) as fleet:
            for _ in range(2):
                fleet.start_worker()
            for n in range(kills):
                wanted = len(fleet.effects.read()) + rng.randint(2, 12)
                for k in range(trees * n // kills, trees * (n + 1) // kills):
                    await app.jobs.enqueue_tree(_tree(k))
                    report.trees += 1
                await until(lambda wanted=wanted: len(fleet.effects.read()) > wanted, TEST_TIMEOUT_S)
                await asyncio.to_thread(fleet.kill, fleet.working[0])  # the one that has worked longest
                report.kills += 1
                fleet.start_worker()
            for n in range(trees):
                report.problems += await _check_result(app, f"book-{n}")
        report.executions = len(fleet.effects.read())
        await _check_jobs(app, report)
    return report


async def _check_result(app: App, id: str) -> list[str]:
    try:
        result = await app.jobs.result(id, timeout="30s")
    except WaitTimeout as problem:
        row = await app.jobs.get(id)
        return [f"{problem} (it is {row.state}, {await app.jobs.count_children(id)})"]
    return [] if result == EXPECTED else [f"the result of {id} is {result}"]


async def _check_jobs(app: App, report: TreeReport) -> None:
    """Check that each job ended once."""
    ended: Counter[str | None] = Counter()
    events: list[Any] = []
    for queue in ("books", "pages"):
        events += await app.events.read_all(f"nq:queue:{queue}")
    for event in events:
        is_final = event.kind == "job.completed" or (event.kind == "job.failed" and not event.data["willRetry"])
        ended[event.subject] += is_final
    report.attempts = sum(event.kind == "job.active" for event in events)
    report.orphaned = report.attempts - sum(ended.values())
    report.problems += [f"{id} ended {times} times" for id, times in ended.items() if times != 1]
    if len(ended) != report.trees * 6:
        report.problems.append(f"{len(ended)} jobs ended, not {report.trees * 6}")
