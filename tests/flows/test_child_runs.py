"""`ctx.call`: a run that another one waits for. Ends, cancellations, pauses and timeouts travel between the two."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import AwaitTimeout, ChildFailure, Context, SyncContext, flow, step
from penstock.core.errors import ChildCancelled, DepthLimit, RunFailed
from penstock.errors import ChildFailed
from penstock.ports.unit import DELIVERIES
from penstock.testing.clock import FakeClock
from penstock.testing.until import until
from penstock.worker.child_runs import ChildRuns, ParentChange


@dataclass
class Order:
    amount: int


@flow("double")
async def double(n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return 2 * n


@flow("parent")
async def parent(n: int, ctx: Context) -> Any:
    return {"doubled": await ctx.call(double, n)}


async def _child(a: Any, run: str) -> Any:
    (child,) = await a.runs.children(run)
    return child


@pytest.mark.spec("004-2.3", "004-2.10")
async def test_a_call_returns_the_result_of_the_child(app: Any) -> None:
    async with app(parent, double) as a, a.workers.background():
        run = await a.start("parent", 21)
        assert await a.result(run) == {"doubled": 42}
        child = await _child(a, run)
        assert (child.parent, child.root, child.depth, child.is_called) == (run, run, 1, True)
        view = await a.runs.get(child.id)
        assert (view.parent, view.root, view.depth) == (run, run, 1)
        assert await a.kinds(run) == [
            "flow.started",
            "step.started",
            "step.await.call",
            "step.resumed",
            "step.started",
            "step.completed",
            "flow.completed",
        ]
        (waits,) = await a.events_of(run, "step.await.call")
        assert (waits.data["flow"], waits.data["run"]) == ("double", child.id)
        # The parent ends after its child.
        ends = [(await a.runs.get(id)).completed_at for id in (child.id, run)]
        assert ends == sorted(ends)
        assert await a.store.stuck_runs() == []


@flow("order")
async def order(amount: int) -> Order:
    return Order(amount)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_call_returns_the_declared_type(memory: Any, is_async: bool) -> None:
    seen: list[Any] = []

    @flow("typed")
    async def typed(ctx: Context) -> None:
        one = await ctx.call(order, 1)
        many = await ctx.call_many(order, [2, 3])
        by_name = await ctx.call("order", 4, result=Order, name="typed")
        await ctx.wait.time(0)  # the types are the same after a replay
        seen.append([one, *many, by_name, await ctx.call("order", 5)])

    @flow("typed")
    def blocking(ctx: SyncContext) -> None:
        one, many = ctx.call(order, 1), ctx.call_many(order, [2, 3])
        by_name = ctx.call("order", 4, result=Order, name="typed")
        seen.append([one, *many, by_name, ctx.call("order", 5)])

    async with memory(typed if is_async else blocking, order) as a, a.workers.background():
        await a.result(await a.start("typed"), timeout=20)
    assert seen == [[Order(1), Order(2), Order(3), Order(4), {"amount": 5}]]


async def test_a_result_of_another_shape_is_refused(memory: Any) -> None:
    @flow("wrong")
    async def wrong(ctx: Context) -> None:
        await ctx.call("double", 1, result=Order)

    async with memory(wrong, double) as a, a.workers.background():
        run = await a.start(wrong)
        with pytest.raises(RunFailed, match=r"the result of run 'double-[0-9a-f]+' .*object"):
            await a.result(run, timeout=20)


async def test_a_flow_of_several_steps_has_the_result_of_its_last(memory: Any) -> None:
    @flow("first", emits=["made"])
    async def first(ctx: Context) -> Order:
        ctx.emit("made")
        return Order(1)

    @step(on="made", flow="first")
    async def second() -> str:
        return "done"

    @flow("caller")
    async def caller(ctx: Context) -> Any:
        return await ctx.call(first)

    async with memory(caller, first, second) as a, a.workers.background():
        expected = await a.result(await a.start(first), timeout=20)
        assert await a.result(await a.start(caller), timeout=20) == expected


async def test_a_failed_child_raises(app: Any) -> None:
    async with app(parent, double) as a, a.workers.background():
        run = await a.start("parent", -1)
        with pytest.raises(RunFailed, match="negative"):
            await a.result(run)
        (failed,) = await a.events_of(run, "step.failed")
        assert (failed.data["name"], failed.data["code"]) == ("ChildFailed", "child_failed")
        assert failed.data["willRetry"] is False


async def test_a_failed_child_may_be_caught_or_returned(app: Any) -> None:
    @flow("caught")
    async def caught(ctx: Context) -> str:
        try:
            await ctx.call(double, -1)
        except ChildFailed as problem:
            assert isinstance(problem.failure, ChildFailure)
            return problem.failure.error
        return "no"

    @flow("returned")
    async def returned(ctx: Context) -> list[str]:
        value = await ctx.call("double", -1, on_failure="return")
        assert isinstance(value, ChildFailure)
        return [value.flow, value.status, value.error]

    async with app(caught, returned, double) as a, a.workers.background():
        assert await a.result(await a.start("caught")) == "negative"
        assert await a.result(await a.start("returned")) == ["double", "failed", "negative"]


@pytest.mark.spec("004-2.4")
async def test_an_unknown_flow_is_an_error_of_the_call(app: Any) -> None:
    @flow("lost")
    async def lost(ctx: Context) -> Any:
        return await ctx.call("nowhere", 1)

    async with app(lost) as a, a.workers.background():
        with pytest.raises(RunFailed, match="nowhere"):
            await a.result(await a.start("lost"))


async def test_an_input_that_the_child_refuses_is_an_error_of_the_call(app: Any) -> None:
    @flow("strict")
    async def strict(order: Order) -> int:
        return order.amount

    @flow("wrong")
    async def wrong(ctx: Context) -> Any:
        return await ctx.call(strict, {"amount": "many"})

    async with app(wrong, strict) as a, a.workers.background():
        run, status = await a.run_to_end("wrong")
        assert status == "failed"
        assert await a.runs.children(run) == []


@flow("sleeper")
async def sleeper(hours: int, ctx: Context) -> str:
    await ctx.wait.time(f"{hours}h")
    return "slept"


@flow("caller")
async def caller(options: dict[str, Any], ctx: Context) -> Any:
    try:
        return await ctx.call(sleeper, 2, **options)
    except AwaitTimeout:
        return "too late"
    except ChildCancelled as problem:
        return f"cancelled: {problem.failure.error}"  # type: ignore[attr-defined]


async def _sleeping_child(a: Any, run: str) -> Any:
    async def waiting() -> Any:
        children = await a.runs.children(run)
        return children[0] if children and children[0].status == "waiting" else None

    return await until(waiting)


@pytest.mark.parametrize(("on_timeout", "status"), [("cancel", "cancelled"), ("abandon", "completed")])
async def test_a_timeout_cancels_or_abandons_the_child(
    app: Any, clock: FakeClock, on_timeout: str, status: str
) -> None:
    async with app(caller, sleeper, clock=clock) as a, a.workers.background():
        run = await a.start("caller", {"timeout": "1h", "on_timeout": on_timeout})
        child = await _sleeping_child(a, run)
        a.advance_clock("61m")
        assert await a.result(run) == "too late"
        if status == "cancelled":
            assert (await a.runs.wait(child.id)).status == "cancelled"
        a.advance_clock("1h")
        assert (await a.runs.wait(child.id)).status == status


@pytest.mark.parametrize("moment", ["start", "_follow_call"])
async def test_a_child_that_starts_late_is_abandoned_all_the_same(
    app: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The parent ends before the job that starts the child: before its first write, or after its last one."""
    reached, gate, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    original = getattr(ChildRuns, moment)

    async def late(self: ChildRuns, *args: Any, **options: Any) -> None:
        reached.set()
        await gate.wait()
        await original(self, *args, **options)
        done.set()

    monkeypatch.setattr(ChildRuns, moment, late)
    async with app(caller, sleeper, clock=clock) as a, a.workers.background():
        run = await a.start("caller", {"timeout": "1h", "on_timeout": "abandon"})
        await asyncio.wait_for(reached.wait(), 30)
        if moment == "_follow_call":
            await _sleeping_child(a, run)
        a.advance_clock("61m")
        assert await a.result(run) == "too late"
        gate.set()
        await asyncio.wait_for(done.wait(), 30)
        child = await _sleeping_child(a, run)
        a.advance_clock("2h")
        assert (await a.runs.wait(child.id)).status == "completed"


