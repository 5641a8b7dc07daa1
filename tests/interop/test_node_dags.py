"""What Node programs see of dags: the status of each node as progress of its job."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App
from penstock.dags import DagBuilder, Fail, Skip
from penstock.dags import node as executor
from penstock.testing.until import until

pytestmark = pytest.mark.xdist_group("interop")
QUEUE = "work"


@executor("work", queue=QUEUE)
async def work(input: Any, config: Any, ctx: Any) -> Any:
    if config == "fail":
        return Fail("no", retry=False)
    if config == "later":
        return Fail("not yet") if ctx.attempt == 1 else "done"
    return Skip("away") if config == "skip" else input


@pytest.mark.spec("004-7.1", "004-7.3", "004-1.4", "004-1.6")
async def test_queue_events_of_node_see_the_status_of_nodes_and_runs(node: Any, redis_url: str) -> None:
    dag = DagBuilder("d")
    dag.add("a", "work")
    dag.add("b", "work", after="a", config="skip")
    dag.add("c", "work", after="a", config="later", retry={"attempts": 2, "backoff": {"delay": "1ms", "type": "fixed"}})
    dag.add("d", "work", after="c", config="fail", continue_on_fail=True)
    async with App(redis_url, handlers=[work]) as app:
        await app.dags.register(dag.build())
        await node.call("events", queue=QUEUE)
        async with app.workers.background():
            run = await app.dags.start("d", 5, key="r1")
            await app.runs.wait(run.id, timeout=20)
            paused = await app.dags.start("d", 5, key="r2", delay="1h")
            await app.runs.pause(paused.id)
            await app.runs.cancel(paused.id)

            def find() -> Any:
                seen = [one for one in node.events if one["event"] == "progress"]
                return seen if any(one["data"].get("workflowStatus") == "cancelled" for one in seen) else None

            seen = await until(find)
    assert all(isinstance(one["data"].pop("timestamp"), int) for one in seen)
    first = [(one["jobId"], one["data"]) for one in seen if one["jobId"].startswith("r1.")]
    of_nodes = {
        name: [data["nodeStatus"] for _, data in first if data.get("nodeId") == name] for name in ("a", "b", "c", "d")
    }
    assert of_nodes == {
        "a": ["running", "completed"],
        "b": ["running", "skipped"],
        "c": ["running", "delayed", "running", "completed"],
        "d": ["running", "failed"],
    }
    assert first[0] == ("r1.a.1", {"eventType": "workflow", "workflowStatus": "started"})
    assert ("r1.c.1", {"eventType": "node", "nodeId": "c", "nodeStatus": "completed"}) in first
    assert first[-1] == ("r1.a.1", {"eventType": "workflow", "workflowStatus": "completed"})
    second = [one["data"]["workflowStatus"] for one in seen if one["jobId"] == "r2.a.1"]
    assert second == ["started", "paused", "cancelled"]
