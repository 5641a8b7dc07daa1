"""Sub-workflows: depth, failures, pause, resume and cancel of the whole tree."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Context
from penstock.core.errors import RunFailed
from penstock.dags import DagBuilder, Fail
from penstock.dags import node as executor
from penstock.testing import until


@executor("echo")
async def echo(input: Any) -> Any:
    return Fail("no", retry=False) if input == "bad" else input


def single(id: str, type: str, config: Any = None, **options: Any) -> Any:
    dag = DagBuilder(id)
    dag.add("a", type, config=config, **options)
    return dag.build()


def call(id: str, child: str, **options: Any) -> Any:
    return single(id, "sub-workflow", {"workflowId": child}, **options)


async def test_a_dag_that_calls_itself_ends_at_the_depth_limit(app: Any) -> None:
    async with app() as a, a.workers.background():
        await a.dags.register(call("loop", "loop"))
        with pytest.raises(RunFailed) as failure:
            await (await a.dags.start("loop", key="r1")).result(timeout=60)
        assert "the setting max_depth allows 10" in str(failure.value)
        depth, id = 0, "r1"
        while children := await a.runs.children(id):
            (child,) = children
            depth, id = depth + 1, child.id
        assert depth == 10
        assert (await a.runs.get(id)).steps["a"].error is not None


@pytest.mark.spec("004-2.7")
async def test_the_first_nodes_of_a_child_run_together_and_their_values_reach_the_waiting_parent(app: Any) -> None:
    started, may_end = list[Any](), asyncio.Event()

    @executor("slow")
    async def slow(input: Any, config: Any) -> Any:
        started.append(input)
        await may_end.wait()
        return {"by": config, "input": input}

    async with app(slow, echo) as a, a.workers.background():
        pair = DagBuilder("pair")
        for name in ("left", "right"):
            pair.add(name, "slow", config=name)
        await a.dags.register(pair.build())
        mapping = {
            "inputMapping": {"n": "x"},
            "outputMapping": {"l": "left.by", "r": "right.by", "n": "left.input.n"},
        }
        root = DagBuilder("root")
        root.add("sub", "sub-workflow", config={"workflowId": "pair", **mapping})
        root.add("end", "echo", after="sub")
        await a.dags.register(root.build())
        run = await a.dags.start("root", {"x": 7}, key="r1")

        async def is_waiting() -> bool:
            return started == [{"n": 7}] * 2 and (await a.runs.get("r1")).steps["sub"].status == "waiting"

        await until(is_waiting)
        may_end.set()
        assert await run.result(timeout=20) == {"l": "left", "r": "right", "n": 7}
        steps = [(event.kind, event.step) for event in await a.events.read_all("nq:dag:r1")]
        assert steps.index(("node.completed", "sub")) < steps.index(("node.started", "end"))


async def test_a_failed_child_fails_its_node_or_is_kept(memory: Any) -> None:
    async with memory(echo) as a, a.workers.background():
        await a.dags.register(single("leaf", "echo"))
        await a.dags.register(call("strict", "leaf"))
        kept = DagBuilder("kept")
        kept.add("a", "sub-workflow", config={"workflowId": "leaf"}, continue_on_fail=True)
        kept.add("b", "echo", after="a")
        await a.dags.register(kept.build())
        with pytest.raises(RunFailed, match="failed in node 'a'"):
            await (await a.dags.start("strict", "bad")).result(timeout=20)
        result = await (await a.dags.start("kept", "bad")).result(timeout=20)
        assert result["error"]["code"] == "child_failed"


async def test_pause_resume_and_cancel_reach_the_whole_tree(app: Any) -> None:
    async with app(echo) as a, a.workers.background():
        leaf = DagBuilder("leaf")
        leaf.add("wait", "wait", config={"event": "go"})
        leaf.add("end", "echo", after="wait")
        await a.dags.register(leaf.build())
        await a.dags.register(call("middle", "leaf"))
        root = DagBuilder("root")
        for name in ("left", "right"):
            root.add(name, "sub-workflow", config={"workflowId": "middle"})
        await a.dags.register(root.build())

        async def tree(id: str) -> Any:
            middles = await a.runs.children(id)
            leaves = [one for middle in middles for one in await a.runs.children(middle.id)]
            waits = [wait for one in leaves for wait in await a.waits.list(run=one.id)]
            return [*middles, *leaves] if len(waits) == 2 else None

        async def statuses(id: str, *wanted: str) -> Any:
            found = {(await a.runs.get(one.id)).status for one in await tree_of(id)}
            return found if found <= set(wanted) else None

        known: dict[str, Any] = {}

        async def tree_of(id: str) -> Any:
            return known[id]

        for id in ("r1", "r2"):
            await a.dags.start("root", 1, key=id)
            known[id] = await until(lambda id=id: tree(id))
            assert len(known[id]) == 4
            assert await a.runs.pause(id)
            await until(lambda id=id: statuses(id, "paused"))
        await a.emit("go", 7)
        assert {(await a.runs.get(one.id)).status for one in known["r1"]} == {"paused"}
        assert await a.runs.resume("r1")
        assert await a.runs.result("r1", timeout=20) == {"left": 7, "right": 7}
        assert await a.runs.cancel("r2")
        await until(lambda: statuses("r2", "cancelled"))
        assert not await a.runs.cancel("r2")


async def test_a_retried_node_starts_a_new_child(app: Any) -> None:
    seen = list[str]()

    @executor("work")
    async def work(ctx: Context) -> Any:
        seen.append(ctx.run_id)
        return Fail("not yet", retry=False) if len(seen) < 3 else "done"

    async with app(work) as a, a.workers.background():
        await a.dags.register(single("leaf", "work"))
        await a.dags.register(call("root", "leaf"))
        run = await a.dags.start("root", key="r1")
        for _ in range(2):
            with pytest.raises(RunFailed, match="not yet"):
                await run.result(timeout=20)
            await a.dags.retry("r1")
        assert await run.result(timeout=20) == "done"
        assert len(set(seen)) == 3


async def test_a_retried_node_takes_the_result_of_a_child_that_was_repaired(app: Any) -> None:
    seen = list[str]()

    @executor("work")
    async def work(ctx: Context) -> Any:
        seen.append(ctx.run_id)
        return Fail("not yet", retry=False) if ctx.n == 1 else "repaired"

    async with app(work) as a, a.workers.background():
        await a.dags.register(single("leaf", "work"))
        await a.dags.register(call("root", "leaf"))
        run = await a.dags.start("root", key="r1")
        with pytest.raises(RunFailed):
            await run.result(timeout=20)
        (child,) = await a.runs.children("r1")
        await a.dags.retry(child.id)
        assert await a.runs.result(child.id, timeout=20) == "repaired"
        await a.dags.retry("r1")
        assert await run.result(timeout=20) == "repaired"
        assert seen == [child.id] * 2


@pytest.mark.parametrize("concurrency", [None, 1])
async def test_a_retried_map_runs_the_failed_items_again(memory: Any, concurrency: int | None) -> None:
    seen, is_broken = list[int](), [True]

    @executor("work")
    async def work(input: Any) -> Any:
        seen.append(input)
        return Fail("not yet", retry=False) if input == 2 and is_broken[0] else input * 10

    async with memory(work) as a, a.workers.background():
        await a.dags.register(single("leaf", "work"))
        config = {"workflowId": "leaf", "items": [1, 2, 3], "concurrency": concurrency}
        await a.dags.register(single("root", "map", config))
        run = await a.dags.start("root", key="r1")
        for is_last in (False, True):
            with pytest.raises(RunFailed, match="not yet"):
                await run.result(timeout=20)
            is_broken[0] = not is_last
            await a.dags.retry("r1")
        assert await run.result(timeout=20) == [10, 20, 30]
        assert sorted(seen) == [1, 2, 2, 2, 3]
        view = await a.runs.get("r1")
        assert list(view.steps) == ["a"]
        assert (view.status, view.steps["a"].status) == ("completed", "completed")