@pytest.mark.parametrize(("is_cancelled", "status"), [(True, "cancelled"), (False, "waiting")])
async def test_an_abandoned_child_follows_its_parent_until_that_ends(
    memory: Any, clock: FakeClock, is_cancelled: bool, status: str
) -> None:
    @flow("leaving")
    async def leaving(ctx: Context) -> None:
        with pytest.raises(AwaitTimeout):
            await ctx.call(sleeper, 9, timeout="1h", on_timeout="abandon")
        await ctx.wait.event("leave")

    async with memory(leaving, sleeper, clock=clock) as a, a.workers.background():
        run = await a.start(leaving)
        child = await _sleeping_child(a, run)
        a.advance_clock("61m")
        await until(lambda: a.events_of(run, "step.await.event"))
        if is_cancelled:
            await a.runs.cancel(run, "enough")
            assert (await a.runs.wait(child.id)).status == status
            return
        await a.emit("leave", run=run)
        await a.result(run)
        # The job of an earlier pause or resume runs again, after the parent has ended.
        await ChildRuns(a._runtime, lambda: a._engines).follow(ParentChange(run))
        assert (await a.runs.get(child.id)).status == status


async def test_a_cancelled_child_raises(app: Any, clock: FakeClock) -> None:
    async with app(caller, sleeper, clock=clock) as a, a.workers.background():
        run = await a.start("caller", {})
        child = await _sleeping_child(a, run)
        await a.runs.cancel(child.id, "not needed")
        assert await a.result(run) == "cancelled: not needed"


