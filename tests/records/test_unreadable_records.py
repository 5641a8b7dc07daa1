"""Waits, memos, state, schedules and events that cannot be read, on every store that several programs can write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from damage import JSON_JUNK, JUNK, Damage
from penstock import Context, flow, job
from penstock.core.errors import UnreadableRecord
from penstock.testing.until import until

TEST_TIMEOUT_S = 20
PAST = datetime(2020, 1, 1, tzinfo=UTC)


@flow("order")
async def order(input: Any) -> Any:
    return input


@flow("patient")
async def patient(input: Any, ctx: Context) -> Any:
    first = await ctx.run("first", lambda: 1)
    event = await ctx.wait.event("go", match={"n": input})
    return first, event.data["n"]


@flow("asks")
async def asks(input: Any, ctx: Context) -> Any:
    return await (await ctx.wait.trigger("approve")).wait()


@job(queue="ticks")
async def tick(input: Any) -> Any:
    return input


@pytest.fixture
def app(shared_url: str, app_factory: Any) -> Callable[[], Any]:
    return lambda: app_factory(shared_url)(order, patient, asks, tick)


@pytest.fixture
def damage(shared_url: str) -> Damage:
    return Damage(shared_url)


async def _start_waiting(one: Any, *inputs: int) -> list[str]:
    runs = [await one.start("patient", n) for n in inputs]
    for run in runs:
        await one.wait_for_step(run, "patient", "suspended")
    return runs


@pytest.mark.parametrize("junk", JUNK)
async def test_an_event_reaches_the_other_waits(app: Callable[[], Any], damage: Damage, junk: str) -> None:
    async with app() as one, one.workers.background():
        runs = await _start_waiting(one, 1, 1, 1)
        (wait,) = await one.waits.list(run=runs[1])
        damage.wait(wait.id, JUNK[junk])
        listed = {one.run: one for one in await one.waits.list()}
        assert [listed[run].unreadable is None for run in runs] == [True, False, True]
        await one.emit("go", {"n": 1})
        # The step of the damaged wait registers it again, and looks back for the event.
        for run in runs:
            assert await one.result(run, timeout=TEST_TIMEOUT_S) == [1, 1]
        assert await one.list_dead_letters("penstock-events") == []


async def test_a_damaged_trigger_is_refused_by_name(app: Callable[[], Any], damage: Damage) -> None:
    async with app() as one, one.workers.background():
        run = await one.start("asks", 1)
        await one.wait_for_step(run, "asks", "suspended")
        (wait,) = await one.waits.list(run=run)
        token = await one.waits.token(wait.id)
        damage.wait(wait.id, b"junk")
        for call in (lambda: one.waits.fire(token, 1), lambda: one.waits.token(wait.id)):
            with pytest.raises(UnreadableRecord, match=f"wait {wait.id!r} of run {run!r} cannot be read"):
                await call()
        assert any("cannot be read" in reason for reason in await one.runs.why(run))
        assert await one.runs.cancel(run)


@pytest.mark.parametrize("junk", JUNK)
async def test_a_damaged_memo_fails_its_step_once(app: Callable[[], Any], damage: Damage, junk: str) -> None:
    async with app() as one, one.workers.background():
        runs = await _start_waiting(one, 1, 2)
        damage.memo(f"{runs[0]}.patient.1", "first#1", JUNK[junk])
        await one.emit("go", {"n": 1})
        await one.emit("go", {"n": 2})
        assert await one.result(runs[1], timeout=TEST_TIMEOUT_S) == [1, 2]
        assert await one.wait_for_end(runs[0]) == "failed"
        (letter,) = await one.list_dead_letters()
        assert letter.error["code"] == "unreadable_record"
        assert "cannot read the recorded result of 'first#1'" in letter.error["message"]
        assert len(await one.events_of(runs[0], "step.failed")) == 1


@pytest.mark.parametrize("junk", ["no JSON", "no text", "nothing"])
async def test_damaged_state(app: Callable[[], Any], damage: Damage, junk: str) -> None:
    async with app() as one:
        for key in "abc":
            await one.state.set(key, key)
        damage.state("shared/b", JUNK[junk])
        with pytest.raises(UnreadableRecord, match=r"state key 'b' cannot be read.*set the key again, or delete it"):
            await one.state.get("b")
        with pytest.raises(UnreadableRecord):
            await one.state.patch("b", lambda value: value)
        page = await one.state.list()
        assert dict(page) == {"a": "a", "c": "c"}
        assert list(page.unreadable) == ["b"]
        await one.state.set("b", 1)
        assert await one.state.get("b") == 1
        damage.state("shared/b", JUNK[junk])
        await one.state.delete("b")
        assert await one.state.get("b") is None


@pytest.mark.parametrize("part", ["spec", "target"])
@pytest.mark.parametrize("junk", [*JUNK, "negative"])
async def test_a_damaged_schedule_is_paused_and_the_others_fire(
    app: Callable[[], Any], damage: Damage, part: str, junk: str
) -> None:
    if part == "target" and junk == "negative":
        pytest.skip("a target has no interval")
    async with app() as one:
        for id in "abc":
            await one.schedules.add(id, queue="ticks", at=PAST, input=id)
        data = JUNK.get(junk, b'{"everyMs":-1000}')
        damage.schedule("b", part, data)
        listed = {row.id: row for row in await one.schedules.list()}
        assert [listed[id].unreadable is None for id in "abc"] == [True, False, True]
        async with one.workers.background():
            await until(lambda: _fired(one, "a", "c"), TEST_TIMEOUT_S)
            await until(lambda: _is_paused(one, "b"), TEST_TIMEOUT_S)
        with pytest.raises(UnreadableRecord, match=r"schedule 'b' cannot be read.*penstock schedules remove b"):
            await one.schedules.resume("b")
        await one.schedules.add("b", queue="ticks", every="1h", input="b")
        assert (await one.schedules.resume("b")).next_at is not None
        damage.schedule("b", part, data)
        assert await one.schedules.remove("b")


async def _fired(one: Any, *ids: str) -> bool:
    done = {job.input for job in await one.jobs.list("ticks", "completed")}
    return done >= set(ids)


async def _is_paused(one: Any, id: str) -> bool:
    return next(row.paused for row in await one.schedules.list() if row.id == id)


@pytest.mark.parametrize("seq", [1, 2, 3, 4])
@pytest.mark.parametrize("junk", JSON_JUNK)
async def test_readers_of_a_stream_pass_a_damaged_event(
    app: Callable[[], Any], damage: Damage, seq: int, junk: str
) -> None:
    async with app() as one, one.workers.background():
        run = await one.start("order", 1)
        assert await one.wait_for_end(run) == "completed"
        damage.event(f"nq:flow:{run}", seq, JSON_JUNK[junk])
        events = await one.stream(run)
        assert [event.seq for event in events] == [1, 2, 3, 4]
        damaged = events[seq - 1]
        assert damaged.is_unreadable
        assert set(damaged.data) == {"error", "raw"}
        view = await one.runs.get(run)
        assert (view.id, view.name, len(view.steps)) == (run, "order", 1)
        assert await one.result(run, timeout=TEST_TIMEOUT_S) == 1
        assert [row.id for row in await one.runs.list(where=1)] == ([] if seq == 1 else [run])
        assert len(await one.store.feed("")) == 4
        assert [item.seq async for item in _take(one.runs.follow(run), 4)] == [1, 2, 3, 4]
        assert (await one.runs.why(run))[0].startswith("it ended as completed")
        assert "events" in {check.name for check in await one.diagnose() if not check.ok} <= {"store", "events"}


async def _take(events: Any, count: int) -> Any:
    async for event in events:
        yield event
        count -= 1
        if not count:
            await events.aclose()
            return


SHAPES = {
    "no data": b'{"kind":"%s","step":"order"}',
    "data of another type": b'{"kind":"%s","step":"order","data":5,"meta":{}}',
    "fields of other types": b'{"kind":"%s","step":"order","data":{"name":[],"error":5,"frames":7,"unmet":3,"code":{},'
    b'"file":1,"line":"x","result":1,"reason":[],"duration":"x","deadLetter":5,"nextRetryAt":"soon","willRetry":true,'
    b'"status":5,"resumeAt":"soon","match":5,"timeout":"x"},"meta":{"n":"x","attempt":"y","starts":5,"jobId":7,'
    b'"duration":[],"worker":{}}}',
}
KINDS = (
    "flow.started", "flow.completed", "flow.failed", "flow.cancelled", "flow.paused", "flow.resumed", "flow.forked",
    "step.started", "step.completed", "step.failed", "step.retry", "step.returned", "step.await.time",
    "step.await.event", "step.await.timeout", "step.resumed", "step.progress", "step.partial", "log",
)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_events_of_any_shape_can_be_shown(shape: str) -> None:
    from penstock.cli.commands.runs import _details
    from penstock.cli.output import run_to_dict
    from penstock.cli.run_view import render_text
    from penstock.core.events import decode_event
    from penstock.flows.reducer import reduce_flow

    for kind in KINDS:
        for last in KINDS:
            bodies = (b'{"kind":"flow.started","data":{"name":"order"}}', SHAPES[shape] % kind.encode())
            events = [decode_event("nq:flow:r", n, n, body) for n, body in enumerate(bodies, 1)]
            events.append(decode_event("nq:flow:r", 3, 3, SHAPES[shape] % last.encode()))
            view = reduce_flow(events)
            assert render_text(view, 10_000)
            assert _details(view)
            assert run_to_dict(view)["id"] == "r"
