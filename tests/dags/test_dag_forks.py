"""Forks of runs of dags."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.errors import CannotFork
from penstock.dags import DagBuilder, Fail, Skip
from penstock.dags import node as executor

calls: list[str] = []


@executor("note")
async def note(input: Any, config: Any, ctx: Any) -> Any:
    calls.append(f"{ctx.run_id}.{ctx.step}")
    if config == "skip":
        return Skip("away")
    return (
        Fail("no", retry=False) if config == "fail" and ctx.run_id == "r1" and ctx.n == 1 else f"{ctx.step} of {input}"
    )


def make() -> Any:
    dag = DagBuilder("d")
    dag.add("a", "note")
    dag.add("s", "note", after="a", config="skip")
    dag.add("b", "note", after="a", config="fail")
    dag.add("w", "wait", after="a", config={"event": "go"})
    dag.add(
        "t",
        "transform",
        after=["a", "b", "s", "w"],
        config={"output": "{{ nodes.a.data }}/{{ nodes.b.data }}/{{ input }}"},
    )
    return dag.build()


async def event_of(a: Any, kind: str, node: str) -> str:
    events = await a.events.read_all("nq:dag:r1")
    return str(next(event.id for event in events if event.kind == kind and event.step == node))


async def test_a_fork_continues_after_an_event(app: Any) -> None:
    calls.clear()
    async with app(note) as a, a.workers.background():
        await a.dags.register(make())
        await a.dags.start("d", "x", key="r1")
        await a.emit("go", 1, run="r1")
        await a.runs.wait("r1", timeout=20)
        assert (await a.runs.get("r1")).status == "failed"
        at = await event_of(a, "node.completed", "a")
        fork = await a.runs.fork("r1", at, key="r2")
        assert (await a.runs.fork("r1", at, key="r2")).id == "r2"  # again changes nothing
        await a.dags.register({"id": "d", "nodes": [{"id": "other", "type": "note"}]})  # the fork keeps its version
        await a.emit("go", 1, run="r2")
        assert await fork.result(timeout=20) == "a of x/b of a of x/x"
        assert sorted(calls) == ["r1.a", "r1.b", "r1.s", "r2.b", "r2.s"]
        view = await a.runs.get("r2")
        assert {id: one.status for id, one in view.steps.items()} == {
            "a": "completed", "b": "completed", "s": "skipped", "t": "completed", "w": "completed",
        }  # fmt: skip
        assert view.forked_from == "r1"
        kinds = [event.kind for event in await a.events.read_all("nq:dag:r2")]
        assert kinds.count("flow.started") == kinds.count("flow.forked") == 1


async def test_a_fork_where_nothing_is_left_names_an_earlier_event(memory: Any) -> None:
    async with memory(note) as a, a.workers.background():
        await a.dags.register({"id": "d", "nodes": [{"id": "a", "type": "note"}]})
        await a.dags.start("d", "x", key="r1")
        await a.runs.wait("r1", timeout=20)
        events = await a.events.read_all("nq:dag:r1")
        with pytest.raises(
            CannotFork, match=f"no node was left to run after it; fork it at {events[-3].id} or earlier"
        ):
            await a.runs.fork("r1", events[-1].id)
        with pytest.raises(CannotFork, match="run 'r1' has no event '1-99'"):
            await a.runs.fork("r1", "1-99")


async def test_a_fork_of_a_retried_run(memory: Any) -> None:
    async with memory(note) as a, a.workers.background():
        dag = DagBuilder("d", max_concurrency=1)
        dag.add("a", "note")
        dag.add("b", "note", after="a", config="fail")
        dag.add("c", "note", after=["a", "b"])
        await a.dags.register(dag.build())
        run = await a.dags.start("d", "x", key="r1")
        await a.runs.wait("r1", timeout=20)
        plan = await a.runs.retry("r1", dry_run=True)
        assert [job.id for job in plan.jobs] == ["r1.b.2"]
        assert list(await a.dags.retry("r1")) == ["r1.b.2"]
        expected = await run.result(timeout=20)
        at = await event_of(a, "node.redriven", "b")
        plan = await a.runs.fork("r1", at, key="r2", dry_run=True)
        assert ([job.id for job in plan.jobs], plan.copied > 3) == (["r2.b.1"], True)
        assert await a.store.run("r2") is None
        fork = await a.runs.fork("r1", at, key="r2", version=plan)
        assert await fork.result(timeout=20) == expected