@flow("chain")
async def chain(levels: int, ctx: Context) -> Any:
    return await (ctx.call("chain", levels - 1) if levels else ctx.call(sleeper, 1))


async def _tree(a: Any, run: str) -> list[Any]:
    found = list(await a.runs.children(run))
    return found + [one for child in found for one in await _tree(a, child.id)]


async def test_cancelling_a_parent_cancels_the_whole_tree(app: Any, clock: FakeClock) -> None:
    async with app(chain, sleeper, clock=clock) as a, a.workers.background():
        run = await a.start("chain", 2)

        async def is_deep() -> Any:
            tree = await _tree(a, run)
            return tree if len(tree) == 3 and tree[-1].status == "waiting" else None

        tree = await until(is_deep)
        assert [(one.depth, one.root) for one in tree] == [(1, run), (2, run), (3, run)]
        assert await a.runs.cancel(run, "enough")
        assert [(await a.runs.wait(one.id)).status for one in tree] == ["cancelled"] * 3
        assert "parent" in (await a.runs.get(tree[-1].id)).reason
        assert await a.store.stuck_runs() == []


async def test_pausing_a_parent_pauses_its_children_and_resuming_resumes_them(app: Any, clock: FakeClock) -> None:
    async with app(chain, sleeper, clock=clock) as a, a.workers.background():
        run = await a.start("chain", 1)

        async def in_state(status: str, count: int = 2) -> Any:
            tree = await _tree(a, run)
            return tree if len(tree) == count and {one.status for one in tree} == {status} else None

        await until(lambda: in_state("waiting"))
        await a.runs.pause(run)
        await until(lambda: in_state("paused"))
        a.advance_clock("2h")
        await a.runs.resume(run)
        assert await a.result(run) == "slept"
        assert await in_state("completed")


