"""A worker process for test_dag_kills: executors of a dag with three levels. `python dag_kill_worker.py URL`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from penstock import App
from penstock.dags import DagBuilder, node


@node("same", retry=3)
async def same(input: Any) -> Any:
    await asyncio.sleep(0.002)  # long enough to be killed inside
    return input


def make_dags() -> list[Any]:
    """Return root, middle and leaf: the root calls three middles and a map, each middle calls two leaves."""
    leaf = DagBuilder("leaf")
    leaf.add("a", "same")
    leaf.add("b", "same", after="a")
    leaf.add("c", "same", after="a")
    leaf.add("end", "same", after=["b", "c"])
    middle = DagBuilder("middle")
    middle.add("first", "same")
    middle.add("left", "sub-workflow", after="first", config={"workflowId": "leaf"})
    middle.add("right", "sub-workflow", after="first", config={"workflowId": "leaf"})
    middle.add("end", "same", after=["left", "right"])
    root = DagBuilder("root")
    root.add("first", "same")
    for n in range(3):
        root.add(f"sub{n}", "sub-workflow", after="first", config={"workflowId": "middle"})
    root.add("many", "map", after="first", config={"items": "{{ input }}", "workflowId": "leaf"})
    root.add("end", "same", after=["sub0", "sub1", "sub2", "many"])
    return [leaf.build(), middle.build(), root.build()]


async def main() -> None:
    async with App(sys.argv[1], handlers=[same], lease="1s", max_crashes=1000) as app:
        print("ready", flush=True)
        await app.workers.run(concurrency=8)


if __name__ == "__main__":
    asyncio.run(main())
