"""Two worker processes that are killed again and again, on dags with three levels of sub-workflows.

`make faults` runs it at full size.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dag_kill_worker import make_dags, same

from penstock.core.events import Event
from penstock.testing import until

IS_FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
KILLS, ROOTS = (100, 60) if IS_FULL else (2, 2)
PROGRAM = Path(__file__).with_name("dag_kill_worker.py")
WAIT_S = 120 + 5 * KILLS + 5 * ROOTS
pytestmark = pytest.mark.timeout(2 * WAIT_S if IS_FULL else 300)
CHILDREN = 3 * 3 + 2  # of a root: three middles with two leaves each, and a leaf for each of its two items


async def start(url: str) -> asyncio.subprocess.Process:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert worker.stdout is not None
    await worker.stdout.readline()
    return worker


async def stop(worker: asyncio.subprocess.Process) -> None:
    if worker.returncode is None:
        worker.kill()
    await worker.wait()


async def count_completed(app: Any) -> int:
    found, last = 0, None
    while page := await app.store.runs(statuses=["completed"], before=last, limit=500):
        found, last = found + len(page), page[-1].id
    return found


async def test_three_levels_under_kills(shared: Any, shared_url: str) -> None:
    async with shared(same, lease="1s") as app:
        for dag in make_dags():
            await app.dags.register(dag)
        roots = [await app.dags.start("root", [n, n + 1], key=f"root{n}") for n in range(ROOTS)]
        workers = [await start(shared_url), await start(shared_url)]
        try:
            await kill_often(app, shared_url, workers)
            await until(lambda: all_ended(app), WAIT_S)
        finally:
            for worker in workers:
                await stop(worker)
        for n, root in enumerate(roots):
            expected = {"sub0": _pair(n), "sub1": _pair(n), "sub2": _pair(n), "many": [_leaf(n), _leaf(n + 1)]}
            assert await app.runs.result(root.id) == expected
            await check_tree(app, root.id)


def _leaf(value: Any) -> Any:
    return {"b": value, "c": value}


def _pair(n: int) -> Any:
    return {"left": _leaf([n, n + 1]), "right": _leaf([n, n + 1])}


async def all_ended(app: Any) -> bool:
    return await count_completed(app) == ROOTS * (1 + CHILDREN)


async def kill_often(app: Any, url: str, workers: list[asyncio.subprocess.Process]) -> None:
    """Kill a worker each time some more runs have completed, and start another one."""
    total = ROOTS * (1 + CHILDREN)
    for kill in range(KILLS):
        goal = total * kill // (KILLS + 1)

        async def is_reached(goal: int = goal) -> bool:
            return await count_completed(app) >= goal

        await until(is_reached, WAIT_S)
        await stop(workers[kill % 2])
        workers[kill % 2] = await start(url)


async def check_tree(app: Any, root: str) -> None:
    """Check the links of a tree, and that no node ran after it had ended."""
    links: dict[str, tuple[str | None, int]] = {root: (None, 0)}
    left, seen = [root], 0
    while left:
        id = left.pop()
        parent, depth = links[id]
        view = await app.runs.get(id)
        assert (view.status, view.parent, view.depth or 0) == ("completed", parent, depth)
        assert view.root == (root if parent is not None else None)
        check_nodes(await app.events.read_all(f"nq:dag:{id}"))
        seen += 1
        for child in await app.runs.children(id, limit=100):
            links[child.id] = (id, depth + 1)
            left.append(child.id)
    assert seen == 1 + CHILDREN


def check_nodes(events: list[Event]) -> None:
    ended: set[str] = set()
    kinds = Counter((event.kind, event.step) for event in events)
    for event in events:
        if event.kind == "node.started":
            assert event.step not in ended, f"{event.step} started after it had completed"
        elif event.kind == "node.completed":
            assert kinds[event.kind, event.step] == 1, f"{event.step} completed twice"
            ended.add(event.step or "")
    assert kinds["flow.completed", None] == 1
    assert events[-1].kind == "flow.completed"


def test_the_check_sees_a_node_that_runs_again() -> None:
    def event(n: int, kind: str, step: str | None = None) -> Event:
        return Event(id=f"1-{n}", ts="", kind=kind, subject="r", step=step)

    good = [event(1, "node.started", "a"), event(2, "node.completed", "a"), event(3, "flow.completed")]
    check_nodes(good)
    for bad in (
        [*good[:2], event(3, "node.started", "a"), event(4, "flow.completed")],
        [*good[:2], event(3, "node.completed", "a"), event(4, "flow.completed")],
        [*good, event(4, "flow.completed")],
    ):
        with pytest.raises(AssertionError):
            check_nodes(bad)