async def test_a_child_that_was_paused_by_hand_stays_paused(app: Any, clock: FakeClock) -> None:
    async with app(caller, sleeper, clock=clock) as a, a.workers.background():
        run = await a.start("caller", {})
        child = await _sleeping_child(a, run)
        await a.runs.pause(child.id)
        await a.runs.pause(run)
        await a.runs.resume(run)
        await until(lambda: _is_idle(a))
        assert (await a.runs.get(child.id)).status == "paused"


async def _is_idle(a: Any) -> bool:
    counts = await a.queues.counts(DELIVERIES)
    return counts["waiting"] + counts["active"] == 0


async def test_calls_in_all_and_first(app: Any, clock: FakeClock) -> None:
    @flow("both")
    async def both(ctx: Context) -> Any:
        values = await ctx.all([ctx.call(double, 1), ctx.call(double, 2), ctx.call(double, -1, on_failure="return")])
        won, value = await ctx.first({"fast": ctx.call(double, 4), "slow": ctx.call(sleeper, 5)})
        return [values[0], values[1], values[2].error, won, value]

    async with app(both, double, sleeper, clock=clock) as a, a.workers.background():
        run = await a.start("both")
        assert await a.result(run) == [2, 4, "negative", "fast", 8]
        children = {one.flow: one for one in await a.runs.children(run)}
        assert (await a.runs.wait(children["sleeper"].id)).status == "cancelled"
        assert len(await a.runs.children(run)) == 5


async def test_a_def_handler_calls(app: Any) -> None:
    @flow("sync")
    def sync(ctx: SyncContext) -> Any:
        one = ctx.call(double, 1)
        two, three = ctx.all([ctx.branch.call(double, 2), ctx.branch.call(double, 3)])
        return [one, two, three, ctx.call_many(double, [4, 5])]

    async with app(sync, double) as a, a.workers.background():
        assert await a.result(await a.start("sync")) == [2, 4, 6, [8, 10]]


@pytest.mark.spec("004-2.5", "004-2.6")
async def test_many_children_return_their_results_in_order(app: Any) -> None:
    @flow("many")
    async def many(count: int, ctx: Context) -> Any:
        results = await ctx.call_many(double, range(count))
        more = await ctx.call_many(double, [1, -1], on_failure="return")
        return [len(results), sum(results), results[:3], more[0], more[1].error, await ctx.call_many(double, [])]

    async with app(many, double) as a, a.workers.background():
        run = await a.start("many", 250)
        assert await a.result(run, timeout="60s") == [250, 250 * 249, [0, 2, 4], 2, "negative", []]
        kinds = await a.kinds(run, "step.")
        assert kinds.count("step.started") <= 5  # the handler runs again once for each call
        assert await a.store.stuck_runs() == []


async def test_one_of_many_fails(app: Any) -> None:
    @flow("many")
    async def many(ctx: Context) -> Any:
        return await ctx.call_many(double, [1, -1, 2, -2])

    async with app(many, double) as a, a.workers.background():
        with pytest.raises(RunFailed, match="1 more of 4 children failed"):
            await a.result(await a.start("many"))


async def test_cancelling_the_parent_of_many(app: Any, clock: FakeClock) -> None:
    @flow("many")
    async def many(ctx: Context) -> Any:
        return await ctx.call_many(sleeper, [1] * 30)

    async with app(many, sleeper, clock=clock) as a, a.workers.background():
        run = await a.start("many")

        async def started() -> bool:
            return len(await a.runs.list(parent=run, status="waiting", limit=100)) == 30

        await until(started)
        await a.runs.cancel(run)

        async def ended() -> bool:
            return len(await a.runs.list(parent=run, status="cancelled", limit=100)) == 30

        await until(ended)


async def test_a_depth_limit(app: Any) -> None:
    @flow("deeper")
    async def deeper(ctx: Context) -> Any:
        return await ctx.call("deeper")

    async with app(deeper, max_depth=3) as a, a.workers.background():
        run = await a.start("deeper")
        with pytest.raises(RunFailed, match="max_depth allows 3"):
            await a.result(run)
        tree = await _tree(a, run)
        assert [one.depth for one in tree] == [1, 2, 3]
        (failed,) = await a.events_of(tree[-1].id, "step.failed")
        assert failed.data["code"] == DepthLimit.code


