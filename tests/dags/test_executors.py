"""Executors in every runner, and worker files of executors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node_programs import node as node_program
from penstock.core.errors import DagInvalid, DefinitionError
from penstock.dags import DagBuilder, Fail, Skip
from penstock.dags import node as executor
from penstock.testing import TestApp

PYTHON = """
import os
from penstock import RetryPolicy
from penstock.dags import Fail, Next, Skip, node
from penstock.core.retry import Backoff

AT_ONCE = RetryPolicy(2, Backoff("fixed", 1, jitter=False))


@node("choose", runner="process", retry=AT_ONCE)
def choose(input, config, skipped, ctx):
    if ctx.attempt == 1:
        return Fail("not yet")
    return Next(config["next"], {"pid": os.getpid(), "input": input})


@node("skip", runner="process")
async def skip(input):
    return Skip("nobody is there")


@node("join", runner="process")
async def join(input, skipped, ctx):
    first = await ctx.run("one", lambda: 1)
    return {"input": input, "skipped": list(skipped), "first": first, "step": ctx.step}
"""
SCRIPT = """
import { fail, next, skip } from 'penstock'
export const queue = 'scripts'
export const config = { node: { type: 'script', config: { type: 'object', required: ['does'] } }, retry: { attempts: 2, backoff: { delayMs: 1 } } }
export default async function (input, ctx) {
  if (ctx.config.does === 'skip') return skip('nobody is there')
  if (ctx.config.does === 'fail') return ctx.attempt === 1 ? fail('not yet') : fail('never', { retry: false })
  if (ctx.config.does === 'next') return next(ctx.config.next, { input })
  return { input, skipped: ctx.skipped, first: await ctx.run('one', () => 1), step: ctx.step }
}
"""
CONTRACT = """
queue = "contract"
config = {"node": {"type": "handled", "config": {"type": "object", "required": ["by"]}}}


def handle(input, config):
    return input * config["by"]
"""


@pytest.mark.spec("004-6.1", "004-6.2", "004-6.3")
async def test_executors_run_in_a_child_process(tmp_path: Path) -> None:
    (tmp_path / "nodes.py").write_text(PYTHON)
    dag = DagBuilder("d")
    dag.add("choose", "choose", config={"next": ["a", "b"]})
    dag.add("a", "skip", after="choose")
    dag.add("b", "join", after="choose")
    dag.add("c", "join", after="choose")
    dag.add("end", "join", after=["a", "b", "c"])
    wrong = DagBuilder("wrong")
    wrong.add("choose", "choose", config={"next": "x"})
    wrong.add("y", "skip", after="choose")
    async with TestApp(dir=tmp_path) as app:
        await app.dags.register(dag.build())
        view = await app.run_dag("d", 5)
        assert view.status == "completed"
        result = view.result
        assert (result["skipped"], result["first"], result["step"]) == (["a", "c"], 1, "end")
        assert result["input"]["b"]["input"]["input"] == 5
        await app.dags.register(wrong.build())
        failed = await app.run_dag("wrong")
        assert "Next names 'x', which does not follow this node; nodes after it: y" in (failed.error or "")


@pytest.mark.skipif(node_program() is None, reason="no Node")
async def test_executors_run_in_node(tmp_path: Path) -> None:
    (tmp_path / "script.ts").write_text(SCRIPT)
    dag = DagBuilder("d")
    dag.add("choose", "script", config={"does": "next", "next": ["a", "b"]})
    dag.add("a", "script", after="choose", config={"does": "skip"})
    dag.add("b", "script", after="choose", config={"does": "fail"}, continue_on_fail=True)
    dag.add("c", "script", after="choose", config={"does": "join"})
    dag.add("end", "script", after=["a", "b", "c"], config={"does": "join"})
    async with TestApp(dir=tmp_path, node=node_program()) as app:
        assert app.registry.problems == ()
        await app.dags.register(dag.build())
        view = await app.run_dag("d", 5)
        assert view.status == "completed"
        assert view.result["input"]["b"]["error"]["error"] == "never"
        assert (view.result["skipped"], view.result["first"]) == (["a", "c"], 1)
        assert view.steps["b"].attempt == 2
        wrong = DagBuilder("wrong")
        wrong.add("choose", "script", config={"does": "next", "next": "x"})
        wrong.add("y", "script", after="choose", config={"does": "skip"})
        await app.dags.register(wrong.build())
        assert "next names 'x', which does not follow this node; nodes after it: y" in (
            (await app.run_dag("wrong")).error or ""
        )
        with pytest.raises(DagInvalid, match="the config of 'script'"):
            app.dags.check({"id": "d", "nodes": [{"id": "a", "type": "script"}]})


async def test_a_worker_file_with_handle_is_an_executor(tmp_path: Path) -> None:
    (tmp_path / "double.py").write_text(CONTRACT)
    dag = DagBuilder("d")
    dag.add("a", "handled", config={"by": 2})
    async with TestApp(dir=tmp_path) as app:
        assert app.registry.problems == ()
        await app.dags.register(dag.build())
        assert (await app.run_dag("d", 21)).result == 42


def test_an_executor_cannot_also_be_a_step(tmp_path: Path) -> None:
    (tmp_path / "both.py").write_text("config = {'node': 'x', 'step': 'y'}\ndef handle(input): return 1\n")
    (problem,) = TestApp(dir=tmp_path).registry.problems
    assert "config has 'node' and 'step'; the executor of a node cannot have it" in problem.message


async def test_a_test_replaces_executors() -> None:
    dag = DagBuilder("d")
    dag.add("fetch", "http", config={"url": "https://example.com/{{ input }}"})
    dag.add("pay", "bank.pay", after="fetch", retry=2)
    async with TestApp(handlers=[]) as app:
        fetched = app.replace_executor("http", lambda _input, config: {"body": config["url"]})
        paid = app.replace_executor("bank.pay", Fail("closed"))
        await app.dags.register(dag.build())
        assert (await app.run_dag("d", "eve")).status == "failed"
        assert [(call.node, call.input) for call in fetched] == [("fetch", "eve")]
        assert [call.input for call in paid] == [{"body": "https://example.com/eve"}] * 2
        app.replace_executor("bank.pay", Skip("no"))
        assert (await app.run_dag("d", "eve")).steps["pay"].status == "skipped"
        app.replace_executor("bank.pay", ValueError("broken"))
        assert "broken" in ((await app.run_dag("d", "eve")).error or "")


def test_a_runner_needs_a_function_that_a_child_can_import() -> None:
    with pytest.raises(DefinitionError, match="a child process cannot import it"):

        @executor("nested", runner="process")
        def nested(input: Any) -> Any:
            return input


async def test_a_map_does_not_call_an_executor_of_another_runner(tmp_path: Path) -> None:
    (tmp_path / "nodes.py").write_text(PYTHON)
    dag = {"id": "d", "nodes": [{"id": "a", "type": "map", "config": {"items": [1], "executor": "skip"}}]}
    async with TestApp(dir=tmp_path) as app:
        with pytest.raises(DagInvalid, match="'skip' runs in the runner 'process'"):
            app.dags.check(dag)
