"""`penstock run` on dags: sub-workflows, skipped nodes, and runs that are continued."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock import App
from penstock.app.dag_files import register_dag_files
from penstock.testing import until

NODES = """
from penstock.dags import Skip, node

@node("greet", queue="greetings")
async def greet(input):
    return f"Hello, {input}!"

@node("skip")
async def skip():
    return Skip("away")
"""
CHILD = {"id": "child", "nodes": [{"id": "a", "type": "greet"}]}
PARENT = {
    "id": "parent",
    "nodes": [
        {"id": "call", "type": "sub-workflow", "config": {"workflowId": "child"}},
        {"id": "many", "type": "map", "inputs": ["call"], "config": {"items": [1, 2], "workflowId": "child"}},
        {"id": "skip", "type": "skip"},
    ],
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "nodes.py").write_text(NODES)
    (tmp_path / "workers" / "child.dag.json").write_text(json.dumps(CHILD))
    (tmp_path / "workers" / "parent.dag.json").write_text(json.dumps(PARENT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_run_works_on_the_runs_that_a_node_calls(project: Path, penstock: Callable) -> None:
    ran = penstock("run", "parent", "--input", '"Ada"', "--key", "r1")
    assert ran.code == 0
    assert 'result ["Hello, 1!","Hello, 2!"]' in ran.out
    assert "○ skip" in ran.out
    again = penstock("run", "parent", "--key", "r1")
    assert (again.code, "Run r1 has already ended." in again.err) == (0, True)


async def start_until_it_waits() -> None:
    """Start run r1, and work until it waits for a run in a queue that this worker does not serve."""
    async with App(dir="workers") as app:
        await register_dag_files(app)
        await app.dags.start("parent", "Ada", key="r1")
        async with app.workers.background(["nodes"]):

            async def find() -> Any:
                return await app.runs.list(parent="r1")

            await until(find)


def test_run_continues_a_run_that_waits_for_another(project: Path, penstock: Callable) -> None:
    asyncio.run(start_until_it_waits())
    ran = penstock("run", "parent", "--key", "r1")
    assert (ran.code, "Run r1 already exists; continuing it." in ran.err) == (0, True)
    assert 'result ["Hello, 1!","Hello, 2!"]' in ran.out
