"""Concurrent durable calls: `asyncio.gather`, task groups and tasks over `ctx.run` and waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock import AwaitTimeout, Context, SyncContext, flow
from penstock.core.errors import CallFailed
from penstock.durable import branches
from penstock.testing.until import until

DID: list[Any] = []


@pytest.fixture(autouse=True)
def _clear() -> Iterator[None]:
    DID.clear()
    yield


async def do(what: Any) -> Any:
    await asyncio.sleep(0)
    DID.append(what)
    return what


async def work_nap_work(ctx: Context, name: str, nap: str) -> str:
    """Make three durable calls in a row, as one branch."""
    first = await ctx.run(f"{name} one", do, f"{name}1")
    await ctx.wait.time(nap, name=f"{name} nap")
    return f"{first} {await ctx.run(f'{name} two', do, f'{name}2')}"


async def test_gather_over_functions(kit: Any) -> None:
    @flow("parallel", emits=[])
    async def parallel(order: Any, ctx: Context) -> Any:
        together = asyncio.Barrier(3)  # passed only if all three run at once

        async def meet(n: int) -> int:
            await together.wait()
            DID.append(n)
            return n

        return await asyncio.gather(*(ctx.run(f"meet {n}", meet, n) for n in range(3)))

    async with kit(parallel) as app:
        assert (await app.run_flow(parallel)).result == [0, 1, 2]
        assert sorted(DID) == [0, 1, 2]


async def test_branches_with_waits_continue_at_their_own_time(kit: Any) -> None:
    @flow("naps", emits=[])
    async def naps(order: Any, ctx: Context) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work_nap_work(ctx, name, nap)) for name, nap in (("a", "2h"), ("b", "1h"))]
        return [task.result() for task in tasks]

    async with kit(naps) as app:
        run = await app.start(naps)
        await app.settle()
        assert (DID, len(await app.pending_waits(run))) == (["a1", "b1"], 2)
        await app.advance("1h")
        assert (DID, len(await app.pending_waits(run))) == (["a1", "b1", "b2"], 1)
        assert (await app.finish(run)).result == ["a1 a2", "b1 b2"]
        assert DID == ["a1", "b1", "b2", "a2"], "each once"


async def test_functions_end_and_are_recorded_before_the_step_suspends(kit: Any) -> None:
    go = asyncio.Event()

    async def slow() -> str:
        await go.wait()
        DID.append("slow")
        return "slow"

    @flow("mixed", emits=[])
    async def mixed(order: Any, ctx: Context) -> Any:
        event, value = await asyncio.gather(ctx.wait.event("paid", past=False), ctx.run("slow", slow))
        return [event.data, value]

    async with kit(mixed) as app:
        run = await app.start(mixed)
        await until(lambda: app.workers.active)

        async def is_registered() -> bool:
            return bool(await app.store.waits(run=run))

        await until(is_registered)
        await app.emit("paid", 7)  # arrives while the function runs: a wait for later events must not miss it

        async def is_resolved() -> bool:
            return not await app.store.waits(run=run)

        await until(is_resolved)
        go.set()
        assert (await app.finish(run)).result == [7, "slow"]
        assert DID == ["slow"]


async def test_a_time_that_passes_while_a_function_runs_continues_its_branch(kit: Any) -> None:
    rung = asyncio.Event()

    async def ring(ctx: Context) -> None:
        await ctx.wait.time("10ms", name="nap")
        await ctx.run("ring", rung.set)

    @flow("alarm", emits=[])
    async def alarm(order: Any, ctx: Context) -> Any:
        await asyncio.gather(ctx.run("wait for it", rung.wait), ring(ctx))
        return "rung"

    async with kit(alarm) as app:
        assert (await app.run_flow(alarm)).result == "rung"


async def test_exceptions_are_values_with_return_exceptions(kit: Any) -> None:
    """The exception that suspends a handler must not be among them."""

    async def broken() -> None:
        raise ValueError("no")

    @flow("some", emits=[], retry=1)
    async def some(order: Any, ctx: Context) -> Any:
        found = await asyncio.gather(
            ctx.run("broken", broken, retry={"attempts": 2, "backoff": {"delayMs": 1}}),
            ctx.wait.time("1h", name="nap"),
            ctx.wait.event("never", timeout="2h"),
            ctx.run("fine", do, 1),
            return_exceptions=True,
        )
        return [type(one).__name__ for one in found]

    async with kit(some) as app:
        assert (await app.run_flow(some)).result == ["CallFailed", "NoneType", "AwaitTimeout", "int"]
        assert DID == [1]


async def test_a_failed_branch_keeps_what_the_others_recorded(kit: Any) -> None:
    """The next attempt calls only what has no record."""

    @flow("some", emits=[], retry=2)
    async def some(order: Any, ctx: Context) -> Any:
        ended = asyncio.Event()

        async def fine() -> str:
            DID.append("fine")
            ended.set()
            return "fine"

        async def broken() -> str:
            await ended.wait()
            await asyncio.sleep(0)
            DID.append("broken")
            if ctx.attempt == 1:
                raise ValueError("no")
            return "fixed"

        if ctx.attempt > 1:
            ended.set()
        return await asyncio.gather(ctx.run("fine", fine), ctx.run("broken", broken))

    async with kit(some) as app:
        view = await app.run_flow(some)
        assert view.result == ["fine", "fixed"]
        assert DID == ["fine", "broken", "broken"]
        assert {name: call.status for name, call in view.steps["some"].calls.items()} == {
            "fine#1": "completed",
            "broken#1": "completed",
        }


async def test_a_task_group_cancels_the_function_of_a_sibling(kit: Any) -> None:
    @flow("group", emits=[])
    async def group(order: Any, ctx: Context) -> Any:
        async def forever() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                DID.append("stopped")

        async def broken() -> None:
            await asyncio.sleep(0)
            raise ValueError("no")

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(aside(ctx.run("forever", forever)))
                tasks.create_task(aside(ctx.run("broken", broken)))
        except* ValueError:
            DID.append("failed")
        return await ctx.run("after", do, "after")

    async def aside(call: Any) -> Any:
        return await call

    async with kit(group) as app:
        assert (await app.run_flow(group)).result == "after"
        assert DID == ["stopped", "failed", "after"]


async def test_the_first_of_several_branches(kit: Any) -> None:
    """`asyncio.wait` leaves the others running; what is cancelled does not stay pending."""

    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        async def hear(kind: str) -> Any:
            return (await ctx.wait.event(kind)).data

        tasks = {asyncio.create_task(hear(kind)): kind for kind in ("a", "b")}
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        await ctx.wait.time("1h", name="nap")
        return [task.result() for task in done]

    async with kit(race) as app:
        run = await app.start(race)
        await app.settle()
        assert len(await app.pending_waits(run)) == 2
        await app.emit("b", 2)
        await app.settle()
        assert [wait.name for wait in await app.pending_waits(run)] == ["nap"]
        assert (await app.finish(run)).result == [2]


async def test_a_timeout_and_a_shield_around_calls(kit: Any) -> None:
    @flow("guarded", emits=[])
    async def guarded(order: Any, ctx: Context) -> Any:
        slow = asyncio.ensure_future(aside(ctx.run("slow", asyncio.sleep, 0.05)))
        try:
            async with asyncio.timeout(0.01):
                await asyncio.shield(slow)
        except TimeoutError:
            DID.append("timeout")
        await slow
        async with asyncio.timeout(30):  # a wait suspends the step: only `timeout=` of the wait limits it
            await asyncio.shield(asyncio.ensure_future(aside(ctx.wait.time("1h", name="nap"))))
        return await asyncio.wait_for(ctx.run("last", do, "last"), 10)

    async def aside(call: Any) -> Any:
        return await call

    async with kit(guarded) as app:
        run = await app.start(guarded)
        await app.settle()
        assert [wait.name for wait in await app.pending_waits(run)] == ["nap"]
        assert (await app.finish(run)).result == "last"


async def test_a_task_is_a_branch_before_it_is_awaited(kit: Any) -> None:
    @flow("ahead", emits=[])
    async def ahead(order: Any, ctx: Context) -> Any:
        async def look() -> Any:
            return await ctx.run("look", asyncio.to_thread, lambda: DID.append("look") or 5)

        ahead = asyncio.create_task(look())
        event = await ctx.wait.event("go")
        return [event.data, await ahead]

    async with kit(ahead) as app:
        run = await app.start(ahead)
        await app.settle()
        assert DID == ["look"], "it ran and was recorded before the step suspended"
        await app.emit("go", 1)
        assert (await app.finish(run)).result == [1, 5]
        assert DID == ["look"]


async def test_a_branch_that_does_something_else_keeps_the_step_running(kit: Any) -> None:
    go = asyncio.Event()

    @flow("request", emits=[])
    async def request(order: Any, ctx: Context) -> Any:
        async def ask() -> Any:
            await asyncio.to_thread(lambda: None)
            reply = asyncio.get_running_loop().create_future()
            waiting = asyncio.get_running_loop().create_task(answer(reply))
            got = await reply
            await waiting
            return await ctx.run("keep", do, got)

        event, got = await asyncio.gather(ctx.wait.event("go"), ask())
        return [event.data, got]

    async def answer(reply: Any) -> None:
        await go.wait()
        reply.set_result("answer")

    async with kit(request) as app:
        run = await app.start(request)

        async def is_registered() -> bool:
            return bool(await app.store.waits(run=run))

        await until(is_registered)
        assert app.workers.active
        go.set()
        await app.settle()
        assert (DID, (await app.runs.get(run)).status) == (["answer"], "waiting")
        await app.emit("go", 1)
        assert (await app.finish(run)).result == [1, "answer"]
        assert DID == ["answer"]


async def test_a_busy_branch_does_not_keep_the_slot_forever(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "BUSY_LIMIT_S", 0.05)

    @flow("stuck", emits=[])
    async def stuck(order: Any, ctx: Context) -> Any:
        async def forever() -> None:
            await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(forever())
        event = await asyncio.gather(ctx.wait.event("go"), asyncio.wait({task}, timeout=0 if DID else None))
        return event[0].data

    async with kit(stuck) as app:
        run = await app.start(stuck)
        await app.settle()
        assert (await app.runs.get(run)).status == "waiting"
        DID.append("resumed")
        await app.emit("go", 1)
        assert (await app.finish(run)).result == 1


async def test_locks_and_queues_between_branches(kit: Any) -> None:
    @flow("pool", emits=[])
    async def pool(order: Any, ctx: Context) -> Any:
        queue: asyncio.Queue[int] = asyncio.Queue()
        limit = asyncio.Semaphore(2)
        got: list[int] = []

        async def worker() -> None:
            while (n := await queue.get()) >= 0:
                async with limit:
                    await ctx.wait.time("1h", name=f"nap {n}")
                    got.append(await ctx.run(f"item {n}", do, n))

        workers = [asyncio.create_task(worker()) for _ in range(3)]
        for n in (*range(5), -1, -1, -1):
            queue.put_nowait(n)
        await asyncio.gather(*workers)
        return sorted(got)

    async with kit(pool) as app:
        assert (await app.run_flow(pool)).result == [0, 1, 2, 3, 4]
        assert sorted(DID) == [0, 1, 2, 3, 4]


async def test_what_the_handler_leaves_behind_is_cancelled(kit: Any) -> None:
    left: list[asyncio.Task[Any]] = []

    @flow("leaves", emits=[])
    async def leaves(order: Any, ctx: Context) -> Any:
        async def behind() -> None:
            await ctx.run("short", do, "short")
            await ctx.run("long", asyncio.sleep, 3600)

        left.append(asyncio.create_task(behind()))
        left.append(asyncio.ensure_future(aside(ctx.wait.event("never"))))
        await ctx.run("last", asyncio.sleep, 0.01)
        return "done"

    async def aside(call: Any) -> Any:
        return await call

    async with kit(leaves) as app:
        view = await app.run_flow(leaves)
        assert (view.result, DID) == ("done", ["short"])
        assert all(task.cancelled() for task in left)
        assert await app.store.waits(run=view.id) == []


async def test_effects_of_branches_are_committed_once(kit: Any) -> None:
    """Emits, state writes and launches are identified without their order among branches."""

    @flow("effects", emits=["a.done", "b.done"])
    async def effects(order: Any, ctx: Context) -> Any:
        async def branch(name: str, kind: str) -> None:
            ctx.emit(f"{name}.done", "before")
            ctx.state.set(f"{name} before", 1)
            ctx.start("other", name, key=f"{ctx.run_id}-{name}-1")
            await ctx.wait.event(kind)
            ctx.emit(f"{name}.done", "after")
            ctx.state.set(f"{name} after", 1)

        names = [("a", "go.a"), ("b", "go.b")]
        if DID:  # another order than before
            names.reverse()
        DID.append(1)
        await asyncio.gather(*(branch(*name) for name in names))
        return sorted(await ctx.state.list())

    @flow("other", emits=[])
    async def other(name: Any) -> Any:
        return name

    async with kit(effects, other) as app:
        run = await app.start(effects)
        await app.settle()
        for kind in ("go.b", "go.a"):
            await app.emit(kind)
            await app.settle()
        view = await app.finish(run)
        assert view.result == ["a after", "a before", "b after", "b before"]
        assert await app.emitted(run, "a.done") == ["before", "after"]
        assert await app.emitted(run, "b.done") == ["before", "after"]
        assert len(await app.runs.list(flow="other")) == 2


@pytest.mark.parametrize(("option", "setting", "limit"), [(None, 3, 3), (2, 3, 2), (5, 3, 5)])
async def test_a_limit_of_functions_at_once(kit: Any, option: int | None, setting: int, limit: int) -> None:
    running: list[int] = []

    async def count(n: int) -> int:
        running.append(n)
        DID.append(len(running))
        await asyncio.sleep(0.001)
        running.remove(n)
        return n

    @flow("many", emits=[], call_concurrency=option)
    async def many(order: Any, ctx: Context) -> Any:
        return sum(await asyncio.gather(*(ctx.run(f"one {n}", count, n) for n in range(10))))

    async with kit(many, call_concurrency=setting) as app:
        assert (await app.run_flow(many)).result == 45
        assert max(DID) == limit


async def test_a_suspension_that_a_branch_swallows_is_an_error(kit: Any) -> None:
    @flow("swallows", emits=[], retry=1)
    async def swallows(order: Any, ctx: Context) -> Any:
        try:
            await asyncio.gather(ctx.wait.time("1h", name="a"), ctx.wait.time("2h", name="b"))
        except asyncio.CancelledError:
            return "never mind"

    async with kit(swallows) as app:
        view = await app.run_flow(swallows)
        assert (view.status, view.steps["swallows"].code) == ("failed", "suspend_swallowed")
        assert await app.store.waits(run=view.id) == []


async def test_threads_of_a_def_handler_run_functions(kit: Any) -> None:
    @flow("threads", emits=[])
    def threads(order: Any, ctx: SyncContext) -> Any:
        def one(n: int) -> int:
            return int(ctx.run(f"item {n}", lambda: DID.append(n) or n * n))

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(one, range(8)))
        ctx.wait.time("1h")
        return found

    async with kit(threads) as app:
        assert (await app.run_flow(threads)).result == [n * n for n in range(8)]
        assert sorted(DID) == list(range(8)), "each once, although the handler ran twice"


async def test_calls_of_other_threads_have_no_order(kit: Any) -> None:
    """A pool may run them one after the other, and in another order in the next attempt."""

    @flow("threads", emits=[], retry=2)
    def threads(order: Any, ctx: SyncContext) -> Any:
        names = ["a", "b"] if ctx.attempt == 1 else ["b", "a"]
        with ThreadPoolExecutor(1) as pool:
            found = [pool.submit(ctx.run, name, lambda name=name: DID.append(name) or name).result() for name in names]
        if ctx.attempt == 1:
            raise ConnectionError
        return found

    async with kit(threads) as app:
        assert (await app.run_flow(threads)).result == ["b", "a"]
    assert sorted(DID) == ["a", "b"]


async def test_a_wait_on_another_thread_is_an_error(kit: Any) -> None:
    @flow("threads", emits=[], retry=1)
    def threads(order: Any, ctx: SyncContext) -> Any:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(ctx.wait.time, "1h").result() if not DID else pool.submit(wait, ctx).result()

    def wait(ctx: SyncContext) -> Any:
        return ctx.wait.time("1h")

    DID.append(1)
    async with kit(threads) as app:
        view = await app.run_flow(threads)
        assert view.steps["threads"].code == "concurrent_durable_call"
        assert "Call it on the handler's own thread" in (view.steps["threads"].error or "")


async def test_five_tool_calls_of_an_agent_one_of_which_needs_approval(kit: Any) -> None:
    """The worker dies after the handler has suspended or resumed: every tool runs once."""

    @flow("agent", emits=[])
    async def agent(order: Any, ctx: Context) -> Any:
        async def tool(name: str) -> str:
            return str(await ctx.run(f"tool {name}", do, name))

        async def guarded(name: str) -> str:
            approval = await ctx.wait.trigger("approval", timeout="7d")
            await ctx.run("ask", do, "ask")
            answer = await approval.wait()
            return await tool(name) if answer["ok"] else "refused"

        results = await asyncio.gather(*(tool(name) for name in "abcd"), guarded("delete"))
        return await ctx.run("answer", do, " ".join(results))

    async with kit(agent) as app:
        app.crash("agent", attempt=2, after=True)
        run = await app.start(agent)
        await app.settle()
        assert sorted(DID) == ["a", "ask", "b", "c", "d"]
        await app.fire("approval", {"ok": True})
        view = await app.finish(run)
        assert view.result == "a b c d delete"
        assert sorted(DID) == ["a", "a b c d delete", "ask", "b", "c", "d", "delete"]
        assert {call.status for call in view.steps["agent"].calls.values()} == {"completed"}


async def test_calls_inside_a_function_are_an_error(kit: Any) -> None:
    @flow("nested", emits=[], retry=1)
    async def nested(order: Any, ctx: Context) -> Any:
        async def both() -> Any:
            return await asyncio.gather(aside(), aside())

        async def aside() -> Any:
            return await ctx.run("inner", do, 1)

        try:
            await ctx.run("outer", both)
        except (CallFailed, AwaitTimeout):
            pass

    async with kit(nested) as app:
        view = await app.run_flow(nested)
        assert view.steps["nested"].code == "concurrent_durable_call"
        assert "inner was called inside the function of outer#1" in (view.steps["nested"].error or "")
        assert DID == []


async def test_tasks_of_calls_and_waits_themselves(kit: Any) -> None:
    ran: list[str] = []

    @flow("double")
    async def double(n: int) -> int:
        return 2 * n

    @flow("direct")
    async def direct(_: None, ctx: Context) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(ctx.run("a", ran.append, "a")),
                group.create_task(ctx.call(double, 2)),
                group.create_task(ctx.call_many(double, [3, 4])),
                group.create_task(ctx.wait.time("1h", name="nap")),
                group.create_task(ctx.wait.event("paid")),
            ]
            asking = group.create_task(ctx.wait.trigger("approval"))
        answer = (await asking).wait()
        both = await asyncio.gather(asyncio.create_task(answer), asyncio.ensure_future(answer))
        return [task.result() for task in tasks[:4]], tasks[4].result().data, both

    async with kit(direct, double) as app:
        run = await app.start("direct")
        await app.settle()
        assert (await app.runs.get(run)).status == "waiting", "no branch keeps its slot"
        await app.emit("paid", 7)
        await app.advance("2h")
        await app.fire("approval", {"ok": True})
        assert (await app.finish(run)).result == [[None, 4, [6, 8], None], 7, [{"ok": True}, {"ok": True}]]
        assert ran == ["a"]


async def test_a_cancelled_task_of_a_function_may_be_awaited_again(kit: Any) -> None:
    @flow("again")
    async def again(_: None, ctx: Context) -> Any:
        call = ctx.run("slow", asyncio.sleep, 0.05, "done")
        task = asyncio.create_task(call)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await call

    async with kit(again) as app:
        assert (await app.run_flow("again")).result == "done"
