"""What the client has beside calls and answers: subscribers, signed calls, redrives that show first what they would do."""

from __future__ import annotations

import base64
from contextlib import aclosing
from typing import Any

import pytest

from http_server import Serve
from penstock import App, Context, flow, job
from penstock.client import Client
from penstock.core.events import Event
from penstock.errors import BadArgument, BadSignature, Unauthorized, UnknownQueue
from penstock.testing.until import until

SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()


@flow("approve")
async def approve(_input: Any, ctx: Context) -> Any:
    trigger = await ctx.wait.trigger("boss", signed="BOSS_SECRET")
    return await trigger.wait()


@job(queue="broken", retry=1)
async def broken(n: Any) -> Any:
    if n is not None:
        raise ValueError("not null")
    return "null"


async def test_subscribers_are_called_for_kinds_and_subjects(serve: Serve, url: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as http, Client(str(http.base_url)) as client:
        found: list[tuple[str, Any]] = []

        async def note(event: Event) -> None:
            found.append((event.kind, event.data))

        await app.emit("order.paid", "before")
        stop = await client.events.on_kind("order.paid", note)
        await client.events.on_subject("e-1", lambda event: found.append((event.kind, event.subject)))
        await client.events.on_kind("order.paid", raise_an_error)
        await app.emit("order.paid", 1)
        await app.emit("order.sent", 2)
        await app.events.append("nq:entity:e-1", "thing.made")
        await until(lambda: len(found) == 2)
        stop()
        await app.emit("order.paid", 3)
        await app.events.append("nq:entity:e-1", "thing.sent")
        await until(lambda: len(found) == 3)
        assert found == [("order.paid", 1), ("thing.made", "e-1"), ("thing.sent", "e-1")]


def raise_an_error(_event: Event) -> None:
    raise ValueError("a subscriber that fails disturbs no other")


async def test_a_subscriber_that_may_not_read_is_refused_at_once(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as http:
        await app.tokens.add("ada")
        async with Client(str(http.base_url)) as client:
            with pytest.raises(Unauthorized):
                await client.events.on_kind("order.paid", print)


async def test_a_trigger_is_signed_and_fired(serve: Serve, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOSS_SECRET", SECRET)
    async with (
        App(url, handlers=[approve]) as app,
        serve(app) as http,
        Client(str(http.base_url)) as client,
        app.workers.background(),
    ):
        run = await client.start("approve")
        await until(lambda: app.waits.list())
        (wait,) = await client.waits.list()
        token = await client.waits.token(wait.id)
        with pytest.raises(BadSignature):
            await client.waits.fire(token, "yes")
        signature = await client.waits.sign(token, "yes")
        with pytest.raises(BadArgument, match="leave out data="):
            await client.waits.fire(token, "yes", signature=signature)
        assert await client.waits.fire(f"https://example.com/api/triggers/{token}", signature=signature) == run
        assert await run.result(timeout="20s") == "yes"


async def test_who_resolves_a_wait_is_recorded_beside_the_token(serve: Serve, url: str) -> None:
    async with App(url, handlers=[approve]) as app, serve(app) as http:
        _, text = await app.tokens.add("desk", "operator")
        async with Client(str(http.base_url), token=text) as client, app.workers.background():
            for by, recorded in (("ada", "ada (desk)"), (None, "desk")):
                run = await client.start("approve")
                await until(lambda run=run: app.waits.list(run=run))
                (wait,) = await client.waits.list(run=run)
                await client.waits.resolve(wait.id, 1, by=by)
                events = await client.events.read(f"nq:trigger:{wait.id}")
                assert recorded in str(events[-1].data), events[-1]


async def test_a_redrive_of_many_shows_first_what_it_would_do(serve: Serve, url: str) -> None:
    async with App(url, handlers=[broken]) as app, serve(app) as http, Client(str(http.base_url)) as client:
        ids = await client.jobs.enqueue_many("broken", [1, 2], name="broken")
        async with app.workers.background():
            for id in ids:
                with pytest.raises(Exception, match="not null"):
                    await client.jobs.result(id, timeout="20s")
        plan = await client.dead_letters.redrive_all("broken", dry_run=True)
        assert (len(plan.removed_jobs), await client.dead_letters.count("broken")) == (2, 2)
        (group,) = await client.dead_letters.groups()
        assert len((await client.dead_letters.redrive_group(group.id, dry_run=True)).removed_jobs) == 2
        (new,) = await client.jobs.enqueue_many("broken", [3], name="broken")
        async with app.workers.background():
            with pytest.raises(Exception, match="not null"):
                await client.jobs.result(new, timeout="20s")
        done = await client.dead_letters.redrive_group(group.id, input=None, version=plan)
        assert (len(done.sent), list(done.refused)) == (2, [f"{new}.dlq"]), "a letter that the preview did not show"
        (letter,) = await client.dead_letters.list("broken")
        one = await client.dead_letters.redrive(letter[0], input=None)
        async with app.workers.background():
            for id in [*done.sent.values(), *one.sent.values()]:  # null is an input like any other
                assert await client.jobs.result(id, timeout="20s") == "null"


@job(queue="login")
async def login(_input: Any) -> Any:
    return {"password": "hunter2hunter2"}


async def test_job_events_of_all_programs_are_followed_without_secrets(serve: Serve, url: str) -> None:
    """On Redis they are those that BullMQ keeps, elsewhere those of the queue's stream."""
    async with App(url, handlers=[login]) as app, serve(app) as http, Client(str(http.base_url)) as client:
        id = await client.enqueue("login")
        async with app.workers.background():
            assert await app.jobs.result(id, timeout="20s") == {"password": "hunter2hunter2"}
        for shared in (True, False):
            found: list[Event] = []
            async with aclosing(client.queues.events("login", shared=shared)) as events:  # type: ignore[type-var]
                async for event in events:
                    found.append(event)
                    if event.kind == "job.completed":
                        break
            async with aclosing(app.queues.events("login", shared=shared)) as events:  # type: ignore[type-var]
                assert [one.id for one in found] == [(await anext(events)).id for _ in found]
            assert "hunter2" not in str(found)
        with pytest.raises(UnknownQueue):
            await anext(client.queues.events("logon", shared=True))  # type: ignore[call-overload]
