"""Runs of dags on every store."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

from penstock import Context, RetryPolicy
from penstock.app.run_actions import jobs_of
from penstock.core.errors import DagInactive, RunCancelled, RunError, RunFailed, UnknownDag, UnknownFlow
from penstock.core.retry import Backoff
from penstock.dags import DagBuilder, Fail, Next, Skip
from penstock.dags import node as executor
from penstock.dags.definition import Dag
from penstock.testing import until

JOINS = 100 if os.environ.get("PENSTOCK_FAULTS") == "full" else 2
AT_ONCE = RetryPolicy(3, Backoff("fixed", 1, jitter=False))


class Greeting(msgspec.Struct):
    text: str = "hello"


@executor("echo")
async def echo(input: Any) -> Any:
    return input


@executor("greet", config=Greeting)
def greet(input: Any, config: Greeting) -> str:
    return f"{config.text} {input}"


@executor("count")
async def count(input: Any, ctx: Context) -> Any:
    seen[f"{ctx.run_id}.{ctx.step}"] = seen.get(f"{ctx.run_id}.{ctx.step}", 0) + 1
    return input


seen: dict[str, int] = {}


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def make(*nodes: dict[str, Any], id: str = "d") -> Dag:
    builder = DagBuilder(id)
    for one in nodes:
        builder.add(**one)
    return builder.build()


async def register(app: Any, *nodes: dict[str, Any], id: str = "d") -> None:
    await app.dags.register(make(*nodes, id=id))


def step(id: str, type: str = "echo", *after: str, **options: Any) -> dict[str, Any]:
    return {"id": id, "type": type, "after": after, **options}


@pytest.mark.spec("004-1.1")
@pytest.mark.spec("004-2.8")
async def test_a_diamond_joins_with_the_data_of_each_parent(app: Any) -> None:
    async with app(echo, greet) as a, a.workers.background():
        await register(
            a,
            step("a"),
            step("b", "greet", "a"),
            step("c", "greet", "a", config={"text": "bye"}),
            step("d", "echo", "b", "c"),
        )
        run = await a.dags.start("d", "eve", key="r1")
        assert await run.result(timeout=20) == {"b": "hello eve", "c": "bye eve"}
        view = await a.runs.get("r1")
        assert (view.name, view.status, view.input) == ("d", "completed", "eve")
        assert {id: one.status for id, one in view.steps.items()} == dict.fromkeys("abcd", "completed")
        kinds = [event.kind for event in await a.events.read("nq:dag:r1")]
        assert kinds[:2] == ["flow.started", "node.started"]
        assert kinds[-2:] == ["node.completed", "flow.completed"]
        assert sorted(await jobs_of(a, "r1")) == ["r1.a.1", "r1.b.1", "r1.c.1", "r1.d.1"]
        (summary,) = await a.runs.list()
        assert (summary.flow, summary.kind, summary.status) == ("d", "dag", "completed")


@pytest.mark.spec("004-5.4")
async def test_a_failure_that_continues_is_the_data_of_its_node(app: Any) -> None:
    @executor("fail", retry=AT_ONCE)
    async def fail(ctx: Context) -> Any:
        seen["attempts"] = ctx.attempt
        return Fail("out of stock")

    async with app(echo, fail) as a, a.workers.background():
        await register(a, step("a", "fail", continue_on_fail=True), step("b", "echo", "a"))
        run = await a.dags.start("d")
        result = await run.result(timeout=20)
        assert result == {"error": {"error": "out of stock", "name": "NodeFailed", "code": "node_failed"}}
        assert seen["attempts"] == 3


async def test_a_final_failure_fails_the_run_and_lets_other_branches_end(app: Any) -> None:
    @executor("fail")
    async def fail() -> Any:
        return Fail("no", retry=False)

    async with app(echo, fail) as a, a.workers.background():
        await register(a, step("a", "fail"), step("b"), step("c", "echo", "b"), step("d", "echo", "a", "c"))
        run = await a.dags.start("d", 1, key="r1")
        with pytest.raises(RunFailed, match="run 'r1' failed in node 'a': no"):
            await run.result(timeout=20)
        view = await a.runs.get("r1")
        assert {id: one.status for id, one in view.steps.items()} == {"a": "failed", "b": "completed", "c": "completed"}


async def test_skip_and_next(app: Any) -> None:
    @executor("choose")
    async def choose(input: int) -> Any:
        return Next(["high"] if input > 100 else ["low"], {"amount": input})

    @executor("skip")
    async def skip() -> Any:
        return Skip("nobody is there")

    async with app(echo, choose, skip, count) as a, a.workers.background():
        await register(
            a,
            step("choose", "choose"),
            step("high", "skip", "choose"),
            step("low", "echo", "choose"),
            step("after-high", "count", "high"),
            step("end", "count", "high", "low"),
        )
        low = await a.dags.start("d", 7, key="low")
        assert await low.result(timeout=20) == {"high": None, "low": {"amount": 7}}
        high = await a.dags.start("d", 700, key="high")
        assert await high.result(timeout=20) is None
        view = await a.runs.get("high")
        assert {id: one.status for id, one in view.steps.items() if one.status == "skipped"} == dict.fromkeys(
            ["high", "low", "after-high", "end"], "skipped"
        )
        assert view.steps["high"].reason == "nobody is there"
        assert view.steps["low"].reason == "not chosen by choose"
        assert view.steps["end"].reason == "every input was skipped"
        assert seen == {"low.end": 1}


async def test_next_names_only_nodes_that_follow(memory: Any) -> None:
    @executor("choose")
    async def choose() -> Any:
        return Next(["hihg"])

    async with memory(echo, choose) as a, a.workers.background():
        await register(a, step("choose", "choose"), step("high", "echo", "choose"))
        with pytest.raises(RunFailed, match="Next names 'hihg', which does not follow this node; did you mean 'high'"):
            await (await a.dags.start("d")).result(timeout=20)


async def test_expressions_read_the_input_and_the_data_of_earlier_nodes(app: Any) -> None:
    async with app(echo, greet) as a, a.workers.background():
        await register(
            a,
            step("first", "transform", config={"output": {"id": "{{ input.order.id }}", "n": [1, 2]}}),
            step("second", "echo", "first"),
            step("third", "greet", "second", config={"text": "{{ nodes.first.data.id }}/{{ nodes.second.data.n[1] }}"}),
        )
        run = await a.dags.start("d", {"order": {"id": 7}})
        assert await run.result(timeout=20) == "7/2 {'id': 7, 'n': [1, 2]}"


async def test_an_expression_without_a_value_names_node_and_expression(memory: Any) -> None:
    async with memory(echo) as a, a.workers.background():
        await register(a, step("first"), step("second", "transform", "first", config={"output": "{{ input.ordr }}"}))
        with pytest.raises(RunFailed) as failure:
            await (await a.dags.start("d", {"order": 1})).result(timeout=20)
        assert "the config of node 'second': {{ input.ordr }}: input has no 'ordr'; did you mean 'order'?" in str(
            failure.value
        )


@pytest.mark.timeout(3600)
async def test_two_hundred_nodes_join_once(app: Any) -> None:
    async with app(echo, count) as a, a.workers.background():
        middle = [step(f"n{n}", "echo", "start") for n in range(200)]
        await register(a, step("start"), *middle, step("end", "count", *(one["id"] for one in middle)))
        for n in range(JOINS):
            run = await a.dags.start("d", 1, key=f"r{n}")
            result = await run.result(timeout=60)
            assert len(result) == 200
            events = await a.events.read(f"nq:dag:r{n}", limit=1000)
            assert [event.kind for event in events].count("flow.completed") == 1
        assert seen == {f"r{n}.end": 1 for n in range(JOINS)}


async def test_a_failed_node_is_retried_and_completed_ones_are_not_run_again(app: Any) -> None:
    @executor("flaky")
    async def flaky(input: Any, ctx: Context) -> Any:
        return input if ctx.n > 1 else Fail("not yet", retry=False)

    async with app(count, flaky) as a, a.workers.background():
        await register(a, step("a", "count"), step("b", "flaky", "a"), step("c", "count", "a", "b"))
        run = await a.dags.start("d", 1, key="r1")
        with pytest.raises(RunFailed):
            await run.result(timeout=20)
        with pytest.raises(RunError, match="node 'a' of run 'r1' has not failed; failed nodes: b"):
            await a.dags.retry("r1", node="a")
        assert list(await a.dags.retry("r1")) == ["r1.b.2"]
        assert await run.result(timeout=20) == {"a": 1, "b": 1}
        assert seen == {"r1.a": 1, "r1.c": 1}
        with pytest.raises(RunError, match="has no failed node to retry"):
            await a.dags.retry("r1")


async def test_a_cancelled_run_never_completes(app: Any) -> None:
    async with app(echo, count) as a:
        await register(a, step("a"), step("b", "count", "a"))
        run = await a.dags.start("d", 1, key="r1")
        assert await a.runs.cancel("r1", "enough")
        async with a.workers.background():
            with pytest.raises(RunCancelled, match="run 'r1' was cancelled: enough"):
                await run.result(timeout=20)
            await (await a.dags.start("d", 1, key="r2")).result(timeout=20)
        assert seen == {"r2.b": 1}
        assert not await a.runs.cancel("r1")
        assert (await a.runs.get("r1")).status == "cancelled"


async def test_a_paused_run_goes_on_when_it_is_resumed(app: Any) -> None:
    async with app(count) as a:
        await register(a, step("a", "count"))
        run = await a.dags.start("d", 1, key="r1")
        assert await a.runs.pause("r1")
        async with a.workers.background():
            await (await a.dags.start("d", 1, key="r2")).result(timeout=20)
            assert seen == {"r2.a": 1}
            assert (await a.runs.get("r1")).status == "paused"
            assert await a.runs.resume("r1")
            assert await run.result(timeout=20) == 1


async def test_a_replay_starts_a_new_run_with_the_same_input(memory: Any) -> None:
    async with memory(echo) as a, a.workers.background():
        await register(a, step("a"))
        await (await a.dags.start("d", {"x": 1}, key="r1")).result(timeout=20)
        assert await a.runs.result(await a.runs.replay("r1"), timeout=20) == {"x": 1}
        assert await a.runs.result(await a.runs.replay("r1", input=2), timeout=20) == 2


async def test_app_start_starts_a_dag_by_its_name(shared: Any) -> None:
    async with shared(echo) as a:
        await register(a, step("a"))
    async with shared(echo) as a, a.workers.background():  # it has not seen the dag yet
        assert await (await a.start("d", 5)).result(timeout=20) == 5
        with pytest.raises(UnknownFlow, match="no flow named 'dd'"):
            await a.start("dd")


@pytest.mark.spec("004-2.9")
@pytest.mark.spec("004-4.6")
async def test_versions(shared: Any) -> None:
    async with shared(echo, greet) as a:
        first = await a.dags.register({"id": "d", "nodes": [{"id": "a", "type": "echo"}]}, notes="first")
        assert (await a.dags.register(make(step("a")))).latest == first.latest == 1
        run = await a.dags.start("d", "x", key="old")
        changed = make(step("a", "greet"), step("b", "echo", "a"))
        assert (await a.dags.register(changed, notes="second")).latest == 2
        comparison = await a.dags.compare("d", 1, 2)
        assert (comparison.added, comparison.removed, comparison.changed) == (("b",), (), {"a": ("type",)})
        (summary,) = await a.dags.list()
        assert [(one.version, one.notes) for one in summary.versions] == [(1, "first"), (2, "second")]
        assert isinstance(await a.dags.get("d", version=1), Dag)
        assert await a.dags.deactivate("d")
        with pytest.raises(DagInactive, match="dag 'd' is deactivated"):
            await a.dags.start("d")
        assert await a.dags.activate("d")
        with pytest.raises(UnknownDag, match="no dag named 'f'; register it"):
            await a.dags.get("f")
    async with shared(echo, greet) as a, a.workers.background():  # loads the version from the store
        assert await a.runs.result(run, timeout=20) == "x"
        assert (await a.runs.get("old")).version == "1"
        assert await (await a.dags.start("d", "x")).result(timeout=20) == "hello x"


@pytest.mark.spec("004-2.3")
@pytest.mark.spec("004-2.5")
@pytest.mark.spec("004-2.6")
@pytest.mark.spec("004-2.10")
async def test_a_sub_workflow_is_a_child_run_and_its_node_waits(app: Any) -> None:
    async with app(echo) as a, a.workers.background():
        await register(a, step("leaf", "transform", config={"output": {"got": "{{ input.x }}"}}), id="leaf")
        call = {"workflowId": "leaf", "inputMapping": {"x": "a.b", "y": "gone"}, "outputMapping": {"z": "got"}}
        await register(a, step("sub", "sub-workflow", config=call), step("end", "echo", "sub"), id="middle")
        await register(a, step("sub", "sub-workflow", config={"workflowId": "middle"}), id="root")
        run = await a.dags.start("root", {"a": {"b": 5}}, key="r1")
        assert await run.result(timeout=20) == {"z": 5}
        (child,) = await a.runs.list(parent="r1")
        (grandchild,) = await a.runs.list(parent=child.id)
        view = await a.runs.get(grandchild.id)
        assert (view.name, view.parent, view.root, view.depth) == ("leaf", child.id, "r1", 2)


@pytest.mark.spec("004-2.4")
async def test_an_unknown_sub_workflow_is_an_error_of_its_node(memory: Any) -> None:
    async with memory(echo) as a, a.workers.background():
        await register(a, step("sub", "sub-workflow", config={"workflowId": "leef"}))
        await register(a, step("a"), id="leaf")
        with pytest.raises(RunFailed, match="failed in node 'sub': no flow named 'leef'; did you mean 'leaf'"):
            await (await a.dags.start("d")).result(timeout=20)


async def test_cancelling_a_run_cancels_its_sub_workflows(app: Any) -> None:
    async with app(echo) as a, a.workers.background():
        await register(a, step("wait", "wait", config={"event": "never"}), id="leaf")
        await register(a, step("sub", "sub-workflow", config={"workflowId": "leaf"}))
        run = await a.dags.start("d", key="r1")
        child = await _first_child(a, "r1")
        assert await a.runs.cancel("r1")
        with pytest.raises(RunCancelled):
            await a.runs.result(child, timeout=20)
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)


async def _first_child(a: Any, run: str) -> str:
    async def find() -> Any:
        return await a.runs.list(parent=run)

    return str((await until(find))[0].id)


async def test_a_delay_passes_its_input_on(kit: Any) -> None:
    async with kit(echo) as a:
        await register(a, step("a", "delay", config={"duration": "10m"}), step("b", "echo", "a", delay="1h"))
        before = a.clock.now_ms()
        assert await a.result(await a.start("d", {"x": 1})) == {"x": 1}
        assert a.clock.now_ms() - before >= 70 * 60_000
