"""Child runs and what acts on any run: export, fork, replay, preflight, waits by hand, the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import Context, flow
from penstock.app.export_format import BadExport
from penstock.cli import main
from penstock.core.errors import RunFailed
from penstock.ports.unit import DELIVERIES
from penstock.testing.clock import FakeClock
from penstock.testing.until import until


@flow("sleeper")
async def sleeper(hours: int, ctx: Context) -> str:
    await ctx.wait.time(f"{hours}h")
    return f"slept {hours}"


@flow("caller")
async def caller(hours: int, ctx: Context) -> Any:
    one = await ctx.call(sleeper, hours)
    return [one, await ctx.call_many(sleeper, [1, 2])]


async def _child(a: Any, run: str, count: int = 1) -> Any:
    async def waiting() -> Any:
        found = await a.runs.list(parent=str(run), status="waiting")
        return found if len(found) == count else None

    return (await until(waiting))[0]


async def test_a_parent_and_its_child_continue_in_another_store(app: Any, shared: Any, clock: FakeClock) -> None:
    async with app(caller, sleeper, clock=clock) as a, a.workers.background():
        run = str(await a.start("caller", 5))
        child = await _child(a, run)
        lines = b"\n".join([await a.runs.export(run), await a.runs.export(child.id)])
    async with shared(caller, sleeper, clock=clock) as new:
        assert sorted(await new.runs.import_(lines)) == sorted([run, child.id])
        (found,) = await new.runs.children(run)
        assert (found.id, found.parent, found.root, found.depth) == (child.id, run, run, 1)
        async with new.workers.background():
            new.advance_clock("6h")
            await _child(new, run, 2)
            new.advance_clock("6h")
            assert await new.result(run) == ["slept 5", ["slept 1", "slept 2"]]


@flow("double")
async def double(n: int) -> int:
    return 2 * n


@flow("mixed")
async def mixed(ctx: Context) -> Any:
    ctx.start(double, 1, key="launched")
    return await ctx.all([ctx.call(double, 2), ctx.call_many(double, [3, 4])])


async def test_children_that_have_not_started_start_in_another_store(app: Any, shared: Any) -> None:
    async with app(mixed, double) as a:
        await a.store.pause(DELIVERIES)  # the jobs that start children are not claimed
        async with a.workers.background():
            run = str(await a.start("mixed"))
            await a.wait_for_step(run, "mixed", "suspended")
        (line,) = [one async for one in a.runs.export_all()]
        assert line == await a.runs.export(run)
        assert sorted(one["name"] for one in json.loads(line)["starts"]) == ["start", "start", "start-many"]
    async with shared(mixed, double) as new:
        await new.runs.import_(line)
        async with new.workers.background():
            assert await new.result(run) == [4, [6, 8]]
            assert await new.result("launched") == 2
        children = await new.runs.children(run)
        assert sorted((one.parent, one.root, one.depth) for one in children) == [(run, run, 0)] + [(run, run, 1)] * 3


async def test_an_export_with_a_changed_start_is_refused(app: Any, shared: Any) -> None:
    async with app(mixed, double) as a:
        await a.store.pause(DELIVERIES)
        async with a.workers.background():
            run = str(await a.start("mixed"))
            await a.wait_for_step(run, "mixed", "suspended")
        line = await a.runs.export(run)
    changes: list[tuple[str, Any, str]] = [
        ("name", "cancel-run", "starts[0].name"),
        ("id", "start.other", "starts[0].id"),
        ("payload", {}, "starts[0].payload"),
        ("payload.parent", "other", "starts[0].payload"),
        ("payload.run", "a:b", "starts[0].payload"),
        ("payload.link.run", "other", "starts[0].payload"),
        ("payload.link.call", "other", "starts[0].payload"),
        ("payload.link.depth", 7, "starts[0].payload.link"),
        ("payload.link.root", "other", "starts[0].payload.link"),
    ]
    async with shared(mixed, double) as new:
        for path, value, field in changes:
            saved = json.loads(line)
            saved["starts"].sort(key=lambda one: (one["name"], "call" not in one["payload"].get("link", {})))
            *parents, last = path.split(".")
            target = saved["starts"][0]
            for part in parents:
                target = target[part]
            target[last] = value
            with pytest.raises(BadExport) as caught:
                await new.runs.import_(json.dumps(saved).encode())
            assert field in str(caught.value), path
        assert await new.runs.list() == []


async def test_a_fork_calls_its_own_child(app: Any, clock: FakeClock) -> None:
    async with app(caller, sleeper, clock=clock) as a, a.workers.background():
        run = str(await a.start("caller", 5))
        child = await _child(a, run)
        events = await a.stream(run)
        fork = await a.runs.fork(run, events[-1].id)
        other = await _child(a, fork)
        assert other.id != child.id
        assert (other.parent, other.root) == (fork, fork)
        await a.runs.cancel(run)
        assert (await a.runs.wait(child.id)).status == "cancelled"
        a.advance_clock("6h")
        await _child(a, fork, 2)
        a.advance_clock("6h")
        assert (await a.result(fork))[0] == "slept 5"


async def test_preflight_accepts_a_waiting_call(app: Any, clock: FakeClock) -> None:
    async with app(caller, sleeper, clock=clock) as a, a.workers.background():
        run = str(await a.start("caller", 5))
        await _child(a, run)
        report = await a.runs.preflight("caller")
        assert report.problems == []


async def test_the_reason_names_the_called_run(app: Any, clock: FakeClock) -> None:
    async with app(caller, sleeper, clock=clock) as a, a.workers.background():
        run = str(await a.start("caller", 5))
        child = await _child(a, run)
        (reason,) = await a.runs.why(run)
        assert f"for run {child.id} of flow sleeper to end; `penstock doctor {child.id}` explains" in reason
        (sleep,) = await a.waits.list(run=child.id)
        (reason,) = await a.runs.why(child.id)
        assert reason.endswith(f"(another 5 h); `penstock waits resolve {sleep.id}` ends it now")
        a.advance_clock("6h")
        await _child(a, run, 2)
        (reason,) = await a.runs.why(run)
        assert f"for 2 runs of flow sleeper to end; `penstock runs --parent {run}` lists them" in reason


async def test_a_call_is_settled_by_hand(app: Any, clock: FakeClock) -> None:
    @flow("one")
    async def one(ctx: Context) -> Any:
        return await ctx.call(sleeper, 5)

    async with app(one, sleeper, clock=clock) as a, a.workers.background():
        runs = [str(await a.start("one")) for _ in range(2)]
        children = [await _child(a, run) for run in runs]
        waits = [(await a.waits.list(run=run))[0] for run in runs]
        assert [(wait.kind, wait.child) for wait in waits] == [("call", child.id) for child in children]
        assert (await a.runs.list(parent=None, flow="one"))[0].waits_for[0].startswith("waiting for run sleeper-")
        await a.waits.resolve(waits[0].id, "by hand")
        await a.waits.cancel(waits[1].id, reason="no")
        assert await a.result(runs[0]) == "by hand"
        with pytest.raises(RunFailed, match="was cancelled"):
            await a.result(runs[1])
        # Nothing waits for the children any more.
        assert [(await a.runs.wait(child.id)).status for child in children] == ["cancelled"] * 2


async def test_the_command_line_lists_children(
    shared: Any, shared_url: str, clock: FakeClock, capsys: pytest.CaptureFixture[str]
) -> None:
    import asyncio

    async with shared(caller, sleeper, clock=clock) as a, a.workers.background():
        run = str(await a.start("caller", 5))
        child = await _child(a, run)
    code = await asyncio.to_thread(main, ["runs", "list", "--parent", run, "--json", "--url", shared_url])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (code, [(row["id"], row["parent"], row["depth"]) for row in rows]) == (0, [(child.id, run, 1)])
    await asyncio.to_thread(main, ["runs", "show", run, "--url", shared_url])
    assert f"child {child.id} waiting" in capsys.readouterr().out
    await asyncio.to_thread(main, ["runs", "show", child.id, "--url", shared_url])
    assert f"parent {run}" in capsys.readouterr().out
