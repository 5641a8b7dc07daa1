"""The core scenarios of the crash-point sweep: small, complete, and safe to tell again from the start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from penstock import Permanent, Retry, flow, job, step
from penstock.core.errors import RunError, UnknownJob
from penstock.testing.history import History, Trigger

from .stage import Scenario, Stage
from .tree_scenarios import TREES
from .wait_scenarios import WAITING

QUICK = {"attempts": 6, "backoff": {"type": "fixed", "delayMs": 100, "jitter": False}}
Handlers = list[Callable[..., Any]]


def _run(history: History, id: str) -> Any:
    return next(run for run in history.runs if run.id == id)


def _kinds(history: History, id: str) -> list[str]:
    return [event.kind for event in _run(history, id).events]


class Linear(Scenario):
    name = "linear flow"
    triggers = {"line": {"one": Trigger(()), "two": Trigger(("line.a",)), "three": Trigger(("line.b",))}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("line", emits="line.a", retry=QUICK)
        async def one(x: Any, ctx: Any) -> None:
            stage.note(ctx)
            ctx.emit("line.a", x)

        @step(on="line.a", emits="line.b", retry=QUICK, queue="other")
        async def two(x: Any, ctx: Any) -> None:
            stage.note(ctx)
            ctx.emit("line.b", x)

        @step(on="line.b", emits=[], retry=QUICK)
        async def three(x: Any, ctx: Any) -> Any:
            stage.note(ctx)
            return x

        return [one, two, three]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("line", "line-1", {"order": 7})
            await stage.settle()
            assert await stage.insist(lambda: stage.app.result("line-1")) == {"order": 7}


class FanOut(Scenario):
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

    def handlers(self, stage: Stage) -> Handlers:
        @flow("fan", emits=["fan.part", "fan.go"], retry=QUICK)
        async def split(ctx: Any) -> None:
            stage.note(ctx)
            for n in range(3):
                ctx.emit("fan.part", n)
            ctx.emit("fan.go", None)

        @step(on="fan.part", mode="each", emits=[], retry=QUICK)
        async def part(x: Any, ctx: Any) -> Any:
            stage.note(ctx)
            return x

        @step(on="fan.go", emits="fan.l", retry=QUICK)
        async def left(ctx: Any) -> None:
            stage.note(ctx)
            ctx.emit("fan.l", "l")

        @step(on="fan.go", emits="fan.r", retry=QUICK)
        async def right(ctx: Any) -> None:
            stage.note(ctx)
            await asyncio.sleep(0.2)
            ctx.emit("fan.r", "r")

        @step(on=["fan.l", "fan.r"], mode="all", emits=[], retry=QUICK)
        async def join(x: Any, ctx: Any) -> Any:
            stage.note(ctx)
            return x

        return [split, part, left, right, join]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("fan", "fan-1")
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        end = _run(history, "fan-1").events[-1]
        assert end.data["result"] == {"part": [0, 1, 2], "join": {"fan.l": "l", "fan.r": "r"}}, end.data


class Retrying(Scenario):
    name = "retry"
    triggers = {"flaky": {"shaky": Trigger(()), "steady": Trigger(("flaky.ok",))}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("flaky", emits="flaky.ok", retry=QUICK)
        async def shaky(ctx: Any) -> None:
            stage.note(ctx)
            if ctx.attempt < 3:
                raise Retry("not yet")
            ctx.emit("flaky.ok", ctx.attempt)

        @step(on="flaky.ok", emits=[], retry=QUICK)
        async def steady(ctx: Any) -> str:
            stage.note(ctx)
            return "ok"

        return [shaky, steady]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("flaky", "flaky-1")
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        assert _kinds(history, "flaky-1")[-1] == "flow.completed"


class DeadLetter(Scenario):
    name = "dead letter and redrive"
    triggers = {"doomed": {"first": Trigger(()), "dies": Trigger(("doomed.go",))}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("doomed", emits="doomed.go", retry=QUICK)
        async def first(ctx: Any) -> None:
            stage.note(ctx)
            ctx.emit("doomed.go", None)

        @step(on="doomed.go", emits=[], retry=2)
        async def dies(ctx: Any) -> str:
            stage.note(ctx)
            if "redrive" not in ctx.job_id:
                raise Permanent("dead")
            return "alive"

        return [first, dies]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("doomed", "doomed-1")
            await stage.settle()
            await stage.insist(lambda: self._redrive(stage))
            await stage.settle()

    async def _redrive(self, stage: Stage) -> None:
        try:
            await stage.app.dead_letters.redrive("doomed-1.dies.1")
        except UnknownJob:
            return  # an earlier try took it

    async def judge(self, stage: Stage, history: History) -> None:
        kinds = _kinds(history, "doomed-1")
        assert (kinds[-1], kinds.count("flow.failed"), kinds.count("flow.reopened")) == ("flow.completed", 1, 1), kinds
        assert await stage.store.job("doomed-1.dies.1.dlq") is None, "the letter is still there"


class Cancelling(Scenario):
    name = "cancel"
    triggers = {"long": {"slow": Trigger(()), "never": Trigger(("long.go",))}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("long", emits="long.go", retry={"attempts": 5, "backoff": {"type": "fixed", "delayMs": 60_000}})
        async def slow(x: Any, ctx: Any) -> None:
            stage.note(ctx)
            if x == "waits":
                raise Retry("in a minute")
            for n in range(100):
                ctx.log(f"{n}")
                await asyncio.sleep(0.1)
            ctx.emit("long.go", None)

        @step(on="long.go", emits=[])
        async def never(ctx: Any) -> None:
            stage.note(ctx)

        return [slow, never]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("long", "runs", "runs")
            await stage.start("long", "waits", "waits")
            await asyncio.sleep(1.0)
            await stage.insist(lambda: stage.app.runs.cancel("waits"))
            job = await stage.store.job("waits.slow.1")
            assert job is not None
            assert job.state.value in ("cancelled", "active"), f"cancelled, but its job is {job.state}"
            await stage.insist(lambda: stage.app.runs.cancel("runs"))
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        assert {run.status for run in history.runs} == {"cancelled"}


class Compensation(Scenario):
    name = "compensation"
    triggers = {"saga": {"reserve": Trigger(()), "charge": Trigger(("saga.reserved",))}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("saga", emits="saga.reserved", compensation="release", retry=QUICK)
        async def reserve(ctx: Any) -> str:
            stage.note(ctx)
            ctx.emit("saga.reserved", None)
            return "seat 7"

        @step(on="saga.reserved", emits=[], dead_letters=False)
        async def charge(ctx: Any) -> None:
            stage.note(ctx)
            raise Permanent("no money")

        @step(flow="saga", emits=[], retry=QUICK)
        async def release(x: Any, ctx: Any) -> None:
            stage.note(ctx)

        return [reserve, charge, release]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("saga", "saga-1")
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        kinds = _kinds(history, "saga-1")
        assert (kinds[-1], kinds.count("step.completed")) == ("flow.compensated", 2), kinds


class PlainJob(Scenario):
    name = "plain job with progress"

    def handlers(self, stage: Stage) -> Handlers:
        @job(queue="mail", retry=QUICK)
        async def mail(ctx: Any) -> str:
            stage.note(ctx)
            for n in range(5):
                ctx.progress({"attempt": ctx.attempt, "n": n})
                ctx.log(f"{n}")
                await asyncio.sleep(1.0)  # longer than the lease in all: it is renewed
            return "sent"

        return [mail]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.insist(lambda: stage.app.enqueue("mail", {"to": 7}, key="letter"))
            stage.acknowledged.add("letter")
            await stage.settle()
            assert await stage.insist(lambda: stage.app.jobs.result("letter")) == "sent"

    async def judge(self, stage: Stage, history: History) -> None:
        events = history.queues["nq:queue:mail"]
        said = [(e.data["progress"]["attempt"], e.data["progress"]["n"]) for e in events if e.kind == "job.progress"]
        assert len(said) == len(set(said)), f"progress was recorded twice: {said}"
        last = max(effect.attempt for effect in stage.effects)
        assert [n for attempt, n in said if attempt == last] == [0, 1, 2, 3, 4]


class Scheduled(Scenario):
    name = "schedule firing"
    triggers = {"report": {"report": Trigger(())}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("report", emits=[], retry=QUICK)
        async def report(ctx: Any) -> None:
            stage.note(ctx)

        @job(queue="tick", retry=QUICK)
        async def tick(ctx: Any) -> None:
            stage.note(ctx)

        return [report, tick]

    async def drive(self, stage: Stage) -> None:
        soon = stage.notes.setdefault("soon", stage.clock.now_ms() // 1000 + 2)
        async with stage.app.workers.background():
            known = {row.id for row in await stage.insist(stage.app.schedules)}
            if "ticks" not in known:
                await stage.insist(lambda: stage.app.schedules.add("ticks", queue="tick", every="1s"))
            if "reports" not in known:
                await stage.insist(lambda: stage.app.schedules.add("reports", flow="report", every="2s"))
            if "once" not in known:
                at = datetime.fromtimestamp(soon, UTC)
                await stage.insist(lambda: stage.app.schedules.add("once", queue="tick", at=at))
            await asyncio.sleep(4.5)
            rows = {row.id: row for row in await stage.store.schedules()}
            for id in rows:
                await stage.insist(lambda id=id: stage.app.schedules.remove(id))  # type: ignore[misc]
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        fired = [e.subject for e in history.queues.get("nq:queue:tick", ()) if e.kind == "job.added"]
        assert len(fired) == len(set(fired))
        assert sum(id.startswith("ticks.") for id in fired) >= 2, fired
        assert sum(id.startswith("once.") for id in fired) <= 1, fired
        assert history.runs, "no report was made"


class StartedTwice(Scenario):
    name = "idempotent start"
    triggers = {"single": {"only": Trigger(())}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("single", emits=[], retry=QUICK, version="1")
        async def only(x: Any, ctx: Any) -> Any:
            stage.note(ctx)
            return x

        return [only]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await asyncio.gather(*(stage.start("single", "same", {"n": 1}) for _ in range(3)))
            await stage.start("single", "same", {"n": 1})
            await stage.settle()
            await stage.start("single", "same", {"n": 1})
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        assert len(history.runs) == 1
        assert _kinds(history, "same").count("flow.completed") == 1


class StatePatch(Scenario):
    name = "state patch"
    triggers = {"count": {"counts": Trigger(()), "again": Trigger(("count.go",), "each")}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("count", emits="count.go", retry=QUICK)
        async def counts(ctx: Any) -> None:
            stage.note(ctx)
            await self._patch(ctx)
            for n in range(3):
                ctx.emit("count.go", n)

        @step(on="count.go", mode="each", emits=[], retry=QUICK)
        async def again(ctx: Any) -> None:
            stage.note(ctx)
            await self._patch(ctx)
            ctx.state.set(f"n{ctx.n}", ctx.attempt)
            if ctx.attempt == 1:
                raise Retry("once more: the patch must not be applied again")

        return [counts, again]

    async def _patch(self, ctx: Any) -> None:
        await ctx.shared.patch("total", lambda n: (n or 0) + 1)

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("count", "count-1")
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        row = await stage.store.state("shared/total")
        assert row is not None
        assert row.value == b"4", f"four steps patched once each, the total is {row.value!r}"
        assert _kinds(history, "count-1")[-1] == "flow.completed"


class ExternalEmit(Scenario):
    name = "external emit"
    triggers = {"door": {"opens": Trigger(()), "greets": Trigger(("guest.came",), "each")}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("door", emits=[], accepts="guest.came", retry=QUICK)
        async def opens(ctx: Any) -> None:
            stage.note(ctx)
            await asyncio.sleep(3)

        @step(on="guest.came", mode="each", flow="door", emits=[], retry=QUICK)
        async def greets(x: Any, ctx: Any) -> Any:
            stage.note(ctx)
            return x

        return [opens, greets]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            await stage.start("door", "door-1")
            for n in range(2):
                await stage.insist(lambda n=n: self._emit(stage, n))  # type: ignore[misc]
            await stage.insist(lambda: stage.app.emit("world.turned", {"n": 1}, key="turn"))
            await stage.settle()

    async def _emit(self, stage: Stage, n: int) -> None:
        try:
            await stage.app.emit("guest.came", {"n": n}, run="door-1", key=f"guest-{n}")
        except RunError:
            stage.notes["door closed"] += 1

    async def judge(self, stage: Stage, history: History) -> None:
        came = [event.data["n"] for event in _run(history, "door-1").events if event.kind == "guest.came"]
        assert len(came) == len(set(came)), came
        assert stage.notes["door closed"] or came == [0, 1], came
        turned = [e for e in await stage.store.read("nq:global") if e.kind == "world.turned"]
        assert len(turned) == 1


class GracefulStop(Scenario):
    name = "graceful stop"
    triggers = {"slow": {"works": Trigger(()), "ends": Trigger(("slow.done",))}}

    def handlers(self, stage: Stage) -> Handlers:
        @flow("slow", emits="slow.done", retry=QUICK)
        async def works(x: Any, ctx: Any) -> None:
            stage.note(ctx)
            ctx.log("begun")
            await asyncio.sleep(x)
            ctx.emit("slow.done", None)

        @step(on="slow.done", emits=[], retry=QUICK)
        async def ends(ctx: Any) -> None:
            stage.note(ctx)

        return [works, ends]

    async def drive(self, stage: Stage) -> None:
        async with stage.app.workers.background():
            for n, seconds in enumerate((0.0, 0.8, 5.0)):  # ends before the stop, within the grace, after it
                await stage.start("slow", f"slow-{n}", seconds)
            await asyncio.sleep(0.5)
        async with stage.app.workers.background():
            await stage.settle()

    async def judge(self, stage: Stage, history: History) -> None:
        assert [run.status for run in history.runs] == ["completed"] * 3


SCENARIOS: tuple[Scenario, ...] = (
    Linear(), FanOut(), Retrying(), DeadLetter(), Cancelling(), Compensation(), PlainJob(), Scheduled(), StartedTwice(),
    StatePatch(), ExternalEmit(), GracefulStop(), *WAITING, *TREES,
)  # fmt: skip
