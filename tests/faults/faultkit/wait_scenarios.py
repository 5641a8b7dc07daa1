"""Scenarios of the crash-point sweep in which steps wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock import flow, step
from penstock.core.errors import AwaitTimeout, TriggerError
from penstock.testing.history import History, Trigger

from .stage import Scenario, Stage

QUICK = {"attempts": 6, "backoff": {"type": "fixed", "delayMs": 100, "jitter": False}}
Handlers = list[Callable[..., Any]]


def result_of(history: History, id: str) -> Any:
    run = next(run for run in history.runs if run.id == id)
    assert run.status == "completed", f"{id} is {run.status}"
    return run.events[-1].data.get("result")


class TimeWait(Scenario):
    name = "time wait"
    triggers = {"nap": {"sleeper": Trigger(()), "after": Trigger(("nap.begun",))}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("nap", emits="nap.begun", retry=QUICK)
        async def sleeper(ctx: Any) -> Any:
            stage.note(ctx)
            began = await ctx.run("began", stage.clock.now_ms)
            ctx.emit("nap.begun", None)
            await ctx.wait.time("5s")
            assert stage.clock.now_ms() >= began + 5000, "woke before its time"

        @step(on="nap.begun", emits=[], retry=QUICK)
        async def after(ctx: Any) -> str:
            stage.note(ctx)
            return "begun"

        return [sleeper, after]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("nap", "nap-1")
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        assert result_of(history, "nap-1") == "begun"


class EventWait(Scenario):
    """The event comes `delay` seconds after the run began; its step needs one second to come to the gate."""

    triggers = {"order": {"waits": Trigger(())}}

    def __init__(self, name: str, delay: float) -> None:
        self.name = name
        self._delay = delay

    def handlers(self, stage: Stage) -> Handlers:
        @flow("order", emits=[], retry=QUICK)
        async def waits(x: Any, ctx: Any) -> Any:
            stage.note(ctx)
            await asyncio.sleep(1.0)
            paid = await ctx.wait.event("paid", match={"order": x})
            return paid.data["n"]

        return [waits]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("order", "order-1", 7)
            await asyncio.sleep(self._delay)
            for n, order in enumerate((6, 7, 7)):
                event = {"order": order, "n": n}
                await stage.insist(lambda n=n, e=event: stage.app.emit("paid", e, key=f"paid-{n}"))  # type: ignore[misc]
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        # Either payment will do: a delivery that failed comes again later, and another event may come before it.
        assert result_of(history, "order-1") in (1, 2)


class TriggerWait(Scenario):
    """One is fired in time, by a caller who asks again; one is not."""

    name = "trigger with timeout"
    triggers = {"ask": {"asks": Trigger(())}}

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("ask", emits=[], retry=QUICK)
        async def asks(ctx: Any) -> Any:
            stage.note(ctx)
            trigger = await ctx.wait.trigger("approval", timeout="10s")
            self._tokens[ctx.run_id] = trigger.token
            await ctx.run("tell", lambda: None)
            try:
                return await trigger.wait()
            except AwaitTimeout:
                stage.notes["timeout"] += 1
                return "late"

        return [asks]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("ask", "fired")
            await stage.start("ask", "late")
            for _ in range(40):
                if await stage.insist(lambda: self._fire(stage)):
                    break
                await asyncio.sleep(0.2)
            await stage.settle()

    async def _fire(self, stage: Stage) -> bool:
        if "fired" not in self._tokens:
            return False
        try:
            await stage.app.waits.fire(self._tokens["fired"], {"ok": True})
        except TriggerError:
            stage.notes["refused"] += 1
            row = await stage.store.waits(run="fired")
            return not row
        return True

    async def judge(self, stage: Stage, history: History) -> None:
        self._tokens.clear()
        assert (result_of(history, "fired"), result_of(history, "late")) == ({"ok": True}, "late")


class FirstOf(Scenario):
    """The event wins in one, time in the other; what was let go has a timeout that passes later."""

    name = "first of several"
    triggers = {"pick": {"picks": Trigger(())}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("pick", emits=[], retry=QUICK)
        async def picks(x: Any, ctx: Any) -> Any:
            stage.note(ctx)
            which, _ = await ctx.first(
                {"paid": ctx.wait.event("paid", match={"order": x}, timeout="3s"), "slow": ctx.wait.time("2s")}
            )
            did = await ctx.run("did", lambda: which)
            await ctx.wait.time("5s", name="longer")
            return [which, did]

        return [picks]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("pick", "paid", 1)
            await stage.start("pick", "slow", 2)
            await stage.insist(lambda: stage.app.emit("paid", {"order": 1}, key="pays"))
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        paid, slow = result_of(history, "paid"), result_of(history, "slow")
        assert paid[0] == paid[1], paid
        assert slow == ["slow", "slow"]


class FunctionsRace(Scenario):
    """A time comes while a function runs in one, an event in the other; after a crash another may win, as long as the
    handler has not heard of the first."""

    name = "functions that race"
    triggers = {"race": {"races": Trigger(())}}

    def __init__(self) -> None:
        self._heard: dict[str, set[str]] = {}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("race", emits=[], retry=QUICK)
        async def races(x: Any, ctx: Any) -> Any:
            stage.note(ctx)
            which, _ = await ctx.first(
                {
                    "work": ctx.run("work", asyncio.sleep, x),
                    "more": ctx.run("more", asyncio.sleep, 60),
                    "paid": ctx.wait.event("paid", match={"order": x}),
                    "late": ctx.wait.time("4s"),
                }
            )
            self._heard.setdefault(ctx.run_id, set()).add(which)
            did = await ctx.run("did", lambda: which)
            return [which, did]

        return [races]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("race", "late", 30)
            await stage.start("race", "paid", 2)
            await stage.insist(lambda: stage.app.emit("paid", {"order": 2}, key="pays"))
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        heard, self._heard = self._heard, {}
        for id in ("late", "paid"):
            which, did = result_of(history, id)
            assert heard[id] == {which} == {did}, f"{id}: {heard[id]} heard, {which} and {did} recorded"
        assert await stage.store.waits() == []


class StartedByEvent(Scenario):
    name = "start on an event"
    triggers = {"receipt": {"receipt": Trigger(())}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("receipt", emits=[], retry=QUICK, start_on={"kind": "paid", "when": {"big": True}})
        async def receipt(x: Any, ctx: Any) -> Any:
            stage.note(ctx)
            return x["n"]

        return [receipt]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            while not await stage.store.waits(kind="flow"):
                await asyncio.sleep(0.1)
            for n in range(3):
                event = {"n": n, "big": n != 1}
                await stage.insist(lambda n=n, e=event: stage.app.emit("paid", e, key=f"paid-{n}"))  # type: ignore[misc]
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        assert sorted(result_of(history, run.id) for run in history.runs) == [0, 2]


class CancelledWait(Scenario):
    """A run is cancelled while its step waits: nothing opens the gate afterwards."""

    name = "cancel of a wait"
    triggers = {"order": {"waits": Trigger(())}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("order", emits=[], retry=QUICK)
        async def waits(ctx: Any) -> None:
            stage.note(ctx)
            await ctx.wait.event("paid")

        return [waits]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("order", "order-1")
            await asyncio.sleep(1.0)
            await stage.insist(lambda: stage.app.runs.cancel("order-1"))
            await stage.insist(lambda: stage.app.emit("paid", None, key="pays"))
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        assert [run.status for run in history.runs] == ["cancelled"]
        assert await stage.store.waits() == []


WAITING: tuple[Scenario, ...] = (
    TimeWait(), EventWait("event before the wait", 0.2), EventWait("event during the suspend", 1.0),
    EventWait("event after the wait", 2.0), TriggerWait(), FirstOf(), FunctionsRace(),
    StartedByEvent(), CancelledWait(),
)  # fmt: skip
