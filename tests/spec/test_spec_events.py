"""The events of a run, of its waits and of its triggers have the fields that the specifications list."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import AwaitTimeout, Context, Event, flow, step
from penstock.core.clock import to_iso
from penstock.testing import TestApp

HOUR = 3_600_000


async def read(app: TestApp, run: str, kind: str) -> Event:
    """Return the only event of a kind in a run."""
    (found,) = [event for event in await app.events.read_all(f"nq:flow:{run}") if event.kind == kind]
    return found


async def read_trigger(app: TestApp, id: str) -> list[Event]:
    return await app.events.read_all(f"nq:trigger:{id}")


@pytest.mark.spec("003-2.3", "003-2.4", "003-2.6", "003-2.7", "003-2.19", "001-1.3", "001-4.7", "001-1.11")
async def test_the_events_of_a_completed_run(kit: Any) -> None:
    @flow("sum", queue="sums")
    async def add(numbers: list[int], ctx: Context) -> int:
        ctx.log.warning("adding")
        return sum(numbers)

    async with kit(add) as app:
        run = await app.start("sum", [1, 2])
        await app.finish(run)
        started = await read(app, run, "flow.started")
        assert (started.data["name"], started.data["queue"], started.subject, started.flow) == ("sum", "sums", run, run)
        assert started.ts == to_iso(int(started.id.partition("-")[0])) == to_iso(app.time.now_ms())
        step = await read(app, run, "step.started")
        assert (step.step, started.data["input"]) == ("add", [1, 2])
        assert (step.meta["attempt"], step.meta["jobId"], step.meta["queue"]) == (1, f"{run}.add.1", "sums")
        log = await read(app, run, "log")
        assert (log.step, log.data, log.meta) == ("add", {"level": "warn", "msg": "adding"}, {"attempt": 1})
        done = await read(app, run, "step.completed")
        assert (done.step, done.data, done.meta["attempt"]) == ("add", {"result": 3}, 1)
        assert isinstance(done.meta["duration"], int)
        assert (await read(app, run, "flow.completed")).data == {"result": 3, "duration": 0}


@pytest.mark.spec("003-2.5")
async def test_the_end_of_a_failed_run(kit: Any) -> None:
    @flow("breaks")
    async def breaks(ctx: Context) -> None:
        await ctx.wait.time("1h")
        raise ValueError("no luck")

    async with kit(breaks) as app:
        run = await app.start("breaks")
        await app.finish(run)
        failed = await read(app, run, "flow.failed")
        assert (failed.data["error"], failed.data["step"], failed.data["duration"]) == ("no luck", "breaks", HOUR)


@pytest.mark.spec("003-2.10", "003-2.11", "003-2.13", "003-2.14", "003-7.7", "001-2.12")
async def test_the_events_of_waits(kit: Any) -> None:
    @flow("waits")
    async def waits(ctx: Context) -> str:
        await ctx.wait.time("1h")
        await ctx.wait.event("paid", match={"order": 7}, timeout="1d")
        try:
            await ctx.wait.event("never", timeout="2h")
        except AwaitTimeout:
            return "too late"
        return "in time"

    async with kit(waits) as app:
        start = app.time.now_ms()
        run = await app.start("waits")
        await app.advance("2h")
        await app.emit("paid", {"order": 7})
        assert (await app.finish(run)).result == "too late"
        time = await read(app, run, "step.await.time")
        assert (time.step, time.data["resumeAt"]) == ("waits", to_iso(start + HOUR))
        events = [event for event in await app.events.read_all(f"nq:flow:{run}") if event.kind == "step.await.event"]
        assert [(event.data["eventKind"], event.data["match"], event.data["timeout"]) for event in events] == [
            ("paid", {"order": 7}, 24 * HOUR),
            ("never", {}, 2 * HOUR),
        ]
        resumed = [event for event in await app.events.read_all(f"nq:flow:{run}") if event.kind == "step.resumed"]
        assert [(event.meta["awaitType"], event.data["awaitDuration"]) for event in resumed] == [
            ("time", HOUR),
            ("event", HOUR),
        ]
        assert all(event.data["reason"] for event in resumed)
        late = await read(app, run, "step.await.timeout")
        assert (late.data["awaitType"], late.data["duration"]) == ("event", 2 * HOUR)
        kinds = [event.kind for event in await app.events.read_all(f"nq:flow:{run}")]
        assert kinds[kinds.index("step.await.timeout") :][-2:] == ["step.completed", "flow.completed"]


@pytest.mark.spec("003-2.17", "003-2.18", "003-7.5")
@pytest.mark.parametrize("type", ["webhook", "user", "api"])
async def test_the_ends_of_a_trigger(kit: Any, type: Any) -> None:
    @flow("ask")
    async def ask(ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval", type=type, timeout="1h")
        return await trigger.wait()

    async with kit(ask) as app:
        late, cancelled, fired = [await app.start("ask") for _ in range(3)]
        ids = {run: (await app.pending_waits(run))[0].id for run in (late, cancelled, fired)}
        assert (await read(app, late, "step.await.trigger")).data["triggerType"] == type
        await app.runs.cancel(cancelled)
        await app.fire("approval", {"ok": True}, run=fired)
        assert (await app.finish(fired)).result == {"ok": True}
        assert (await app.finish(late)).status == "failed"
        ends = {run: (await read_trigger(app, id))[-1] for run, id in ids.items()}
        assert {run: event.kind for run, event in ends.items()} == {
            late: "trigger.timeout",
            cancelled: "trigger.cancelled",
            fired: "trigger.fired",
        }
        assert ends[late].data["duration"] == HOUR
        assert ends[cancelled].data["reason"]
        assert {event.trigger for event in ends.values()} == set(ids.values())


@pytest.mark.spec("001-4.8")
async def test_the_fields_of_a_snapshot(kit: Any) -> None:
    """A trigger's token is secret: in its place, a snapshot has the id of the trigger."""

    @flow("ask", emits=["asked"])
    async def ask(ctx: Context) -> None:
        ctx.log.warning("asking")
        ctx.emit("asked")

    @step(on="asked")
    async def approve(ctx: Context) -> None:
        await (await ctx.wait.trigger("approval", timeout="1h")).wait()

    async with kit(ask, approve) as app:
        run = await app.start("ask")
        await app.settle()
        (wait,) = await app.waits.list(run=run)
        view = await app.runs.get(run)
        start = to_iso(app.time.now_ms())
        assert (view.status, view.started_at, view.completed_at) == ("waiting", start, None)
        assert (view.last_event_at, view.logs_count, view.last_log_level) == (start, 1, "warn")
        assert {name: one.status for name, one in view.steps.items()} == {"ask": "completed", "approve": "waiting"}
        assert (view.waiting_for, view.wait_step, view.wait_trigger) == ("trigger", "approve", wait.id)
        assert view.wait_until == to_iso(app.time.now_ms() + HOUR)
        await app.waits.resolve(wait.id)
        await app.finish(run)
        view = await app.runs.get(run)
        assert (view.status, view.completed_at) == ("completed", view.last_event_at)
        assert (view.waiting_for, view.wait_step, view.wait_until, view.wait_trigger) == (None, None, None, None)
