"""The core scenarios of the crash-point sweep: small, complete, and safe to run again from the start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from penstock import Permanent, Retry, flow, job, step
from penstock.core.errors import RunError, UnknownJob
from penstock.testing.history import History, Trigger

from .child_scenarios import CHILD_SCENARIOS
from .scenario import Sandbox, Scenario
from .tree_scenarios import TREE_SCENARIOS
from .wait_scenarios import WAIT_SCENARIOS

QUICK = {"attempts": 6, "backoff": {"type": "fixed", "delayMs": 100, "jitter": False}}
Handlers = list[Callable[..., Any]]


def _run(history: History, id: str) -> Any:
    return next(run for run in history.runs if run.id == id)


def _kinds(history: History, id: str) -> list[str]:
    return [event.kind for event in _run(history, id).events]


class LinearFlowScenario(Scenario):
    name = "linear flow"
    triggers = {"line": {"one": Trigger(()), "two": Trigger(("line.a",)), "three": Trigger(("line.b",))}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("line", emits="line.a", retry=QUICK)
        async def one(x: Any, ctx: Any) -> None:
            sandbox.record(ctx)
            ctx.emit("line.a", x)

        @step(on="line.a", emits="line.b", retry=QUICK, queue="other")
        async def two(x: Any, ctx: Any) -> None:
            sandbox.record(ctx)
            ctx.emit("line.b", x)

        @step(on="line.b", emits=[], retry=QUICK)
        async def three(x: Any, ctx: Any) -> Any:
            sandbox.record(ctx)
            return x

        return [one, two, three]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("line", "line-1", {"order": 7})
            await sandbox.settle()
            assert await sandbox.retry(lambda: sandbox.app.result("line-1")) == {"order": 7}


class FanOutScenario(Scenario):
    name = "fan-out and join"
    triggers = {
        "fan": {
            "split": Trigger(()),
            "part": Trigger(("fan.part",), "each"),
            "left": Trigger(("fan.go",)),
            "right": Trigger(("fan.go",)),
            "join": Trigger(("fan.l", "fan.r"), "all"),
        }
    }

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("fan", emits=["fan.part", "fan.go"], retry=QUICK)
        async def split(ctx: Any) -> None:
            sandbox.record(ctx)
            for n in range(3):
                ctx.emit("fan.part", n)
            ctx.emit("fan.go", None)

        @step(on="fan.part", mode="each", emits=[], retry=QUICK)
        async def part(x: Any, ctx: Any) -> Any:
            sandbox.record(ctx)
            return x

        @step(on="fan.go", emits="fan.l", retry=QUICK)
        async def left(ctx: Any) -> None:
            sandbox.record(ctx)
            ctx.emit("fan.l", "l")

        @step(on="fan.go", emits="fan.r", retry=QUICK)
        async def right(ctx: Any) -> None:
            sandbox.record(ctx)
            await asyncio.sleep(0.2)
            ctx.emit("fan.r", "r")

        @step(on=["fan.l", "fan.r"], mode="all", emits=[], retry=QUICK)
        async def join(x: Any, ctx: Any) -> Any:
            sandbox.record(ctx)
            return x

        return [split, part, left, right, join]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("fan", "fan-1")
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        end = _run(history, "fan-1").events[-1]
        assert end.data["result"] == {"part": [0, 1, 2], "join": {"fan.l": "l", "fan.r": "r"}}, end.data


class RetryScenario(Scenario):
    name = "retry"
    triggers = {"flaky": {"shaky": Trigger(()), "steady": Trigger(("flaky.ok",))}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("flaky", emits="flaky.ok", retry=QUICK)
        async def shaky(ctx: Any) -> None:
            sandbox.record(ctx)
            if ctx.attempt < 3:
                raise Retry("not yet")
            ctx.emit("flaky.ok", ctx.attempt)

        @step(on="flaky.ok", emits=[], retry=QUICK)
        async def steady(ctx: Any) -> str:
            sandbox.record(ctx)
            return "ok"

        return [shaky, steady]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("flaky", "flaky-1")
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        assert _kinds(history, "flaky-1")[-1] == "flow.completed"


class DeadLetterScenario(Scenario):
    name = "dead letter and redrive"
    triggers = {"doomed": {"first": Trigger(()), "dies": Trigger(("doomed.go",))}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("doomed", emits="doomed.go", retry=QUICK)
        async def first(ctx: Any) -> None:
            sandbox.record(ctx)
            ctx.emit("doomed.go", None)

        @step(on="doomed.go", emits=[], retry=2)
        async def dies(ctx: Any) -> str:
            sandbox.record(ctx)
            if "redrive" not in ctx.job_id:
                raise Permanent("dead")
            return "alive"

        return [first, dies]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("doomed", "doomed-1")
            await sandbox.settle()
            await sandbox.retry(lambda: self._redrive(sandbox))
            await sandbox.settle()

    async def _redrive(self, sandbox: Sandbox) -> None:
        try:
            await sandbox.app.dead_letters.redrive("doomed-1.dies.1")
        except UnknownJob:
            return  # an earlier call redrove it

    async def check(self, sandbox: Sandbox, history: History) -> None:
        kinds = _kinds(history, "doomed-1")
        assert (kinds[-1], kinds.count("flow.failed"), kinds.count("flow.reopened")) == ("flow.completed", 1, 1), kinds
        assert await sandbox.store.job("doomed-1.dies.1.dlq") is None, "the dead letter still exists"


class CancelScenario(Scenario):
    name = "cancel"
    triggers = {"long": {"slow": Trigger(()), "never": Trigger(("long.go",))}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("long", emits="long.go", retry={"attempts": 5, "backoff": {"type": "fixed", "delayMs": 60_000}})
        async def slow(x: Any, ctx: Any) -> None:
            sandbox.record(ctx)
            if x == "waits":
                raise Retry("in a minute")
            for n in range(100):
                ctx.log(f"{n}")
                await asyncio.sleep(0.1)
            ctx.emit("long.go", None)

        @step(on="long.go", emits=[])
        async def never(ctx: Any) -> None:
            sandbox.record(ctx)

        return [slow, never]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("long", "runs", "runs")
            await sandbox.start("long", "waits", "waits")
            await asyncio.sleep(1.0)
            await sandbox.retry(lambda: sandbox.app.runs.cancel("waits"))
            job = await sandbox.store.job("waits.slow.1")
            assert job is not None
            assert job.state.value in ("cancelled", "active"), f"cancelled, but its job is {job.state}"
            await sandbox.retry(lambda: sandbox.app.runs.cancel("runs"))
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        assert {run.status for run in history.runs} == {"cancelled"}


class CompensationScenario(Scenario):
    name = "compensation"
    triggers = {"saga": {"reserve": Trigger(()), "charge": Trigger(("saga.reserved",))}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("saga", emits="saga.reserved", compensation="release", retry=QUICK)
        async def reserve(ctx: Any) -> str:
            sandbox.record(ctx)
            ctx.emit("saga.reserved", None)
            return "seat 7"

        @step(on="saga.reserved", emits=[], dead_letters=False)
        async def charge(ctx: Any) -> None:
            sandbox.record(ctx)
            raise Permanent("no money")

        @step(flow="saga", emits=[], retry=QUICK)
        async def release(x: Any, ctx: Any) -> None:
            sandbox.record(ctx)

        return [reserve, charge, release]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("saga", "saga-1")
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        kinds = _kinds(history, "saga-1")
        assert (kinds[-1], kinds.count("step.completed")) == ("flow.compensated", 2), kinds


class PlainJobScenario(Scenario):
    name = "plain job with progress"

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @job(queue="mail", retry=QUICK)
        async def mail(ctx: Any) -> str:
            sandbox.record(ctx)
            for n in range(5):
                ctx.progress({"attempt": ctx.attempt, "n": n})
                ctx.log(f"{n}")
                await asyncio.sleep(1.0)  # longer than the lease in total, so it is renewed
            return "sent"

        return [mail]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.retry(lambda: sandbox.app.enqueue("mail", {"to": 7}, key="letter"))
            sandbox.acknowledged.add("letter")
            await sandbox.settle()
            assert await sandbox.retry(lambda: sandbox.app.jobs.result("letter")) == "sent"

    async def check(self, sandbox: Sandbox, history: History) -> None:
        events = history.queues["nq:queue:mail"]
        progress = [e.data["progress"] for e in events if e.kind == "job.progress"]
        recorded = [(one["attempt"], one["n"]) for one in progress]
        assert len(recorded) == len(set(recorded)), f"progress was recorded twice: {recorded}"
        last = max(effect.attempt for effect in sandbox.effects)
        assert [n for attempt, n in recorded if attempt == last] == [0, 1, 2, 3, 4]


class ScheduleScenario(Scenario):
    name = "schedule firing"
    triggers = {"report": {"report": Trigger(())}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("report", emits=[], retry=QUICK)
        async def report(ctx: Any) -> None:
            sandbox.record(ctx)

        @job(queue="tick", retry=QUICK)
        async def tick(ctx: Any) -> None:
            sandbox.record(ctx)

        return [report, tick]

    async def drive(self, sandbox: Sandbox) -> None:
        soon = sandbox.counts.setdefault("soon", sandbox.clock.now_ms() // 1000 + 2)
        async with sandbox.app.workers.background():
            known = {row.id for row in await sandbox.retry(sandbox.app.schedules.list)}
            if "ticks" not in known:
                await sandbox.retry(lambda: sandbox.app.schedules.add("ticks", queue="tick", every="1s"))
            if "reports" not in known:
                await sandbox.retry(lambda: sandbox.app.schedules.add("reports", flow="report", every="2s"))
            if "once" not in known:
                at = datetime.fromtimestamp(soon, UTC)
                await sandbox.retry(lambda: sandbox.app.schedules.add("once", queue="tick", at=at))
            await asyncio.sleep(4.5)
            rows = {row.id: row for row in await sandbox.store.schedules()}
            for id in rows:
                await sandbox.retry(lambda id=id: sandbox.app.schedules.remove(id))  # type: ignore[misc]
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        fired = [e.subject for e in history.queues.get("nq:queue:tick", ()) if e.kind == "job.added"]
        assert len(fired) == len(set(fired))
        assert sum(id.startswith("ticks.") for id in fired) >= 2, fired
        assert sum(id.startswith("once.") for id in fired) <= 1, fired
        assert history.runs, "the flow was never started"


class IdempotentStartScenario(Scenario):
    name = "idempotent start"
    triggers = {"single": {"only": Trigger(())}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("single", emits=[], retry=QUICK, version="1")
        async def only(x: Any, ctx: Any) -> Any:
            sandbox.record(ctx)
            return x

        return [only]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await asyncio.gather(*(sandbox.start("single", "same", {"n": 1}) for _ in range(3)))
            await sandbox.start("single", "same", {"n": 1})
            await sandbox.settle()
            await sandbox.start("single", "same", {"n": 1})
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        assert len(history.runs) == 1
        assert _kinds(history, "same").count("flow.completed") == 1


class StatePatchScenario(Scenario):
    name = "state patch"
    triggers = {"count": {"counts": Trigger(()), "again": Trigger(("count.go",), "each")}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("count", emits="count.go", retry=QUICK)
        async def counts(ctx: Any) -> None:
            sandbox.record(ctx)
            await self._patch(ctx)
            for n in range(3):
                ctx.emit("count.go", n)

        @step(on="count.go", mode="each", emits=[], retry=QUICK)
        async def again(ctx: Any) -> None:
            sandbox.record(ctx)
            await self._patch(ctx)
            ctx.state.set(f"n{ctx.n}", ctx.attempt)
            if ctx.attempt == 1:
                raise Retry("the patch must not be applied again")

        return [counts, again]

    async def _patch(self, ctx: Any) -> None:
        await ctx.shared.patch("total", lambda n: (n or 0) + 1)

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("count", "count-1")
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        row = await sandbox.store.state("shared/total")
        assert row is not None
        assert row.value == b"4", f"four steps patched once each, the total is {row.value!r}"
        assert _kinds(history, "count-1")[-1] == "flow.completed"


class ExternalEmitScenario(Scenario):
    name = "external emit"
    triggers = {"door": {"opens": Trigger(()), "greets": Trigger(("guest.came",), "each")}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("door", emits=[], accepts="guest.came", retry=QUICK)
        async def opens(ctx: Any) -> None:
            sandbox.record(ctx)
            await asyncio.sleep(3)

        @step(on="guest.came", mode="each", flow="door", emits=[], retry=QUICK)
        async def greets(x: Any, ctx: Any) -> Any:
            sandbox.record(ctx)
            return x

        return [opens, greets]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            await sandbox.start("door", "door-1")
            for n in range(2):
                await sandbox.retry(lambda n=n: self._emit(sandbox, n))  # type: ignore[misc]
            await sandbox.retry(lambda: sandbox.app.emit("world.turned", {"n": 1}, key="turn"))
            await sandbox.settle()

    async def _emit(self, sandbox: Sandbox, n: int) -> None:
        try:
            await sandbox.app.emit("guest.came", {"n": n}, run="door-1", key=f"guest-{n}")
        except RunError:
            sandbox.counts["door closed"] += 1

    async def check(self, sandbox: Sandbox, history: History) -> None:
        came = [event.data["n"] for event in _run(history, "door-1").events if event.kind == "guest.came"]
        assert len(came) == len(set(came)), came
        assert sandbox.counts["door closed"] or came == [0, 1], came
        turned = [e for e in await sandbox.store.read("nq:global") if e.kind == "world.turned"]
        assert len(turned) == 1


class GracefulStopScenario(Scenario):
    name = "graceful stop"
    triggers = {"slow": {"works": Trigger(()), "ends": Trigger(("slow.done",))}}

    def handlers(self, sandbox: Sandbox) -> Handlers:
        @flow("slow", emits="slow.done", retry=QUICK)
        async def works(x: Any, ctx: Any) -> None:
            sandbox.record(ctx)
            ctx.log("started")
            await asyncio.sleep(x)
            ctx.emit("slow.done", None)

        @step(on="slow.done", emits=[], retry=QUICK)
        async def ends(ctx: Any) -> None:
            sandbox.record(ctx)

        return [works, ends]

    async def drive(self, sandbox: Sandbox) -> None:
        async with sandbox.app.workers.background():
            for n, seconds in enumerate((0.0, 0.8, 5.0)):  # ends before the stop, within the grace, after it
                await sandbox.start("slow", f"slow-{n}", seconds)
            await asyncio.sleep(0.5)
        async with sandbox.app.workers.background():
            await sandbox.settle()

    async def check(self, sandbox: Sandbox, history: History) -> None:
        assert [run.status for run in history.runs] == ["completed"] * 3


SCENARIOS: tuple[Scenario, ...] = (
    LinearFlowScenario(), FanOutScenario(), RetryScenario(), DeadLetterScenario(), CancelScenario(), CompensationScenario(), PlainJobScenario(), ScheduleScenario(), IdempotentStartScenario(),
    StatePatchScenario(), ExternalEmitScenario(), GracefulStopScenario(), *WAIT_SCENARIOS, *TREE_SCENARIOS, *CHILD_SCENARIOS,
)  # fmt: skip
