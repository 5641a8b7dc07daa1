"""An operator lists waits by state, reads them one by one, and resolves or cancels them by hand."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Context, Event, flow
from penstock.core.errors import BadArgument, SchemaViolation, UnknownWait, WaitCancelled, WaitSettled
from penstock.core.ids import BadId

SCHEMA = {"type": "object", "required": ["ok"]}


@flow("wait")
async def wait(kind: str, ctx: Context) -> Any:
    try:
        if kind == "time":
            return await ctx.wait.time("30d")
        if kind == "event":
            event: Event = await ctx.wait.event("order.paid", match={"order": 7}, timeout="1d")
            return {"data": event.data, "kind": event.kind, "meta": event.meta}
        trigger = await ctx.wait.trigger(
            "approval", type="user", timeout="7d", schema=SCHEMA, signed="SECRET_NAME", payload={"amount": 12}
        )
        return await trigger.wait()
    except WaitCancelled as problem:
        return f"cancelled: {problem}"


async def start(app: Any, kind: str) -> tuple[str, Any]:
    run = await app.start("wait", kind)
    await app.settle()
    (pending,) = await app.waits.list(run=run)
    return run, pending


async def events(app: Any, run: str, kind: str) -> list[Event]:
    return [event for event in await app.events.read_all(f"nq:flow:{run}") if event.kind == kind]


@pytest.mark.spec("001-2.14")
async def test_a_sleep_is_skipped(kit: Any) -> None:
    async with kit(wait) as app:
        run, pending = await start(app, "time")
        with pytest.raises(BadArgument, match="a sleep takes no data, got 7"):
            await app.waits.resolve(pending.id, 7)
        before = app.clock.now_ms()
        assert await app.waits.resolve(pending.id, reason="in a hurry", by="ada") == run
        assert (await app.finish(run)).status == "completed"
        assert app.clock.now_ms() - before < 86_400_000
        (resumed,) = await events(app, run, "step.resumed")
        assert resumed.data["reason"] == "Resolved manually"
        assert resumed.data["manual"] == {"by": "ada", "reason": "in a hurry"}
        ended = await app.waits.get(pending.id)
        assert (ended.state, ended.manual, ended.by, ended.reason) == ("resolved", True, "ada", "in a hurry")
        assert ended.ended is not None
        with pytest.raises(WaitSettled, match="is already resolved"):
            await app.waits.resolve(pending.id)


@pytest.mark.spec("001-2.14")
async def test_an_event_is_supplied(kit: Any) -> None:
    async with kit(wait) as app:
        run, pending = await start(app, "event")
        await app.waits.resolve(pending.id, {"order": 8}, by="ada")
        result = (await app.finish(run)).result
        assert result == {"data": {"order": 8}, "kind": "order.paid", "meta": {"manual": {"by": "ada"}}}
        assert (await app.waits.get(pending.id)).data == {"order": 8}
        assert await app.events.read_all("nq:global") == []  # only this step gets it


async def test_a_supplied_event_matches_the_schema_that_the_flow_declares(kit: Any) -> None:
    @flow("wait", events={"order.paid": SCHEMA})
    async def checked(_: None, ctx: Context) -> Any:
        return (await ctx.wait.event("order.paid")).data

    async with kit(checked) as app:
        run = await app.start("wait")
        await app.settle()
        (pending,) = await app.waits.list(run=run)
        with pytest.raises(SchemaViolation):
            await app.waits.resolve(pending.id, {"order": 8})
        await app.waits.resolve(pending.id, {"ok": 1})
        assert (await app.finish(run)).result == {"ok": 1}


@pytest.mark.spec("001-2.14", "003-2.12", "003-2.15", "003-7.3")
async def test_a_trigger_is_fired_by_hand(kit: Any) -> None:
    async with kit(wait) as app:
        run, pending = await start(app, "trigger")
        assert (pending.payload, pending.trigger, pending.signed) == ({"amount": 12}, "user", True)
        (awaits,) = await events(app, run, "step.await.trigger")
        assert awaits.data["payload"] == {"amount": 12}
        assert awaits.data["triggerId"] == pending.id
        stream = f"nq:trigger:{pending.id}"
        (registered,) = await app.events.read_all(stream)
        assert {name: registered.data[name] for name in ("type", "name", "schema", "signed")} == {
            "type": "user",
            "name": "approval",
            "schema": True,
            "signed": True,
        }
        assert registered.data["timeout"] == 7 * 86_400_000
        with pytest.raises(SchemaViolation):
            await app.waits.resolve(pending.id, {})
        await app.waits.resolve(pending.id, {"ok": True}, reason="asked by phone", by="ada")  # without a signature
        assert (await app.finish(run)).result == {"ok": True}
        fired = (await app.events.read_all(stream))[-1]
        assert fired.kind == "trigger.fired"
        assert fired.data == {
            "type": "user",
            "payload": {"ok": True},
            "source": "manual",
            "manual": {"by": "ada", "reason": "asked by phone"},
        }
        ended = await app.waits.get(pending.id)
        assert (ended.state, ended.data, ended.source, ended.by) == ("resolved", {"ok": True}, "manual", "ada")


@pytest.mark.spec("001-2.13")
@pytest.mark.parametrize("kind", ["time", "event", "trigger"])
async def test_a_cancelled_wait_raises_in_the_handler(kit: Any, kind: str) -> None:
    async with kit(wait) as app:
        run, pending = await start(app, kind)
        assert await app.waits.cancel(pending.id, reason="obsolete", by="ada") == run
        assert " was cancelled by ada: obsolete" in (await app.finish(run)).result
        (cancelled,) = await events(app, run, "step.await.cancelled")
        assert (cancelled.step, cancelled.data["awaitType"]) == ("wait", kind)
        assert cancelled.data["manual"] == {"by": "ada", "reason": "obsolete"}
        ended = await app.waits.get(pending.id)
        assert (ended.state, ended.manual, ended.by, ended.reason) == ("cancelled", True, "ada", "obsolete")
        if kind == "trigger":
            assert [event.kind for event in await app.events.read_all(f"nq:trigger:{pending.id}")] == [
                "trigger.registered",
                "trigger.cancelled",
            ]
        with pytest.raises(WaitSettled, match="is already cancelled"):
            await app.waits.cancel(pending.id)


async def test_a_step_that_does_not_catch_it_fails_without_retries(kit: Any) -> None:
    @flow("wait", retry=3)
    async def sleep(_: None, ctx: Context) -> None:
        await ctx.wait.time("1d")

    async with kit(sleep) as app:
        run = await app.start("wait")
        await app.settle()
        (pending,) = await app.waits.list(run=run)
        await app.waits.cancel(pending.id)
        failed = await app.finish(run)
        step = failed.steps["sleep"]
        assert (failed.status, step.code, step.attempt) == ("failed", "wait_cancelled", 1)


@pytest.mark.parametrize("kind", ["time", "event", "trigger"])
async def test_a_wait_that_is_cancelled_before_its_step_suspends(kit: Any, kind: str) -> None:
    """The step registers its waits first, then suspends: the second commit must not make a cancelled wait pending."""
    done: list[str] = []

    @flow("wait")
    async def race(_: None, ctx: Context) -> Any:
        calls: dict[str, Any] = {"time": ctx.wait.time("1d"), "event": ctx.wait.event("order.paid")}
        calls["trigger"] = (await ctx.wait.trigger("approval")).wait()

        async def cancel() -> None:
            if not done:
                done.append("cancelled")
                (pending,) = await app.waits.list(kind=kind)
                await app.waits.cancel(pending.id)
                raise RuntimeError("the attempt is repeated")

        try:
            return await ctx.first({**calls, "run": ctx.run("cancel", cancel, retry=2)})
        except WaitCancelled:
            return "cancelled"

    async with kit(race) as app:
        run = await app.start("wait")
        assert (await app.finish(run)).result == ("cancelled" if kind != "time" else ["run", None])


@pytest.mark.spec("001-2.13")
async def test_waits_are_cancelled_with_their_run(kit: Any) -> None:
    async with kit(wait) as app:
        for kind in ("time", "event", "trigger"):
            run, pending = await start(app, kind)
            await app.runs.cancel(run, reason="stop")
            kinds = [event["kind"] for event in await app.history(run)]
            assert kinds[-2:] == ["step.await.cancelled", "flow.cancelled"]
            (cancelled,) = await events(app, run, "step.await.cancelled")
            assert cancelled.data["wait"].partition("#")[0] == pending.name
            assert cancelled.data["reason"] == "stop"
            assert "manual" not in cancelled.data
            assert (await app.runs.get(run)).steps["wait"].status == "cancelled"
            assert (await app.waits.get(pending.id)).state == "cancelled"


@pytest.mark.spec("003-3.6")
async def test_triggers_are_listed_by_state_and_time(kit: Any) -> None:
    async with kit(wait) as app:
        ids = []
        for _ in range(6):
            ids.append((await start(app, "trigger"))[1].id)
            app.clock.advance("1h")
        await app.waits.resolve(ids[0], {"ok": 1})
        await app.waits.cancel(ids[1])
        await app.settle()
        fired = await app.waits.list(kind="trigger", state="fired")
        assert [(one.id, one.state, one.ended is not None) for one in fired] == [(ids[0], "resolved", True)]
        assert [one.id for one in await app.waits.list(state="cancelled")] == [ids[1]]
        assert [one.id for one in await app.waits.list(kind="trigger", limit=2)] == [ids[5], ids[4]]
        assert [one.id for one in await app.waits.list(kind="trigger", before=ids[4])] == [ids[3], ids[2]]
        assert [one.id for one in await app.waits.list(kind="trigger", since="3h30m", until="90m")] == [ids[4], ids[3]]
        app.clock.advance("8d")
        await app.settle()
        assert [one.id for one in await app.waits.list(state="expired", limit=3)] == [ids[5], ids[4], ids[3]]
        with pytest.raises(BadArgument, match="only triggers are listed without it"):
            await app.waits.list(kind="time", state="resolved")
        with pytest.raises(BadArgument, match="state must be '"):
            await app.waits.list(state="gone")
        with pytest.raises(BadId, match="before= must be the id of the last wait"):
            await app.waits.list(before="t-none")
        with pytest.raises(UnknownWait, match="run `penstock waits` to see the pending waits"):
            await app.waits.get("t-none")


@pytest.mark.spec("003-2.16")
async def test_where_a_trigger_was_fired_from_is_recorded(kit: Any) -> None:
    @flow("ask")
    async def ask(_: None, ctx: Context) -> Any:
        return await (await ctx.wait.trigger("approval")).wait()

    async with kit(ask, redact=("password",)) as app:
        for options, stored in (
            ({"source": "http", "ip": "192.0.2.7"}, {"source": "http", "ip": "192.0.2.7"}),
            ({}, {"source": "app"}),
        ):
            run = await app.start("ask")
            await app.settle()
            (pending,) = await app.waits.list(run=run)
            token = await app.waits.token(pending.id)
            await app.waits.fire(token, {"ok": True, "password": "hunter2"}, **options)
            assert await app.result(run) == {"ok": True, "password": "hunter2"}
            fired = (await app.events.read_all(f"nq:trigger:{pending.id}"))[-1]
            assert fired.data == {"type": "webhook", "payload": {"ok": True, "password": "[redacted]"}, **stored}
            ended = await app.waits.get(pending.id)
            assert (ended.source, ended.ip) == (stored["source"], stored.get("ip"))
