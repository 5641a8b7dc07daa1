"""Scenarios of the crash-point sweep in which steps wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from penstock import flow, step
from penstock.core.errors import AwaitTimeout, TriggerError
from penstock.testing.history import History, Trigger

from .scenario import Sandbox, Scenario

QUICK = {"attempts": 6, "backoff": {"type": "fixed", "delayMs": 100, "jitter": False}}
Handlers = list[Callable[..., Any]]


def result_of(history: History, id: str) -> Any:
    run = next(run for run in history.runs if run.id == id)
    assert run.status == "completed", f"{id} is {run.status}"
    return run.events[-1].data.get("result")


class TimeWaitScenario(Scenario):
    name = "time wait"
    triggers = {"nap": {"sleeper": Trigger(()), "after": Trigger(("nap.started",))}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("nap", emits="nap.started", retry=QUICK)
        async def sleeper(ctx: Any) -> Any:
            sandbox.record(ctx)
            started = await ctx.run("started", sandbox.clock.now_ms)
            ctx.emit("nap.started", None)
            await ctx.wait.time("5s")
            assert sandbox.clock.now_ms() >= started + 5000, "resumed too early"

        @step(on="nap.started", emits=[], retry=QUICK)
        async def after(ctx: Any) -> str:
            sandbox.record(ctx)
            return "after"

        return [sleeper, after]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("nap", "nap-1")
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        assert result_of(history, "nap-1") == "after"


class EventWaitScenario(Scenario):
    """The event comes `delay` seconds after the start of the run; its step waits after one second."""

    triggers = {"order": {"waits": Trigger(())}}

    def __init__(self, name: str, delay: float) -> None:
        self.name = name
        self._delay = delay

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("order", emits=[], retry=QUICK)
        async def waits(x: Any, ctx: Any) -> Any:
            sandbox.record(ctx)
            await asyncio.sleep(1.0)
            paid = await ctx.wait.event("paid", match={"order": x})
            return paid.data["n"]

        return [waits]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("order", "order-1", 7)
            await asyncio.sleep(self._delay)
            for n, order in enumerate((6, 7, 7)):
                event = {"order": order, "n": n}
                await sandbox.retry(lambda n=n, e=event: sandbox.app.emit("paid", e, key=f"paid-{n}"))  # type: ignore[misc]
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        # Either payment is right: a failed delivery is retried later, and the other event may overtake it.
        assert result_of(history, "order-1") in (1, 2)


class TriggerWaitScenario(Scenario):
    """One trigger is fired in time, by a caller that retries; the other is not."""

    name = "trigger with timeout"
    triggers = {"ask": {"asks": Trigger(())}}

    def __init__(self) -> None:
        self._tokens: dict[str, str] = {}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("ask", emits=[], retry=QUICK)
        async def asks(ctx: Any) -> Any:
            sandbox.record(ctx)
            trigger = await ctx.wait.trigger("approval", timeout="10s")
            self._tokens[ctx.run_id] = trigger.token
            await ctx.run("publish", lambda: None)
            try:
                return await trigger.wait()
            except AwaitTimeout:
                sandbox.counts["timeout"] += 1
                return "late"

        return [asks]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("ask", "fired")
            await sandbox.start("ask", "late")
            for _ in range(40):
                if await sandbox.retry(lambda: self._fire(sandbox)):
                    break
                await asyncio.sleep(0.2)
            await sandbox.settle()

    async def _fire(self, sandbox: Sandbox) -> bool:
        if "fired" not in self._tokens:
            return False
        try:
            await sandbox.app.waits.fire(self._tokens["fired"], {"ok": True})
        except TriggerError:
            sandbox.counts["refused"] += 1
            row = await sandbox.store.waits(run="fired")
            return not row
        return True

    async def check(self, sandbox: Sandbox, history: History) -> None:
        self._tokens.clear()
        assert (result_of(history, "fired"), result_of(history, "late")) == ({"ok": True}, "late")


class FirstScenario(Scenario):
    """The event wins in one run, the time in the other; the losing wait has a timeout that passes later."""

    name = "first of several"
    triggers = {"pick": {"picks": Trigger(())}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("pick", emits=[], retry=QUICK)
        async def picks(x: Any, ctx: Any) -> Any:
            sandbox.record(ctx)
            which, _ = await ctx.first(
                {"paid": ctx.wait.event("paid", match={"order": x}, timeout="3s"), "slow": ctx.wait.time("2s")}
            )
            did = await ctx.run("did", lambda: which)
            await ctx.wait.time("5s", name="longer")
            return [which, did]

        return [picks]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("pick", "paid", 1)
            await sandbox.start("pick", "slow", 2)
            await sandbox.retry(lambda: sandbox.app.emit("paid", {"order": 1}, key="pays"))
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        paid, slow = result_of(history, "paid"), result_of(history, "slow")
        assert paid[0] == paid[1], paid
        assert slow == ["slow", "slow"]


class FunctionsRaceScenario(Scenario):
    """A time ends while a function runs in one, an event comes in the other; after a crash another call may win, as
    long as the handler has not seen the first winner."""

    name = "functions that race"
    triggers = {"race": {"races": Trigger(())}}

    def __init__(self) -> None:
        self._seen: dict[str, set[str]] = {}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("race", emits=[], retry=QUICK)
        async def races(x: Any, ctx: Any) -> Any:
            sandbox.record(ctx)
            which, _ = await ctx.first(
                {
                    "work": ctx.run("work", asyncio.sleep, x),
                    "more": ctx.run("more", asyncio.sleep, 60),
                    "paid": ctx.wait.event("paid", match={"order": x}),
                    "late": ctx.wait.time("4s"),
                }
            )
            self._seen.setdefault(ctx.run_id, set()).add(which)
            did = await ctx.run("did", lambda: which)
            return [which, did]

        return [races]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("race", "late", 30)
            await sandbox.start("race", "paid", 2)
            await sandbox.retry(lambda: sandbox.app.emit("paid", {"order": 2}, key="pays"))
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        seen, self._seen = self._seen, {}
        for id in ("late", "paid"):
            which, did = result_of(history, id)
            assert seen[id] == {which} == {did}, f"{id}: the handler saw {seen[id]}, {which} and {did} are recorded"
        assert await sandbox.store.waits_by_time() == []


class StartOnEventScenario(Scenario):
    name = "start on an event"
    triggers = {"receipt": {"receipt": Trigger(())}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("receipt", emits=[], retry=QUICK, start_on={"kind": "paid", "when": {"big": True}})
        async def receipt(x: Any, ctx: Any) -> Any:
            sandbox.record(ctx)
            return x["n"]

        return [receipt]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            while not await sandbox.store.waits_by_time(kind="flow"):
                await asyncio.sleep(0.1)
            for n in range(3):
                event = {"n": n, "big": n != 1}
                await sandbox.retry(lambda n=n, e=event: sandbox.app.emit("paid", e, key=f"paid-{n}"))  # type: ignore[misc]
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        assert sorted(result_of(history, run.id) for run in history.runs) == [0, 2]


class CancelWaitScenario(Scenario):
    """A run is cancelled while its step waits: nothing resolves the wait afterwards."""

    name = "cancel of a wait"
    triggers = {"order": {"waits": Trigger(())}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("order", emits=[], retry=QUICK)
        async def waits(ctx: Any) -> None:
            sandbox.record(ctx)
            await ctx.wait.event("paid")

        return [waits]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("order", "order-1")
            await asyncio.sleep(1.0)
            await sandbox.retry(lambda: sandbox.app.runs.cancel("order-1"))
            await sandbox.retry(lambda: sandbox.app.emit("paid", None, key="pays"))
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        assert [run.status for run in history.runs] == ["cancelled"]
        assert await sandbox.store.waits_by_time() == []


class GatherScenario(Scenario):
    """Five tool calls of an agent at once, one of which waits for approval: each is recorded once."""

    name = "gather with an approval"
    triggers = {"agent": {"agent": Trigger(())}}
    calls = ("tool a", "tool b", "tool c", "tool d", "tool delete", "answer")

    def handlers(self, sandbox: Sandbox) -> Handlers:
        async def work(name: str) -> str:
            sandbox.counts[name] += 1
            await asyncio.sleep(0.2 * len(name))
            return name

        @flow("agent", emits=[], retry=QUICK)
        async def agent(ctx: Any) -> Any:
            sandbox.record(ctx)

            async def tool(name: str) -> str:
                return str(await ctx.run(f"tool {name}", work, name))

            async def guarded(name: str) -> str:
                await ctx.wait.event("approved", name="approval")
                return await tool(name)

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(tool(name)) for name in "abcd"]
                tasks.append(group.create_task(guarded("delete")))
            return await ctx.run("answer", lambda: " ".join(task.result() for task in tasks))

        return [agent]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("agent", "agent-1")
            await asyncio.sleep(0.1)
            await sandbox.retry(lambda: sandbox.app.emit("approved", None, key="approved-1"))
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        assert result_of(history, "agent-1") == "a b c d delete"
        run = next(run for run in history.runs if run.id == "agent-1")
        recorded = Counter(e.data["call"] for e in run.events if e.kind == "call.completed")
        assert recorded == Counter(f"{name}#1" for name in self.calls), recorded


WAIT_SCENARIOS: tuple[Scenario, ...] = (
    TimeWaitScenario(), EventWaitScenario("event before the wait", 0.2), EventWaitScenario("event during the suspend", 1.0),
    EventWaitScenario("event after the wait", 2.0), TriggerWaitScenario(), FirstScenario(), FunctionsRaceScenario(),
    StartOnEventScenario(), CancelWaitScenario(), GatherScenario(),
)  # fmt: skip
