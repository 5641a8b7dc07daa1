"""Wait for triggers, which are fired once, with a token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import AwaitTimeout, Context, SyncContext, flow
from penstock.core.errors import (
    BadArgument,
    SchemaViolation,
    TriggerCancelled,
    TriggerExpired,
    TriggerUsed,
    UnknownTrigger,
)
from penstock.testing import TestApp


def make_flow(tokens: list[str], **options: Any) -> Any:
    """Return a flow that appends its token to `tokens` and waits until it is used."""

    @flow("ask", emits=[])
    async def ask(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval", **options)
        await ctx.run("tell", tokens.append, trigger.token)
        ctx.log("asked")
        return await trigger.wait()

    return ask


@pytest.mark.spec("003-3.2", "003-7.4")
async def test_a_trigger_is_fired_once(kit: Any) -> None:
    tokens: list[str] = []
    async with kit(make_flow(tokens)) as app:
        run = await app.start("ask")
        await app.settle()
        assert await app.fire(tokens[0], {"ok": True}) == run
        assert (await app.finish(run)).result == {"ok": True}
        for _ in range(2):
            with pytest.raises(TriggerUsed):
                await app.fire(tokens[0], {"ok": False})
        kinds = [e["kind"] for e in await app.history(run)]
        assert kinds.count("log") == 1
        assert [k for k in kinds if k.startswith("step.")] == [
            "step.started",
            "step.await.trigger",
            "step.resumed",
            "step.started",
            "step.completed",
        ]
        (row,) = [await app.store.wait_row(tokens[0].partition(".")[0])]
        kinds = [e.kind for e in await app.events.read_all(f"nq:trigger:{row.id}")]
        assert kinds == ["trigger.registered", "trigger.fired"]


async def test_a_trigger_is_fired_by_its_url(kit: Any) -> None:
    urls: list[str] = []

    @flow("ask", emits=[])
    def ask(order: Any, ctx: SyncContext) -> Any:
        trigger = ctx.wait.trigger("approval", type="user")
        ctx.run("tell", lambda: urls.append(trigger.url))
        return trigger.wait()

    async with kit(ask, public_url="https://shop.example/") as app:
        run = await app.start(ask, None)
        await app.settle()
        assert urls[0].startswith("https://shop.example/api/triggers/t-")
        await app.fire(urls[0], 7)
        assert (await app.finish(run)).result == 7


async def test_without_a_public_url_the_url_is_a_path(kit: Any) -> None:
    urls: list[str] = []

    @flow("ask", emits=[])
    async def ask(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval")
        await ctx.run("tell", lambda: urls.append(trigger.url))
        return await trigger.wait()

    async with kit(ask) as app:
        run = await app.start(ask, None)
        await app.settle()
        assert urls[0].startswith("/api/triggers/t-")
        await app.fire(urls[0], 7)
        assert (await app.finish(run)).result == 7
        (resumed,) = [event for event in await app.events.read_all(f"nq:flow:{run}") if event.kind == "step.resumed"]
        assert resumed.data["reason"] == "Trigger fired"


async def test_an_id_is_not_a_token(kit: Any) -> None:
    async with kit(make_flow([])) as app:
        await app.start("ask")
        await app.settle()
        (wait,) = await app.waits.list()
        with pytest.raises(UnknownTrigger, match=f"`penstock waits token {wait.id}` creates a token for it"):
            await app.waits.fire(wait.id)


async def test_unknown_tokens_are_refused(kit: Any) -> None:
    tokens: list[str] = []
    async with kit(make_flow(tokens)) as app:
        run = await app.start("ask")
        await app.settle()
        id, _, secret = tokens[0].partition(".")
        odd = [f"{id}.{bad}" for bad in ("\x00", "\ud800", "ä", "x" * 1_000_000)]
        odd += [f"{bad}.{secret}" for bad in ("\x00", "t-\x00", "\ud800", "ä", "x" * 1_000_000)]
        for wrong in (*odd, f"{id}.{secret[:-1]}", f"{id}.", id, f"t-none.{secret}", "", ".", f"{id}.{secret}x"):
            with pytest.raises((UnknownTrigger, BadArgument)):
                await app.waits.fire(wrong, 1)
        for wrong in (*odd, "", tokens[0]):
            with pytest.raises((UnknownTrigger, BadArgument), match=r"pending triggers|^id must"):
                await app.waits.token(wrong)
        assert (await app.runs.get(run)).status == "waiting"


@pytest.mark.spec("003-7.7")
async def test_an_expired_trigger_cannot_be_fired(kit: Any) -> None:
    tokens: list[str] = []
    async with kit(make_flow(tokens, timeout="1h")) as app:
        run = await app.start("ask")
        await app.settle()
        app.time.advance("1h")  # the worker has not noticed yet
        with pytest.raises(TriggerExpired):
            await app.waits._triggers.fire(tokens[0], 1)
        assert (await app.finish(run)).status == "failed"
        with pytest.raises(TriggerExpired):
            await app.fire(tokens[0], 1)
        kinds = [e["kind"] for e in await app.history(run)]
        assert "step.await.timeout" in kinds
        kinds = [e.kind for e in await app.events.read_all(f"nq:trigger:{tokens[0].partition('.')[0]}")]
        assert kinds == ["trigger.registered", "trigger.timeout"]


@pytest.mark.spec("003-7.6")
async def test_a_caught_timeout_of_a_trigger(kit: Any) -> None:
    @flow("ask", emits=[])
    async def ask(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval", timeout="1h")
        try:
            return await trigger.wait()
        except AwaitTimeout as problem:
            return str(problem)

    async with kit(ask) as app:
        assert (await app.run_flow(ask, None)).result == "the trigger 'approval' was not fired within 1 h"


@pytest.mark.spec("003-2.18")
@pytest.mark.parametrize("how", ["cancel", "complete", "fail"])
async def test_a_trigger_is_cancelled_when_its_run_ends(kit: Any, how: str) -> None:
    tokens: list[str] = []

    @flow("ask", emits=[])
    async def ask(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval")
        await ctx.run("tell", tokens.append, trigger.token)
        await ctx.wait.time("1h")
        if how == "fail":
            raise RuntimeError("no")

    async with kit(ask) as app:
        run = await app.start(ask, None)
        await app.settle()
        if how == "cancel":
            assert await app.runs.cancel(run)
        await app.finish(run)
        with pytest.raises(TriggerCancelled):
            await app.fire(tokens[0], 1)
        kinds = [e.kind for e in await app.events.read_all(f"nq:trigger:{tokens[0].partition('.')[0]}")]
        assert kinds == ["trigger.registered", "trigger.cancelled"]
        assert await app.store.waits(run=run) == []


async def test_an_invalid_answer_leaves_the_trigger_pending(kit: Any) -> None:
    tokens: list[str] = []
    schema = {"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}
    async with kit(make_flow(tokens, schema=schema)) as app:
        run = await app.start("ask")
        await app.settle()
        for wrong in ({"ok": "yes"}, None, []):
            with pytest.raises(SchemaViolation, match="approval"):
                await app.fire(tokens[0], wrong)
        await app.fire(tokens[0], {"ok": True})
        assert (await app.finish(run)).result == {"ok": True}


async def test_every_token_works_until_the_first_is_used(kit: Any) -> None:
    tokens: list[str] = []

    @flow("ask", emits=[])
    async def ask(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval")
        tokens.append(trigger.token)  # not durable: appended again by each attempt
        await ctx.wait.time("1h")
        return await trigger.wait()

    async with kit(ask) as app:
        for which in range(2):
            run = await app.start(ask, None)
            await app.advance("1h")
            assert len(set(tokens[-2:])) == 2
            await app.fire(tokens[-2:][which], which)
            assert (await app.finish(run)).result == which


async def test_a_token_is_stored_as_its_hash(tmp_path: Path) -> None:
    tokens: list[str] = []
    async with TestApp(f"sqlite:///{tmp_path}/penstock.db", handlers=[make_flow(tokens)]) as trial:
        run = await trial.start("ask")
        await trial.settle()
        await trial.waits.fire(tokens[0], 1)
        await trial.finish(run)
        secret = tokens[0].partition(".")[2].encode()
        found = [file for file in tmp_path.rglob("*") if file.is_file() and secret in file.read_bytes()]
        assert found == []
        assert any(run.encode() in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


async def test_a_trigger_is_waited_for_in_a_loop(kit: Any) -> None:
    reminded: list[int] = []

    @flow("remind", emits=[])
    async def remind(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("answer")
        while True:
            who, value = await ctx.first({"answer": trigger.wait(), "remind": ctx.wait.time("1d")})
            if who == "answer":
                return [value, trigger.id]
            await ctx.run("remind", lambda: reminded.append(len(reminded)))
            ctx.log("reminded")

    async with kit(remind) as app:
        run = await app.start(remind, None)
        await app.advance("3d")
        await app.fire("answer", "yes")
        view = await app.finish(run)
        assert view.result[0] == "yes"
        assert reminded == [0, 1, 2]
        assert [e["kind"] for e in await app.history(run)].count("log") == 3
        assert await app.store.waits(run=run) == []


async def test_additional_tokens_work(kit: Any) -> None:
    tokens: list[str] = []
    async with kit(make_flow(tokens)) as app:
        run = await app.start("ask", 1)
        [wait] = await app.pending_waits(run)
        more = [await app.waits.token(wait.id) for _ in range(2)]
        assert len({*tokens, *more}) == 3
        assert await app.fire(more[0], "yes") == run
        assert (await app.finish(run)).result == "yes"
        for token in (*tokens, *more):
            with pytest.raises(TriggerUsed):
                await app.fire(token, "again")
        with pytest.raises(TriggerUsed):
            await app.waits.token(wait.id)
        with pytest.raises(UnknownTrigger, match="penstock waits"):
            await app.waits.token("t-nothing")


async def test_a_token_created_while_the_step_was_suspended_survives_its_next_attempt(kit: Any) -> None:
    """The step registers its wait again with the tokens in its memos: the new one must be among them."""

    @flow("ask", emits=[])
    async def ask(ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval")
        while True:
            who, value = await ctx.first({"answer": trigger.wait(), "day": ctx.wait.time("1d")})
            if who == "answer":
                return value

    async with kit(ask) as app:
        run = await app.start("ask")
        wait = next(wait for wait in await app.pending_waits(run) if wait.kind == "trigger")
        token = await app.waits.token(wait.id)
        await app.advance("3d")
        await app.fire(token, "at last")
        assert (await app.finish(run)).result == "at last"


async def test_a_token_of_a_later_attempt_works_inside_the_function_that_sends_it(kit: Any) -> None:
    """The other side may use a link before the function that sent it has returned."""
    apps: list[TestApp] = []

    async def send(trigger: Any) -> None:
        await apps[0].waits.fire(trigger.token, "approved")

    @flow("ask", emits=[], retry=2)
    async def ask(order: Any, ctx: Context) -> Any:
        trigger = await ctx.wait.trigger("approval")
        if ctx.attempt == 1:
            raise ConnectionError("the mail server is away")
        await ctx.run("send", send, trigger)
        return await trigger.wait()

    async with kit(ask) as app:
        apps.append(app)
        assert (await app.run_flow("ask")).result == "approved"
