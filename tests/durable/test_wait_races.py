"""Races at a wait: the first event, trigger, timeout or cancellation wins, and no wake-up is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from penstock import AwaitTimeout, Context, flow
from penstock.commit.committer import Committer
from penstock.core.errors import TriggerError
from penstock.durable.trigger_commands import TriggerCommands
from penstock.durable.wait_records import decode_body
from penstock.ports.unit import NewEvent, Suspended, Unit
from penstock.stores.sqlite import SqliteStore
from penstock.testing import TestApp
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultAt, FaultStore, NoFaults, When


class CommitHook(NoFaults):
    """Runs an action just before or just after the commit that suspends a step."""

    def __init__(self, when: When) -> None:
        self.when = when
        self.action: Any = None

    def watch(self, inner: Any) -> Any:
        commit = inner.commit

        async def watched(units: Any, request: Any = None) -> Any:
            suspends = any(isinstance(unit.outcome, Suspended) for unit in units)
            if suspends and self.when == "before":
                await self._once()
            reply = await commit(units, request)
            if suspends and self.when == "after":
                await self._once()
            return reply

        inner.commit = watched
        return inner

    async def _once(self) -> None:
        action, self.action = self.action, None
        if action is not None:
            await action()


@flow("ask", emits=[])
async def ask(order: Any, ctx: Context) -> Any:
    trigger = await ctx.wait.trigger("approval")
    await ctx.run("tell", TOKENS.append, trigger.token)
    return await trigger.wait()


@flow("pay", emits=[])
async def pay(order: Any, ctx: Context) -> Any:
    return (await ctx.wait.event("paid", match={"id": order})).data


TOKENS: list[str] = []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_trigger_fired_while_the_step_suspends(clock: FakeClock, when: When) -> None:
    TOKENS.clear()
    hook = CommitHook(when)
    store = hook.watch(SqliteStore(":memory:", clock=clock))
    async with TestApp(store=store, handlers=[ask], clock=clock) as app:
        # Another process fires: its commit is its own.
        other = TriggerCommands(replace(app._runtime, committer=Committer(app.store), new_unit_id=lambda: "other-1"))
        hook.action = lambda: other.fire(TOKENS[0], "now")
        run = await app.start(ask, None)
        assert (await app.finish(run)).result == "now"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_event_emitted_while_the_step_suspends(clock: FakeClock, when: When) -> None:
    hook = CommitHook(when)
    store = hook.watch(SqliteStore(":memory:", clock=clock))
    async with TestApp(store=store, handlers=[pay], clock=clock) as app:
        body = b'{"kind":"paid","subject":"x","data":{"id":7}}'
        paid = Unit("other-1", events=[NewEvent("nq:global", body, "paid")])
        hook.action = lambda: app.store.commit([paid])
        run = await app.start(pay, 7)
        assert (await app.finish(run)).result == {"id": 7}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("k", range(1, 12))
async def test_a_lost_reply_at_any_commit(clock: FakeClock, when: When, k: int) -> None:
    TOKENS.clear()
    store = FaultStore(SqliteStore(":memory:", clock=clock), FaultAt("commit", k, when))
    async with TestApp(store=store, handlers=[ask, pay], clock=clock) as app:
        asked, paid = await app.start(ask, None), await app.start(pay, 7)
        await app.settle()
        if not TOKENS:  # the lost reply had claimed the job: it is claimed again when its lease has expired
            await app.advance(f"{app.settings.lease}ms")
        await app.fire(TOKENS[0], "yes")
        await app.emit("paid", {"id": 7})
        assert (await app.finish(asked)).result == "yes"
        assert (await app.finish(paid)).result == {"id": 7}
        for run in (asked, paid):
            kinds = [e["kind"] for e in await app.history(run)]
            assert (kinds.count("step.resumed"), kinds.count("step.completed")) == (1, 1)
        assert len(TOKENS) == 1


async def test_one_of_many_concurrent_fires_succeeds(kit: Any) -> None:
    TOKENS.clear()
    async with kit(ask) as app:
        run = await app.start(ask, None)
        await app.settle()
        fires = [app.waits._triggers.fire(TOKENS[0], n) for n in range(30)]
        done = await asyncio.gather(*fires, return_exceptions=True)
        assert sum(one == run for one in done) == 1
        assert all(one == run or isinstance(one, TriggerError) for one in done)
        assert (await app.finish(run)).result == done.index(run)


@pytest.mark.parametrize("first", ["fire", "cancel"])
async def test_fire_and_cancel_at_the_same_time(kit: Any, first: str) -> None:
    TOKENS.clear()
    async with kit(ask) as app:
        run = await app.start(ask, None)
        await app.settle()
        moves = {"fire": app.waits._triggers.fire(TOKENS[0], 1), "cancel": app.runs.cancel(run)}
        order = sorted(moves, key=lambda move: move != first)
        done = dict(zip(order, await asyncio.gather(*(moves[m] for m in order), return_exceptions=True), strict=True))
        view = await app.finish(run)
        fired = [e.kind for e in await app.events.read_all(f"nq:trigger:{TOKENS[0].partition('.')[0]}")][1:]
        if view.status == "cancelled":
            assert done["cancel"] is True
            # Fired, and cancelled before the step could go on; or never fired.
            assert fired == (["trigger.fired"] if done["fire"] == run else ["trigger.cancelled"])
        else:
            assert (done["fire"], done["cancel"], view.result) == (run, False, 1)
            assert fired == ["trigger.fired"]


@pytest.mark.parametrize("late", [False, True])
async def test_fire_and_timeout_at_the_same_time(kit: Any, late: bool) -> None:
    tokens: list[str] = []

    @flow("brief", emits=[])
    async def brief(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval", timeout="1h")
        await ctx.run("tell", tokens.append, trigger.token)
        try:
            return await trigger.wait()
        except AwaitTimeout:
            return "timeout"

    async with kit(brief) as app:
        run = await app.start(brief, None)
        await app.settle()
        app.time.advance("59m59s999ms")
        row = await app.store.wait_row(tokens[0].partition(".")[0])
        fire = app.waits._triggers.resolve(row, decode_body(row.body), "fired")  # it has looked, and is about to commit
        if late:
            await app.advance("1s")
        try:
            assert await fire == run
            fired = True
        except TriggerError:
            fired = False
        assert (await app.finish(run)).result == ("fired" if fired else "timeout")
        assert fired is not late
        assert [e["kind"] for e in await app.history(run)].count("step.completed") == 1


async def test_a_wait_cancelled_before_delivery_does_not_take_the_event_from_others(kit: Any) -> None:
    @flow("wait_for_bell", emits=[])
    async def wait_for_bell(ctx: Context) -> Any:
        return (await ctx.wait.event("bell")).data

    async with kit(wait_for_bell) as app:
        runs = [await app.start("wait_for_bell") for _ in range(4)]
        await app.settle()
        read_waits, reads = app.store.waits_for_topic, []

        async def cancel_one_after_the_first_read(*args: Any, **kwargs: Any) -> Any:
            rows = await read_waits(*args, **kwargs)
            reads.append(len(rows))
            if len(reads) == 1:
                await app.runs.cancel(runs[1])
            return rows

        app.store.waits_for_topic = cancel_one_after_the_first_read
        await app.emit("bell", "ding")
        await app.settle()
        assert [(await app.runs.get(run)).status for run in runs] == [
            "completed",
            "cancelled",
            "completed",
            "completed",
        ]
        assert reads == [4, 3], "the unit for all four was refused, and the waits were read again"
        resumed = [e.kind for run in runs for e in await app.events.read(f"nq:flow:{run}")].count("step.resumed")
        assert resumed == 3