async def test_start_records_its_parent_and_does_not_follow_it(app: Any, clock: FakeClock) -> None:
    @flow("starter")
    async def starter(ctx: Context) -> str:
        ctx.start(sleeper, 1)
        await ctx.wait.time("30m")
        return "started"

    async with app(starter, sleeper, clock=clock) as a, a.workers.background():
        run = await a.start("starter")
        child = await _sleeping_child(a, run)
        assert (child.parent, child.root, child.depth, child.is_called) == (run, run, 0, False)
        await a.runs.cancel(run)
        a.advance_clock("2h")
        assert await a.result(child.id) == "slept"


async def test_a_key_of_another_run_fails_the_call(app: Any) -> None:
    @flow("keyed")
    async def keyed(ctx: Context) -> Any:
        return await ctx.call(double, 1, key="taken")

    async with app(keyed, double) as a, a.workers.background():
        await a.result(await a.start("double", 7, key="taken"))
        with pytest.raises(RunFailed, match="already exists and was not started by this call"):
            await a.result(await a.start("keyed"))


async def test_a_plain_job_cannot_call(app: Any) -> None:
    from penstock import job

    @job(queue="plain", retry=1)
    async def plain(ctx: Context) -> Any:
        return await ctx.call(double, 1)

    async with app(plain, double) as a, a.workers.background():
        with pytest.raises(RunFailed, match="is not part of a run"):
            await a.jobs.result(await a.enqueue(plain))


async def test_calls_after_effects_run_once(app: Any) -> None:
    """A handler that calls, waits and calls again starts each child once."""
    ran: list[int] = []

    async def note(n: int) -> int:
        ran.append(n)
        return n

    @flow("mixed")
    async def mixed(ctx: Context) -> Any:
        one = await ctx.call(double, 1)
        await ctx.run("note", note, one)
        two = await ctx.call(double, one)
        return [one, two]

    async with app(mixed, double) as a, a.workers.background():
        run = await a.start("mixed")
        assert await a.result(run) == [2, 4]
        assert ran == [2]
        assert len(await a.runs.children(run)) == 2


async def test_a_call_beside_a_function(app: Any) -> None:
    """The child starts while the function runs, and its end is found however early it comes."""
    gone = asyncio.Event()

    @flow("beside")
    async def beside(ctx: Context) -> Any:
        return await ctx.all([ctx.call(double, 3), ctx.run("wait", gone.wait)])

    async with app(beside, double) as a, a.workers.background():
        run = await a.start("beside")
        gone.set()
        assert await a.result(run) == [6, True]


async def test_calls_in_gather(app: Any) -> None:
    @flow("gathered")
    async def gathered(ctx: Context) -> Any:
        return await asyncio.gather(*(ctx.call(double, n, name=f"call {n}") for n in range(4)))

    async with app(gathered, double) as a, a.workers.background():
        run = await a.start("gathered")
        assert await a.result(run) == [0, 2, 4, 6]
        assert len(await a.runs.children(run)) == 4


@pytest.mark.parametrize("tags", [{"a": None}, {"a": 1}, "text", 7, False, ["a"], {"a": "\ud800"}])
@pytest.mark.parametrize("how", ["call", "call_many"])
async def test_tags_that_are_not_strings_are_refused(app: Any, tags: Any, how: str) -> None:
    """They would be a run that can neither run nor be cancelled."""

    @flow("caller")
    async def caller(_input: Any, ctx: Context) -> Any:
        if how == "call":
            return await ctx.call(double, 1, tags=tags)
        return await ctx.call_many(double, [1], tags=tags)

    async with app(caller, double) as a, a.workers.background():
        run, status = await a.run_to_end("caller")
        assert status == "failed"
        (failed,) = await a.events_of(run, "step.failed")
        assert "tags" in failed.data["error"]
        assert await a.runs.children(run) == []
