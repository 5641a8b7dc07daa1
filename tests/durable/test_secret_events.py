"""Secrets in events: code receives them as emitted, before and after the wait; streams show them redacted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Await, Context, Event, Node, Permanent, flow, job, step
from penstock.core.redaction import REDACTED
from penstock.settings import Settings
from penstock.testing.until import until

REDACT = (*Settings().redact, "card.number")
SECRETS = [
    {"uploadToken": "qqq"},
    {"user": {"session": {"refresh-token": "qqq"}}},
    {"api_key": ["qqq", "www"]},
    {"token": 123456},
    {"order": {"card": {"number": "4111"}}},
    {"note": "Authorization: Bearer qqqqqqqqqqqq"},
    {"cookie": {"session": "qqq"}},
]


async def finish(app: Any, run: str) -> Any:
    """Return the result of a run as code receives it; a view of the run shows it redacted."""
    await app.finish(run)
    return await app.result(run)


@flow("upload", emits=[])
async def upload(match: Any, ctx: Context) -> Any:
    event = await ctx.wait.event("file.uploaded", match=match, timeout="1h")
    return event.data


@flow("late", emits=[])
async def late(match: Any, ctx: Context) -> Any:
    await ctx.wait.time("1m")
    event = await ctx.wait.event("file.uploaded", match=match, timeout="1h")
    return event.data


@pytest.mark.parametrize("secret", SECRETS, ids=str)
@pytest.mark.parametrize("handler", [upload, late], ids=["event after the wait", "event before the wait"])
async def test_a_match_on_a_secret(kit: Any, secret: Any, handler: Any) -> None:
    async with kit(upload, late, redact=REDACT) as app:
        run = await app.start(handler, secret)
        await app.settle()
        await app.emit("file.uploaded", {"uploadToken": "other", "size": 2})
        await app.emit("file.uploaded", {**secret, "size": 1})
        assert await finish(app, run) == {**secret, "size": 1}
        shown = [event.data for event in await app.events.read_all("nq:global")]
        assert all(REDACTED in str(data) for data in shown)
        waiting = [e for e in await app.events.read_all(f"nq:flow:{run}") if e.kind == "step.await.event"]
        assert all(REDACTED in str(event.data["match"]) for event in waiting)


async def test_two_waits_of_a_step_receive_one_event_each(kit: Any) -> None:
    @flow("both", emits=[])
    async def both(input: Any, ctx: Context) -> Any:
        events = await ctx.all([ctx.wait.event("tick", match={"token": t}, name=t) for t in ("a", "b")])
        return [event.data for event in events]

    async with kit(both, redact=REDACT) as app:
        run = await app.start(both, None)
        await app.settle()
        for token in ("b", "a"):
            await app.emit("tick", {"token": token})
        assert await finish(app, run) == [{"token": "a"}, {"token": "b"}]


async def test_subject_correlation_and_meta_are_real_too(kit: Any) -> None:
    @flow("whole", emits=[])
    async def whole(input: Any, ctx: Context) -> Any:
        event = await ctx.wait.event("tick")
        return [event.subject, event.correlation_id, event.meta, event.data]

    fields = {"subject": "token=qqq", "correlation_id": "password=www", "meta": {"secret": "vvv"}}
    async with kit(whole, redact=REDACT) as app:
        run = await app.start(whole, None)
        await app.settle()
        shown = await app.events.append("nq:entity:e", "tick", {"token": "kkk"}, **fields)
        assert await finish(app, run) == ["token=qqq", "password=www", {"secret": "vvv"}, {"token": "kkk"}]
        assert shown == (await app.events.read("nq:entity:e"))[0]
        assert not any(secret in str(shown) for secret in ("qqq", "www", "vvv", "kkk"))


@pytest.mark.parametrize("how", ["ctx.emit", "emit to a run"])
async def test_an_event_of_another_run(kit: Any, how: str) -> None:
    @flow("sender", emits=["file.uploaded"])
    async def sender(input: Any, ctx: Context) -> None:
        if how == "ctx.emit":
            ctx.emit("file.uploaded", input)
        else:
            await ctx.wait.event("file.uploaded")

    data = {"uploadToken": "qqq", "size": 1}
    async with kit(upload, late, sender, redact=REDACT) as app:
        waiting, later = [await app.start(handler, {"uploadToken": "qqq"}) for handler in (upload, late)]
        await app.settle()
        run = await app.start(sender, data)
        await app.settle()
        if how == "emit to a run":
            await app.emit("file.uploaded", data, run=run)
        assert await finish(app, waiting) == await finish(app, later) == data
        assert (await app.runs.get(run)).status == "completed"
        (shown,) = [e.data for e in await app.events.read_all(f"nq:flow:{run}") if e.kind == "file.uploaded"]
        assert shown == {"uploadToken": REDACTED, "size": 1}


async def test_a_declared_wait(kit: Any) -> None:
    def accept(event: Event, ctx: Any) -> bool:
        return event.data["password"] == ctx.input["secret"]

    wait = Await("event", event="user.joined", match=lambda input: {"refreshToken": input["token"]}, where=accept)

    @flow("declared", emits=["went"])
    async def declared(input: Any, ctx: Context) -> None:
        ctx.emit("went", input)

    @step(on="went", wait=wait)
    async def joined(input: Any, ctx: Context) -> Any:
        return [input, ctx.awaited.data]

    async with kit(declared, joined, redact=REDACT) as app:
        run = await app.start(declared, {"token": "qqq", "secret": "www"})
        await app.settle()
        for password in ("other", "www"):
            await app.emit("user.joined", {"refreshToken": "qqq", "password": password})
            await app.settle()
        view = await app.finish(run)
        assert view.status == "completed"
        assert await app.result(run) == [
            {"token": "qqq", "secret": "www"},
            {"refreshToken": "qqq", "password": "www"},
        ]


STARTS: list[tuple[Any, int]] = [
    ("user.joined", 1),
    ({"kind": "user.joined", "when": {"refreshToken": "qqq"}}, 1),
    ({"kind": "user.joined", "when": {"refreshToken": "other"}}, 0),
    ({"kind": "user.joined", "when": lambda e: e.data["refreshToken"] == "qqq"}, 1),
    ({"kind": "user.joined", "map": lambda e: {"refreshToken": e.data["refreshToken"], "user": {"password": "x"}}}, 1),
]


@pytest.mark.parametrize(("on", "count"), STARTS, ids=["any", "match", "no match", "when", "map"])
async def test_a_flow_started_by_an_event(kit: Any, on: Any, count: int) -> None:
    received: list[Any] = []

    @flow("welcome", start_on=on, emits=[])
    async def welcome(input: Any) -> None:
        received.append(input)

    data = {"refreshToken": "qqq", "user": {"password": "x"}}
    async with kit(welcome, redact=REDACT) as app:
        await app.settle()
        await app.emit("user.joined", data)
        await app.settle()
        assert received == [data] * count
        for row in await app.runs.list(flow="welcome"):
            assert (await app.runs.get(row.id)).input == {"refreshToken": REDACTED, "user": {"password": REDACTED}}


async def test_a_trigger(kit: Any) -> None:
    @flow("ask", emits=[])
    async def ask(input: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("answer")
        await ctx.state.set("link", trigger.token)
        return await trigger.wait()

    async with kit(ask, redact=REDACT) as app:
        run = await app.start(ask, None)
        await app.settle()
        (wait,) = await app.waits.list(run=run)
        await app.waits.fire(await app.waits.token(wait.id), {"password": "zzz"})
        await app.finish(run)
        assert await app.result(run) == {"password": "zzz"}
        assert "zzz" not in str(await app.events.read_all(f"nq:trigger:{wait.id}"))


SECRET = {"password": "qqq", "card": {"number": "4111"}}


async def test_compensation(kit: Any) -> None:
    received: list[Any] = []

    @flow("trip", emits=["asked"])
    async def ask(input: Any, ctx: Context) -> None:
        ctx.emit("asked", input)

    @step(on="asked", compensation="undo", emits=["booked"])
    async def book(input: Any, ctx: Context) -> Any:
        ctx.emit("booked", input)
        return input

    @step(on="booked", dead_letters=True)
    async def fly(input: Any) -> None:
        received.append(input)
        raise Permanent("no")

    @step(flow="trip")
    async def undo(input: Any) -> None:
        received.append(input)

    async with kit(ask, book, fly, undo, redact=REDACT) as app:
        run = await app.start("trip", SECRET)
        assert (await app.finish(run)).status == "compensated"
        fly_input, undo_input = received
        assert (fly_input, "qqq" in str(undo_input), REDACTED in str(undo_input)) == (SECRET, True, False)
        assert "qqq" not in str(await app.events.read_all(f"nq:flow:{run}"))


async def test_a_redriven_job_and_the_results_of_children(kit: Any) -> None:
    received: list[Any] = []

    @job(queue="leaves")
    async def leaf(input: Any) -> Any:
        return input

    @job(queue="roots")
    async def root(input: Any, ctx: Context) -> None:
        received.append([input, *(await ctx.children_values()).values()])
        if len(received) == 1:
            raise Permanent("no")

    async with kit(leaf, root, redact=REDACT) as app:
        tree = await app.jobs.enqueue_tree(Node("roots", SECRET, key="r", children=[Node("leaves", SECRET)]))
        await app.settle()
        await app.dead_letters.redrive(tree.id)
        await app.settle()
        assert received == [[SECRET, SECRET]] * 2


async def test_a_schedule(kit: Any) -> None:
    received: list[Any] = []

    @flow("daily", emits=[])
    async def daily(input: Any) -> None:
        received.append(input)

    async with kit(daily, redact=REDACT) as app:
        await app.schedules.add("daily", flow="daily", input=SECRET, every="1d")
        await app.advance("1d")
        await app.schedules.run_now("daily")
        await app.settle()
        assert received == [SECRET] * len(received)
        assert len(received) >= 2


async def test_listeners_and_readers_see_redacted_events(app: Callable[..., Any]) -> None:
    heard: list[Event] = []
    async with app(redact=REDACT) as one:
        await one.events.on_kind("user.joined", heard.append)
        await one.emit("user.joined", {"refreshToken": "qqq"})
        await until(lambda: heard)
        (tailed,) = [event async for event in _first(one.events.subscribe("nq:global"))]
        shown = [heard[0], tailed, *await one.events.read("nq:global"), *[i.event for i in await one.store.feed("")]]
        assert [event.data for event in shown] == [{"refreshToken": REDACTED}] * 4


async def _first(events: Any) -> Any:
    async for event in events:
        yield event
        return
