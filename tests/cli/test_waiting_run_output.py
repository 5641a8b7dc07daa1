"""Commands say that a run waits, for what and until when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import App
from penstock.testing.until import until

WAITS = """
from penstock import Context, flow

@flow("approve")
async def approve(input, ctx: Context):
    trigger = await ctx.wait.trigger("approval", timeout="1h")
    return await trigger.wait()
"""


async def _wait(key: str) -> None:
    async with App(dir="workers") as app, app.workers.background():
        await app.start("approve", key=key)
        await until(lambda: app.runs.list(status="waiting"))


@pytest.fixture
def run(project: Path) -> str:
    (project / "workers" / "approve.py").write_text(WAITS)
    asyncio.run(_wait("a-1"))
    return "a-1"


def test_runs_lists_it_as_waiting(penstock: Callable, run: str) -> None:
    answer = penstock("runs", "--status", "waiting")
    assert "waiting for trigger 'approval' until 20" in answer.out
    assert (
        penstock("runs", "--status", "waiting", "--json").json["waitsFor"].startswith("waiting for trigger 'approval'")
    )
    assert penstock("runs", "--status", "running", "--json").out == ""
    assert penstock("runs", "--status", "open", "--json").json["id"] == run


def test_runs_show(penstock: Callable, run: str) -> None:
    answer = penstock("runs", "show", run)
    assert answer.lines[0].startswith(f"approve {run} waiting for ")
    assert "waiting for trigger 'approval' until 20" in answer.lines[1]


def test_promote_explains_itself(penstock: Callable, run: str) -> None:
    answer = penstock("jobs", "promote", f"{run}.approve.1")
    assert answer.code == 2
    assert f"job '{run}.approve.1' is suspended; it is waiting for trigger 'approval' until 20" in answer.err
    assert f"`penstock doctor {run}` explains how to resolve the wait" in answer.err
    assert penstock("jobs", "list", "approve", "--json").json["state"] == "suspended"


def test_a_queued_step_is_not_running(penstock: Callable) -> None:
    penstock("start", "greet", "--key", "q-1")
    assert "no worker has claimed it" in penstock("runs", "show", "q-1").out


def test_the_deadline_is_the_same_in_every_command(penstock: Callable, run: str) -> None:
    (wait,) = [json.loads(line) for line in penstock("waits", "--json").lines]
    for command in (["runs"], ["runs", "show", run], ["doctor", run]):
        assert f"until {wait['until']}" in penstock(*command).out


SLEEPS = """
from penstock import Context, flow

@flow("sleeps")
async def sleeps(input, ctx: Context):
    await ctx.wait.time("10ms")
    return "awake"
"""


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_run_in_a_pipe_prints_what_it_waits_for(penstock: Callable, project: Path, options: list[str]) -> None:
    (project / "workers" / "sleeps.py").write_text(SLEEPS)
    answer = penstock("run", "sleeps", *options)
    assert answer.code == 0
    assert ("Step sleeps is sleeping until 20" in answer.err) == (not options)
