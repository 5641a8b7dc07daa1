"""A bad event never stops the good ones: what is written is checked first, and readers pass what they cannot read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock import PenstockError, flow, job, step
from penstock.app.diagnosis import diagnose
from penstock.core.errors import CannotFork, RunCancelled, RunError
from penstock.core.events import Event
from penstock.core.ids import new_token
from penstock.ports.unit import DELIVER, DELIVERIES, JobState, NewEvent, NewJob, Unit
from penstock.testing.contracts.unreadable import WRONG_SHAPES
from penstock.testing.until import until

BAD = b'{"kind":"step.completed","meta":"x"}'


@flow("shop", emits=["ordered"], accepts=["paid"])
async def shop(order: Any, ctx: Any) -> Any:
    ctx.log("hello")
    ctx.emit("ordered", order)
    return "done"


@step(on="ordered")
async def charge(order: Any) -> None: ...


@flow("waits")
async def waits(_input: Any, ctx: Any) -> Any:
    return (await ctx.wait.event("paid")).data


@flow("starts", start_on="paid")
async def starts(paid: Any) -> Any:
    return paid


@job(queue="mail")
async def send(mail: Any) -> Any:
    return mail


async def damage(app: Any, stream: str, body: bytes = BAD, kind: str | None = None) -> None:
    """Append an event that cannot be read, as another program might."""
    await app.store.commit([Unit(f"damage-{new_token()}", events=[NewEvent(stream, body, kind)])])


# Writing


WRITES: dict[str, Callable[[Any, str], Any]] = {
    "meta as text": lambda a, _: a.events.append("nq:entity:x", "it.is", meta="x"),
    "meta as a list": lambda a, _: a.events.append("nq:entity:x", "it.is", meta=[1]),
    "a key of meta": lambda a, _: a.events.append("nq:entity:x", "it.is", meta={1: 2}),
    "a value of meta": lambda a, _: a.events.append("nq:entity:x", "it.is", meta={"a": object()}),
    "deep meta": lambda a, _: a.events.append("nq:entity:x", "it.is", meta={"a": _nest(100)}),
    "large meta": lambda a, _: a.events.append("nq:entity:x", "it.is", meta={"a": "x" * 100_000}),
    "subject": lambda a, _: a.events.append("nq:entity:x", "it.is", subject=5),
    "correlation id": lambda a, _: a.events.append("nq:entity:x", "it.is", correlation_id=5),
    "stream": lambda a, _: a.events.append(5, "it.is"),
    "kind": lambda a, _: a.events.append("nq:entity:x", 5),
    "the kind of unreadable events": lambda a, _: a.events.append("nq:entity:x", "unreadable"),
    "data": lambda a, _: a.events.append("nq:entity:x", "it.is", {"a": {1, object()}}),
    "key": lambda a, _: a.events.append("nq:entity:x", "it.is", key=5),
    "emit a kind": lambda a, _: a.emit(5),
    "emit data": lambda a, _: a.emit("paid", object()),
    "emit a key": lambda a, _: a.emit("paid", key=5),
    "emit to a run with a key": lambda a, run: a.emit("paid", run=run, key=5),
    "emit to a run with an empty key": lambda a, run: a.emit("paid", run=run, key=""),
    "emit to a number": lambda a, _: a.emit("paid", run=5),
    "cancel": lambda a, run: a.runs.cancel(run, 5),
    "pause": lambda a, run: a.runs.pause(run, {"a": 1}),
    "resume": lambda a, run: a.runs.resume(run, None),
    "start with a correlation id": lambda a, _: a.start("shop", correlation_id=5),
    "start with tags": lambda a, _: a.start("shop", tags={"a": 1}),
    "enqueue with a correlation id": lambda a, _: a.enqueue(send, 1, correlation_id=5),
    "enqueue with an order key": lambda a, _: a.enqueue(send, 1, order_key=5),
    "enqueue a tree": lambda a, _: a.jobs.enqueue_tree({"name": "send", "queueName": "mail"}, correlation_id=5),
}


def _nest(depth: int) -> Any:
    return [_nest(depth - 1)] if depth else 1


@pytest.mark.parametrize("what", WRITES)
async def test_what_is_wrong_is_refused_before_it_is_written(app: Any, what: str) -> None:
    async with app(shop, charge, send) as a:
        run = await a.start("shop", 1)
        before = await a.store.feed("")
        with pytest.raises(PenstockError):
            await WRITES[what](a, run)
        assert await a.store.feed("") == before
        event = await a.events.append("nq:entity:x", "it.was", meta={"by": "ada"})
        assert [one.kind for one in await a.events.read("nq:entity:x")] == ["it.was"]
        assert event.meta == {"by": "ada"}


async def test_meta_may_hold_what_data_may(memory: Any) -> None:
    class Order(msgspec.Struct):
        id: int

    async with memory() as a:
        event = await a.events.append("nq:entity:x", "it.was", meta={"order": Order(7), "tags": ("a",)})
        assert event.meta == {"order": {"id": 7}, "tags": ["a"]}


HANDLER_CALLS: dict[str, Callable[[Any], Any]] = {
    "emit a kind": lambda ctx: ctx.emit(5),
    "emit the kind of unreadable events": lambda ctx: ctx.emit("unreadable", 1),
    "emit data": lambda ctx: ctx.emit("ordered", object()),
    "emit a correlation id": lambda ctx: ctx.emit({"kind": "ordered", "data": 1, "correlationId": 5}),
    "log fields": lambda ctx: ctx.log("x", a=object(), b=_nest(100), c=float("nan")),
    "log anything": lambda ctx: ctx.log(object(), a={1: 2}),
    "log by dict": lambda ctx: ctx.emit({"type": "log", "data": {"msg": {"a": 1}}}),
    "progress": lambda ctx: ctx.progress(object()),
    "partial": lambda ctx: ctx.partial({1: object()}),
}


@pytest.mark.parametrize("what", HANDLER_CALLS)
async def test_a_handler_writes_only_what_can_be_read(app: Any, what: str) -> None:
    @flow("tries", emits=["ordered"])
    async def tries(_input: Any, ctx: Any) -> None:
        HANDLER_CALLS[what](ctx)

    async with app(tries) as a, a.workers.background():
        run, status = await a.run_to_end("tries")
        assert status == ("completed" if what.startswith("log") else "failed")
        assert not any(event.is_unreadable for event in await a.stream(run))


# Reading


async def test_subscribers_continue_after_a_bad_event(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []
    async with app() as a:
        await a.events.append("nq:entity:x", "first")
        for kind in ("first", "second", "unreadable"):
            await a.events.on_kind(kind, seen.append)
        await a.events.on_subject("x", seen.append)
        for body in WRONG_SHAPES:
            await damage(a, "nq:entity:x", body)
        await a.events.append("nq:entity:x", "second")
        await until(lambda: [event for event in seen if event.kind == "second"])
        assert sum(event.is_unreadable for event in seen) == 2 * len(WRONG_SHAPES)  # by kind and by subject
        assert "of stream nq:entity:x cannot be read: " in caplog.text
        followed = a.events.subscribe("nq:entity:x")
        assert [(await anext(followed)).kind for _ in range(len(WRONG_SHAPES) + 2)][-1] == "second"
        await followed.aclose()


async def test_a_run_with_bad_events_ends_and_is_shown(app: Any) -> None:
    async with app(shop, charge) as a:
        await a.start("shop", 1, key="r")
        for body in WRONG_SHAPES:
            await damage(a, "nq:flow:r", body)
        async with a.workers.background():
            assert await a.wait_for_end("r") == "completed"
        view = await a.runs.get("r")
        assert (view.status, view.name, len(view.unreadable_events)) == ("completed", "shop", len(WRONG_SHAPES))
        assert {step.status for step in view.steps.values()} == {"completed"}
        assert [one["kind"] for one in view.emitted] == ["ordered"]
        events = await a.stream("r")
        assert (await a.runs.at("r", events[0].id)).unreadable_events == []
        assert (await a.runs.at("r", events[2].id)).unreadable_events == [events[1].id, events[2].id]
        assert (await a.runs.why("r"))[0].startswith("it ended as completed")
        assert [run.id for run in await a.runs.list(where=1)] == ["r"]
        following = a.runs.follow("r")
        assert [(await anext(following)).kind for _ in events][-1] == "flow.completed"
        await following.aclose()


async def test_the_last_event_of_a_run_is_bad(memory: Any) -> None:
    """The row of the run has its status, so no reader waits for the event."""
    async with memory(shop, charge) as a:
        await a.start("shop", 1, key="r")
        await a.runs.cancel("r")
        await _replace_last(a, "nq:flow:r")
        view = await a.runs.get("r")
        assert (view.status, view.completed_at is not None) == ("cancelled", True)
        with pytest.raises(RunCancelled, match="the event with the reason cannot be read"):
            await a.result("r", timeout=30)


async def test_the_first_event_of_a_run_is_bad(memory: Any) -> None:
    async with memory(shop, charge) as a:
        await a.start("shop", 1, key="r")
        await _replace_last(a, "nq:flow:r")
        with pytest.raises(
            RunError, match="cannot be replayed: its first event, which has the flow and the input, cannot be read"
        ):
            await a.runs.replay("r")
        with pytest.raises(CannotFork, match="its first event cannot be read"):
            await a.runs.fork("r", (await a.stream("r"))[0].id)
        assert (await a.runs.get("r")).name == "shop"
        async with a.workers.background():
            assert await a.wait_for_end("r") == "completed"


async def _replace_last(a: Any, stream: str) -> None:
    last = (await a.store.read(stream, backward=True, limit=1))[0].seq
    statement = "UPDATE events SET body = x'6a756e6b' WHERE seq = ? AND sid = (SELECT sid FROM streams WHERE name = ?)"
    await a.store._writer.run(lambda cursor: cursor.execute(statement, (last, stream)).fetchall())


async def test_a_fork_passes_a_bad_event_that_nothing_followed_from(app: Any) -> None:
    async with app(shop, charge) as a:
        await a.start("shop", 1, key="r")
        await damage(a, "nq:flow:r")
        async with a.workers.background():
            await a.wait_for_end("r")
            at = next(event.id for event in await a.stream("r") if event.step == "charge")
            await a.runs.fork("r", at, key="again")
            assert await a.wait_for_end("again") == "completed"
        assert len((await a.runs.get("again")).unreadable_events) == 1


async def test_a_fork_after_a_lost_decision_is_refused(memory: Any) -> None:
    async with memory(shop, charge) as a, a.workers.background():
        await a.start("shop", 1, key="r")
        await a.wait_for_end("r")
        events = await a.stream("r")
        lost = next(event for event in events if event.kind == "step.completed")
        statement = (
            "UPDATE events SET body = x'6a756e6b' WHERE seq = ? AND sid = (SELECT sid FROM streams WHERE name = ?)"
        )
        values = (lost.seq, "nq:flow:r")
        await a.store._writer.run(lambda cursor: cursor.execute(statement, values).fetchall())
        with pytest.raises(CannotFork, match=f"its event {lost.id} cannot be read and step 'charge' started"):
            await a.runs.fork("r", events[-1].id)


async def test_an_export_contains_the_marked_event(app: Any, shared: Any) -> None:
    async with app(shop, charge) as a, a.workers.background():
        await a.start("shop", 1, key="r")
        await damage(a, "nq:flow:r")
        await a.wait_for_end("r")
        line, events = await a.runs.export("r"), await a.stream("r")
    async with shared(shop, charge) as b:
        if await b.store.run("r") is None:
            await b.runs.import_(line)
        assert await b.stream("r") == events


async def test_doctor_reports_bad_events(app: Any) -> None:
    async with app(shop, charge, send) as a:
        await a.start("shop", 1, key="r")
        await a.enqueue(send, 1)
        assert "no unreadable events" in [check.detail for check in await diagnose(a)]
        for stream in ("nq:flow:r", "nq:global", "nq:queue:mail"):
            await damage(a, stream)
        (check,) = [check for check in await diagnose(a) if check.name == "events"]
        assert not check.ok
        assert check.detail.startswith("3 unreadable events: ")
        assert "of nq:flow:r" in check.detail


# Delivery


async def test_a_wait_that_looks_back_passes_bad_events(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with app(waits) as a:
        run = await a.start("waits", key="w")
        for body in WRONG_SHAPES:
            await damage(a, "nq:global", body, "paid")
        await a.emit("paid", 7)
        async with a.workers.background():
            assert await a.result(run, timeout=20) == 7
        assert "cannot be read: " in caplog.text


# A delivery of the others is a job whose payload no worker can read.
READABLE = [body for body in WRONG_SHAPES if not body.startswith(b'{"kind":"a","data":')]


@pytest.mark.parametrize("wrong", READABLE)
async def test_a_bad_delivery_is_skipped_once(memory: Any, wrong: bytes) -> None:
    await _check_delivery(memory, wrong)


async def test_a_bad_delivery_is_skipped_on_every_store(app: Any) -> None:
    await _check_delivery(app, b'{"kind":"paid","meta":7}')


async def _check_delivery(app: Any, wrong: bytes) -> None:
    """The store adds a delivery for each event that a wait is pending for: also for the bad one."""
    async with app(waits, starts) as a, a.workers.background():
        run = await a.start("waits", key="w")
        await a.wait_for_step(run, "waits", "suspended")
        await damage(a, "nq:global", wrong, "paid")
        letters = await until(lambda: _letters(a))
        assert (await a.store.job(letters[0].id.removesuffix(".dlq"))).attempt == 1
        await a.emit("paid", 7)
        assert await a.result(run, timeout=20) == 7
        await until(lambda: _has_run(a, "starts"))
        assert [run.flow for run in await a.runs.list(flow="starts")] == ["starts"]
        assert f"1 in {DELIVERIES}" in " ".join(check.detail for check in await diagnose(a))


async def _letters(a: Any) -> Any:
    return await a.store.jobs(f"{DELIVERIES}-dlq", JobState.WAITING)


async def _has_run(a: Any, flow: str) -> bool:
    return bool(await a.runs.list(flow=flow))


DELIVERED = {"stream": "nq:global", "id": "5-1", "cursor": "1", "body": {"kind": "paid", "data": 7}}


@pytest.mark.parametrize(
    "payload",
    [
        None,
        7,
        "x",
        [],
        {},
        {"events": 7},
        {"events": [7]},
        {**DELIVERED, "stream": 5},
        {**DELIVERED, "id": "x"},
        {**DELIVERED, "id": 5},
        {**DELIVERED, "cursor": "x"},
        {**DELIVERED, "cursor": None},
        {**DELIVERED, "body": "x"},
        {**DELIVERED, "body": {}},
        {**DELIVERED, "body": {"kind": 5}},
        {"events": [DELIVERED, {**DELIVERED, "body": {}}]},
    ],
)
async def test_a_delivery_of_another_shape_is_a_dead_letter(memory: Any, payload: Any) -> None:
    async with memory(waits) as a, a.workers.background():
        run = await a.start("waits", key="w")
        await a.wait_for_step(run, "waits", "suspended")
        new = NewJob("delivery.bad", DELIVERIES, DELIVER, msgspec.json.encode(payload))
        await a.store.commit([Unit("bad", jobs=[new])])
        row = await a.wait_for_state("delivery.bad", "failed")
        assert row.attempt == 1
        assert b"cannot be read" in row.error
        await a.emit("paid", 7)
        assert await a.result(run, timeout=20) == 7
