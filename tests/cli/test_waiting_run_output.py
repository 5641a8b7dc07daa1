"""Commands say that a run waits, for what and until when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def test_a_job_that_waits(penstock: Callable, run: str) -> None:
    shown = penstock("jobs", "show", f"{run}.approve.1")
    assert shown.lines[-1].startswith("It is waiting for trigger 'approval' until 20")
    assert shown.lines[-1].endswith(f"`penstock doctor {run}` explains how to resolve the wait.")
    assert penstock("jobs", "show", f"{run}.approve.1", "--json").json["state"] == "suspended"
    removed = penstock("jobs", "remove", f"{run}.approve.1", "--yes")
    assert (removed.code, "cannot be removed alone; cancel the run instead" in removed.err) == (2, True)


def test_a_trigger_is_no_webhook(penstock: Callable, run: str) -> None:
    id = penstock("waits", "--json").json["id"]
    for command in (["waits"], ["waits", "show", id], ["runs", "show", run], ["doctor", run], ["diagram", "approve"]):
        assert "webhook" not in penstock(*command).out


CALLS = """
from penstock import Context, flow

@flow("outer")
async def outer(input, ctx: Context):
    ctx.log("calls", flow="inner", count=2)
    await ctx.call_many("inner", [1, 2]) if input else await ctx.call("inner", 1)

@flow("inner")
async def inner(input, ctx: Context):
    await ctx.wait.event("inner.done")
"""


@pytest.mark.parametrize(("input", "text"), [(True, "2 runs of flow inner"), (False, "run inner-")])
def test_a_run_that_waits_for_another(penstock: Callable, project: Path, input: bool, text: str) -> None:
    (project / "workers" / "outer.py").write_text(CALLS)

    async def wait() -> None:
        async with App(dir="workers") as app, app.workers.background():
            await app.start("outer", input, key="o-1")
            await until(lambda: app.runs.list(flow="inner", status="waiting"))

    asyncio.run(wait())
    shown = penstock("runs", "show", "o-1").out
    assert f"waiting for {text}" in shown
    assert 'info outer: calls {"flow":"inner","count":2}' in shown
    assert "waiting since 20" in penstock("doctor", "o-1").out
    assert "call" in [json.loads(line)["kind"] for line in penstock("waits", "--json").lines]
    misspelt = penstock("emit", "inner.dnoe")
    assert misspelt.err == "warning: no run waits for 'inner.dnoe'; did you mean 'inner.done'?\n"
    assert penstock("emit", "inner.done").err == ""


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


DIES = """
import os
from penstock import flow

@flow("dies")
async def dies(input):
    os._exit(1)
"""


def test_a_step_whose_worker_has_died_is_not_shown_as_running(
    penstock: Callable, child: Callable, project: Path, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", shared_url)
    monkeypatch.setenv("PENSTOCK_LEASE", "1s")
    (project / "workers" / "dies.py").write_text(DIES)
    penstock("start", "dies", "--key", "d-1")
    assert child("worker").end().code == 1
    assert penstock("runs", "show", "d-1", "--json").json["steps"]["dies"]["status"] == "running"

    async def shown() -> bool:
        return "its worker is gone, and no other has claimed it" in (await asyncio.to_thread(show)).lines[1]

    def show() -> Any:
        return penstock("runs", "show", "d-1")

    asyncio.run(until(shown))
    assert "whose lease expired at" in penstock("doctor", "d-1").out
