"""Records of dags: export and import, damaged and missing versions, results that do not fit into the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from damage import JUNK, Damage
from penstock.commit.committer import CommitRequest
from penstock.core.errors import RunError
from penstock.dags import DagBuilder, Skip
from penstock.dags import node as executor
from penstock.dags.catalog import version_key
from penstock.ports.unit import StateWrite, Unit
from penstock.testing.until import until


@executor("echo")
async def echo(input: Any) -> Any:
    return input


def waiting_dag(id: str = "d", kind: str = "go") -> Any:
    builder = DagBuilder(id)
    builder.add("first", "echo")
    builder.add("wait", "wait", after="first", config={"event": kind})
    builder.add("side", "echo", after="first", delay="1h")
    builder.add("last", "echo", after=["wait", "first"])
    return builder.build()


async def start_and_wait(a: Any) -> None:
    """Start run r1, and work until one node waits and one is delayed."""
    await a.dags.register(waiting_dag())
    await a.dags.start("d", 7, key="r1")
    async with a.workers.background():

        async def waits() -> Any:
            return await a.waits.list(run="r1")

        await until(waits)


async def test_an_open_run_is_exported_by_a_process_that_never_saw_its_dag(
    shared_url: str, app_factory: Any, new_url: Callable[[], str]
) -> None:
    async with app_factory(shared_url)(echo) as a:
        await start_and_wait(a)
    async with app_factory(shared_url)() as b:
        line = await b.runs.export("r1")
        assert "node 'last' waits for 1 of its 2 inputs" in await b.runs.why("r1")
        report = await b.runs.preflight()
        assert (report.runs, report.steps) == (1, 2)
        assert [(problem.step, problem.code) for problem in report.problems] == [("side", "unknown_node_type")]
    async with app_factory(new_url())(echo) as c:
        assert await c.runs.import_(line) == ["r1"]
        assert (await c.dags.describe("d")).latest == 1
        async with c.workers.background():
            await c.emit("go", {"x": 1}, run="r1")
            await c.jobs.promote("r1.side.1")
            assert await c.runs.result("r1", timeout=20) == {"last": {"wait": {"x": 1}, "first": 7}, "side": 7}
        assert (await c.dags.register(waiting_dag())).latest == 1


async def test_an_import_never_changes_a_version(shared_url: str, app_factory: Any, new_url: Callable[[], str]) -> None:
    async with app_factory(shared_url)(echo) as a:
        await start_and_wait(a)
        line = await a.runs.export("r1")
    async with app_factory(new_url())(echo) as b:
        await b.dags.register(waiting_dag(kind="other"))
        with pytest.raises(RunError, match="'dag-version/d/1', which run 'r1' needs, exists with another value"):
            await b.runs.import_(line)
        assert list(await b.runs.list()) == []


async def test_a_new_version_does_not_take_the_number_of_an_imported_one(
    shared_url: str, app_factory: Any, new_url: Callable[[], str]
) -> None:
    async with app_factory(shared_url)(echo) as a:
        await a.dags.register(waiting_dag(kind="old"))
        await start_and_wait(a)  # version 2
        line = await a.runs.export("r1")
    async with app_factory(new_url())(echo) as b:
        await b.dags.register(waiting_dag(kind="old"))
        await b.runs.import_(line)
        assert (await b.dags.register(waiting_dag(kind="newer"))).latest == 3
        assert (await b.dags.of_run("r1"))[0] == waiting_dag()


@pytest.mark.parametrize("junk", ["missing", "no JSON", "wrong types", "another node"])
async def test_a_version_that_cannot_be_read_fails_its_node_once(shared_url: str, app_factory: Any, junk: str) -> None:
    async with app_factory(shared_url)(echo) as a:
        await a.dags.register(waiting_dag())
        await a.dags.register(waiting_dag("other"))
        await a.dags.start("d", 1, key="r1")
        key = version_key("d", 1)
        if junk == "missing":
            unit = Unit("delete", state=[StateWrite(key, None)])
            await a._runtime.committer.submit(CommitRequest(lambda _v, _r: unit))
        elif junk == "another node":
            Damage(shared_url).state(key, b'{"dag":{"id":"d","nodes":[{"id":"x","type":"echo"}]},"queues":{}}')
        else:
            Damage(shared_url).state(key, JUNK[junk])
    async with app_factory(shared_url)(echo) as a:
        assert await a.runs.pause("r1")
        assert await a.runs.resume("r1")
        async with a.workers.background():

            async def find_failed() -> Any:
                job = await a.store.job("r1.first.1")
                return job if job is not None and job.failures else None

            job = await until(find_failed)
            assert (job.attempt, job.failures) == (1, 1)
            other = await a.dags.start("other", 1)  # the worker lives

            async def waits() -> Any:
                return await a.waits.list(run=other)

            await until(waits)
        assert (await a.runs.get("r1")).status == "running"
        if junk != "another node":
            assert "version 1 of dag 'd' cannot be read; restore it, or cancel the run" in await a.runs.why("r1")
        assert await a.runs.cancel("r1")
        assert (await a.runs.get("r1")).status == "cancelled"


async def test_many_results_are_state_of_the_run_and_read_by_its_caller(app: Any) -> None:
    builder, parent = DagBuilder("wide"), DagBuilder("parent")
    builder.add("first", "echo")
    for n in range(100):
        builder.add(f"n{n}", "transform", after="first", config={"output": n})
    parent.add("call", "sub-workflow", config={"workflowId": "wide"})
    expected = {f"n{n}": n for n in range(100)}
    async with app(echo) as a, a.workers.background():
        await a.dags.register(builder.build())
        await a.dags.register(parent.build())
        run = await a.dags.start("wide", 1, key="r1")
        assert await run.result(timeout=20) == expected
        row = await a.store.run("r1")
        assert len(row.record) < 2_000
        assert await (await a.dags.start("parent", 1)).result(timeout=20) == expected
        (end,) = [e for e in await a.events.read_all("nq:dag:r1") if e.kind == "flow.completed"]
        assert end.data["storedResults"] == 100


async def test_an_executor_learns_which_inputs_were_skipped(app: Any) -> None:
    @executor("skip")
    async def skip() -> Any:
        return Skip("no")

    @executor("join")
    def join(input: Any, skipped: Any) -> Any:
        return [input, list(skipped)]

    @executor("nothing")
    async def nothing() -> None:
        return None

    builder = DagBuilder("d")
    builder.add("a", "skip")
    builder.add("b", "nothing")
    builder.add("c", "join", after=["a", "b"])
    builder.add("d", "transform", after=["a", "b"], config={"output": "{{ nodes.a.skipped }} {{ nodes.b.skipped }}"})
    async with app(skip, join, nothing) as a, a.workers.background():
        await a.dags.register(builder.build())
        result = await (await a.dags.start("d")).result(timeout=20)
        assert result == {"c": [{"a": None, "b": None}, ["a"]], "d": "true false"}


async def test_a_comparison_shows_fields_of_the_dag_itself(memory: Any) -> None:
    async with memory(echo) as a:
        nodes = [{"id": "a", "type": "echo"}]
        await a.dags.register({"id": "d", "nodes": nodes})
        changed = {"id": "d", "nodes": nodes, "name": "D", "priority": 2, "delay": "1s", "entryNodeId": "a"}
        await a.dags.register(changed)
        found = await a.dags.compare("d", 1, 2)
        assert (found.added, found.removed, found.changed) == ((), (), {})
        assert found.fields == ("name", "priority", "delayMs", "entryNodeId")
