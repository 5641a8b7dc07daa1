"""Preflight: find the open runs that the current code could not continue, without writing anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from penstock import flow, step
from penstock.app.export import export_run
from penstock.app.preflight import check_runs
from penstock.core.errors import UnknownFlow
from penstock.testing import replay

DID: list[str] = []


def shop(body: Any, **options: Any) -> list[Any]:
    """Build a flow with `body` as its second step; the first step is always the same."""

    @flow("shop", emits=["asked"], **options)
    async def ask(input: Any, ctx: Any) -> None:
        ctx.emit("asked", input)

    body.__dict__.pop("__penstock__", None)  # of the last time
    return [ask, step(on="asked", name="answer", emits=["noted"])(body)]


async def original(input: Any, ctx: Any) -> Any:
    await ctx.run("charge", DID.append, "charge")
    ctx.emit("noted", 1)
    await ctx.state.set("k", 1)
    event = await ctx.wait.event("answered")
    await ctx.run("ship", DID.append, "ship")
    return event.data


async def take_picture(a: Any, run: str) -> Any:
    jobs = [await a.store.job(f"{run}.{name}.1") for name in ("ask", "answer")]
    feed = await a.store.feed("", 10_000)
    return (
        jobs,
        [item.event.id for item in feed],
        await a.store.run(run),
        await a.waits.list(),
        await a.store.states(""),
    )


async def waiting(a: Any, input: Any = None) -> str:
    DID.clear()
    async with a.workers.background():
        run: str = await a.start("shop", input)
        await a.wait_for_step(run, "answer", "suspended")
    return run


async def checked(shared: Any, body: Any, **options: Any) -> Any:
    """Start a run under the original code and check it with other code; check that nothing changed."""
    async with shared(*shop(original)) as old:
        run = await waiting(old, {"n": 1})
        before = await take_picture(old, run)
        async with shared(*shop(body, **options)) as new:
            found = await check_runs(new)
        assert await take_picture(old, run) == before
        assert DID == ["charge"], "no function of ctx.run was called"
    return found


async def test_unchanged_code_passes(shared: Any) -> None:
    found = await checked(shared, original)
    assert (found.runs, found.steps, found.problems) == (1, 1, [])


async def test_calls_after_the_wait_may_change(shared: Any) -> None:
    async def changed(input: Any, ctx: Any) -> Any:
        await ctx.run("charge", DID.append, "charge")
        ctx.now(), ctx.uuid(), ctx.random()  # they do nothing
        ctx.emit("noted", 1)
        await ctx.state.set("k", 2)
        event = await ctx.wait.event("answered")
        await ctx.run("send", DID.append, "send")
        return event.data

    assert (await checked(shared, changed)).problems == []


async def moved_behind(input: Any, ctx: Any) -> Any:
    ctx.emit("noted", 1)
    await ctx.state.set("k", 1)
    await ctx.wait.event("answered")
    await ctx.run("charge", DID.append, "charge")


async def renamed(input: Any, ctx: Any) -> Any:
    await ctx.run("bill", DID.append, "bill")
    ctx.emit("noted", 1)
    await ctx.state.set("k", 1)
    await ctx.wait.event("answered")


def renamed_in_a_thread(input: Any, ctx: Any) -> Any:
    ctx.run("bill", DID.append, "bill")
    ctx.wait.event("answered")


async def added_before(input: Any, ctx: Any) -> Any:
    await ctx.run("charge", DID.append, "charge")
    ctx.emit("noted", 1)
    await ctx.state.set("k", 1)
    await ctx.run("new", DID.append, "new")
    await ctx.wait.event("answered")


async def added_wait(input: Any, ctx: Any) -> Any:
    await ctx.run("charge", DID.append, "charge")
    await ctx.wait.time("1h", name="pause")
    await ctx.wait.event("answered")


async def added_trigger(input: Any, ctx: Any) -> Any:
    await ctx.run("charge", DID.append, "charge")
    await ctx.wait.trigger("approval")
    await ctx.wait.event("answered")


async def added_patch(input: Any, ctx: Any) -> Any:
    await ctx.run("charge", DID.append, "charge")
    await ctx.state.patch("p", lambda old: old)
    await ctx.wait.event("answered")


async def without_the_wait(input: Any, ctx: Any) -> Any:
    await ctx.run("charge", DID.append, "charge")
    ctx.emit("noted", 1)
    await ctx.state.set("k", 1)


async def other_effects(input: Any, ctx: Any) -> Any:
    await ctx.run("charge", DID.append, "charge")
    ctx.emit("noted", 1)
    ctx.emit("noted", 2)
    await ctx.wait.event("answered")


async def other_branch(input: Any, ctx: Any) -> Any:
    ctx.emit("noted", 1)
    await ctx.state.set("k", 1)
    await ctx.wait.time("1h", name="pause")


@pytest.mark.parametrize(
    ("body", "differences"),
    [
        (moved_behind, [("call_removed", "charge#1")]),
        (renamed, [("call_added", "bill#1")]),
        (renamed_in_a_thread, [("call_added", "bill#1")]),
        (added_before, [("call_added", "new#1")]),
        (added_wait, [("call_added", "pause#1")]),
        (added_trigger, [("call_added", "approval#1")]),
        (added_patch, [("call_added", "the patch of {run}p#1")]),
        (without_the_wait, [("call_removed", "answered#1")]),
        (other_effects, [("call_removed", "state write 1"), ("call_added", "emit 2 ('noted')")]),
        (other_branch, [("call_added", "pause#1")]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_calls_before_the_wait_are_compared(shared: Any, body: Any, differences: list[tuple[str, str]]) -> None:
    found = await checked(shared, body)
    assert [(one.code, one.call) for one in found.broken] == [
        (code, call.format(run=f"run/{found.broken[0].run}/")) for code, call in differences
    ]
    assert found.broken_steps == 1


async def test_a_renamed_call_is_recognised(shared: Any) -> None:
    (problem,) = (await checked(shared, renamed)).broken
    assert "if it is charge#1 under a new name" in problem.reason


async def test_what_the_check_reports_comes_true(shared: Any) -> None:
    """The moved call fails the run, and the renamed call runs twice: so the check has to find both."""
    async with shared(*shop(original)) as old:
        runs = [await waiting(old), await waiting(old)]
    async with shared(*shop(moved_behind)) as new, new.workers.background():
        await new.emit("answered", 1)
        assert [await new.wait_for_end(run) for run in runs] == ["failed", "failed"]
        (failure,) = await new.events_of(runs[0], "step.failed", "answer")
        assert failure.data["code"] == "non_determinism"


async def test_calls_of_ctx_all_and_ctx_first_pass_unchanged(shared: Any) -> None:
    """A function that lost a ctx.first and one that failed in a ctx.all have no record, and others after them do."""
    failures: list[int] = []

    async def slow() -> None:
        await asyncio.sleep(3600)

    async def fail() -> None:
        failures.append(1)
        raise LookupError("not yet")

    async def both(input: Any, ctx: Any) -> Any:
        await ctx.first({"slow": ctx.run("slow", slow), "soon": ctx.wait.time(0, name="soon")})
        await ctx.all([ctx.run("bad", fail), ctx.run("good", DID.append, "good")])

    def retried() -> list[Any]:
        both.__dict__.pop("__penstock__", None)
        return [flow("both", retry={"attempts": 5, "backoff": {"type": "fixed", "delay": 60_000}})(both)]

    async with shared(*retried()) as old:
        DID.clear()
        async with old.workers.background():
            run = await old.start("both")
            await old.wait_for_step(run, "both", "delayed")
        found = await check_runs(old)
        assert (found.steps, found.problems, failures, DID) == (1, [], [1], ["good"])


async def branches(input: Any, ctx: Any, names: str = "ab", more: str = "") -> Any:
    """Make concurrent calls; every branch waits for its own event."""

    async def branch(name: str) -> Any:
        await ctx.run(f"{name} first", DID.append, name)
        return (await ctx.wait.event(f"{name}.answered")).data

    calls = [ctx.run(f"{name} alone", DID.append, name) for name in more]
    return await asyncio.gather(*(branch(name) for name in names), *calls)


@pytest.mark.parametrize(
    ("names", "more", "removed"),
    [("ab", "", []), ("ba", "", []), ("ab", "c", []), ("a", "", ["b first#1", "b.answered#1"])],
    ids=["unchanged", "another order", "a call added", "a branch removed"],
)
async def test_concurrent_calls(shared: Any, names: str, more: str, removed: list[str]) -> None:
    async def changed(input: Any, ctx: Any) -> Any:
        return await branches(input, ctx, names, more)

    async with shared(*shop(branches)) as old:
        await waiting(old)
        async with shared(*shop(changed)) as new:
            found = await check_runs(new)
        assert sorted(DID) == ["a", "b"], "no function of ctx.run was called"
    assert [(problem.code, problem.call) for problem in found.problems] == [("call_removed", name) for name in removed]


async def test_a_result_that_is_held_is_not_compared(shared: Any) -> None:
    def held(ran: str) -> list[Any]:
        @flow("held", wait={"type": "time", "delay": "1h"})
        async def hold(input: Any, ctx: Any) -> None:
            await ctx.run(ran, DID.append, ran)
            await ctx.state.set("k", 1)

        return [hold]

    async with shared(*held("charge")) as old:
        async with old.workers.background():
            run = await old.start("held")
            await old.wait_for_step(run, "hold", "delayed")
        async with shared(*held("bill")) as new:
            assert (await check_runs(new)).problems == []


async def other_kind(input: Any, ctx: Any) -> Any:
    await ctx.wait.time("1h", name="charge")


async def other_order(input: Any, ctx: Any) -> Any:
    ctx.wait.event("answered")
    await ctx.run("charge", DID.append, "charge")


async def other_emit(input: Any, ctx: Any) -> Any:
    await ctx.run("charge", DID.append, "charge")
    ctx.emit("noted.otherwise", 1)
    await ctx.wait.event("answered")


async def swallows(input: Any, ctx: Any) -> Any:
    await ctx.run("charge", DID.append, "charge")
    ctx.emit("noted", 1)
    try:
        await ctx.wait.event("answered")
    except BaseException:
        return "went on"


async def raises(input: Any, ctx: Any) -> Any:
    raise LookupError("the new code does not like it")


def in_a_thread(input: Any, ctx: Any) -> Any:
    ctx.wait.time("1h", name="charge")


class Order(BaseModel):
    number: int


async def other_input(input: Order, ctx: Any) -> Any: ...


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (
            other_kind,
            "non_determinism",
            "charge#1 was ctx.run when it was recorded, and now it is ctx.wait.time",
        ),
        (
            other_order,
            "non_determinism",
            "made the durable call charge#1 before answered#1, but this attempt makes it after",
        ),
        (other_emit, "non_determinism", "an earlier attempt emitted 'noted' as event 1"),
        (swallows, "suspend_swallowed", "caught the exception"),
        (raises, "LookupError", "does not like it"),
        (
            in_a_thread,
            "non_determinism",
            "charge#1 was ctx.run when it was recorded, and now it is ctx.wait.time",
        ),
        (other_input, "schema_violation", "number"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_breaking_changes_are_reported(shared: Any, body: Any, code: str, words: str) -> None:
    found = await checked(shared, body)
    (problem,) = found.broken
    assert (problem.flow, problem.step, problem.n, problem.code) == ("shop", "answer", 1, code)
    assert words in problem.reason


async def test_a_removed_flow_or_step(shared: Any) -> None:
    async with shared(*shop(original)) as old:
        run = await waiting(old)
    async with shared() as empty:
        (problem,) = (await check_runs(empty)).broken
        assert (problem.run, problem.code) == (run, "unknown_flow")
    async with shared(shop(original)[0]) as less:
        (problem,) = (await check_runs(less)).broken
        assert (problem.step, problem.code) == ("answer", "unknown_step")


async def test_version_policies(shared: Any) -> None:
    assert (await checked(shared, original, version="2")).problems == []


async def test_a_version_with_the_policy_fail(shared: Any) -> None:
    (problem,) = (await checked(shared, original, version="2", on_change="fail")).broken
    assert problem.code == "version_mismatch"


async def test_a_pinned_run_is_reported_but_not_broken(shared: Any) -> None:
    found = await checked(shared, raises, version="2", on_change="pin")
    assert (found.broken, [problem.code for problem in found.problems]) == ([], ["pinned"])


async def test_steps_that_have_recorded_nothing_are_not_run(app: Any) -> None:
    ran: list[int] = []

    @flow("plain")
    async def plain(ctx: Any) -> None:
        ran.append(1)

    async with app(plain) as a:
        await a.start("plain")
        found = await check_runs(a)
        assert (found.runs, found.steps, found.problems, ran) == (1, 1, [], [])


async def test_paused_runs_are_checked_and_ended_ones_are_not(shared: Any) -> None:
    async with shared(*shop(original)) as old:
        run = await waiting(old)
        await old.runs.pause(run)
        ended = await waiting(old)
        await old.runs.cancel(ended)
    async with shared(*shop(raises)) as new:
        assert [problem.run for problem in (await check_runs(new)).broken] == [run]


async def test_preflight_of_one_flow(shared: Any) -> None:
    async with shared(*shop(original)) as a:
        await waiting(a)
        assert (await check_runs(a, "shop")).runs == 1
        with pytest.raises(UnknownFlow, match="did you mean 'shop'"):
            await check_runs(a, "shp")


# Saved histories


async def saved(a: Any, folder: Path, *runs: str) -> Path:
    file = folder / "runs.jsonl"
    file.write_bytes(b"\n".join([await export_run(a, run) for run in runs]) + b"\n")
    return file


async def test_a_saved_run_is_replayed(app: Any, tmp_path: Path) -> None:
    async with app(*shop(original)) as a:
        run = await waiting(a)
        file = await saved(a, tmp_path, run)
    assert replay(file, handlers=shop(original)).steps == 1
    with pytest.raises(AssertionError, match=r"step answer: .*charge#1 was ctx.run when.*\[non_determinism\]"):
        replay(file, handlers=shop(other_kind))
    assert DID == ["charge"]


async def test_a_run_that_has_completed_is_replayed_to_its_end(app: Any, tmp_path: Path) -> None:
    async def late(input: Any, ctx: Any) -> Any:
        await ctx.run("charge", DID.append, "charge")
        ctx.emit("noted", 1)
        event = await ctx.wait.event("answered")
        await ctx.wait.time("1h", name="ship")
        return event.data

    async with app(*shop(original)) as a:
        run = await waiting(a)
        async with a.workers.background():
            await a.emit("answered", 1)
            await a.wait_for_end(run)
        file = await saved(a, tmp_path, run)
    assert replay(file, handlers=shop(original)).steps == 1
    with pytest.raises(AssertionError, match=r"ship#1 was ctx.run when it was recorded, and now it is ctx.wait.time"):
        replay(file, handlers=shop(late))
