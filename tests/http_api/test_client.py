"""The client: the same calls as on App, over a real server."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from http_server import Serve
from penstock import App, Context, flow, job
from penstock.client import Client, SyncClient
from penstock.errors import (
    BadArgument,
    CountChanged,
    RunFailed,
    RunMoved,
    StoreUnavailable,
    Unauthorized,
    UnknownJob,
    UnknownRun,
    WaitTimeout,
)
from penstock.testing.until import until


@flow("greet")
async def greet(input: dict, ctx: Context) -> str:
    return f"Hello, {input['name']}!"


@flow("approve")
async def approve(_input: None, ctx: Context) -> Any:
    trigger = await ctx.wait.trigger("boss")
    return await trigger.wait()


@job(queue="double")
async def double(n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return 2 * n


@job(queue="slow")
async def slow(_input: None, ctx: Context) -> None:
    ctx.log("waiting")
    await asyncio.Event().wait()


@asynccontextmanager
async def running(serve: Serve, url: str, **options: Any) -> AsyncIterator[tuple[App, Client]]:
    """Serve an App with a worker, and yield it with a client of its server."""
    async with App(url, handlers=[greet, approve, double, slow], grace="1ms") as app, serve(app, **options) as http:
        working = asyncio.create_task(app.workers.run())
        try:
            async with Client(str(http.base_url)) as client:
                yield app, client
        finally:
            app.workers.stop()
            await working


async def test_runs(serve: Serve, url: str) -> None:
    async with running(serve, url) as (_app, client):
        run = await client.start("greet", {"name": "Ada"}, key="r-1", tags={"team": "a"})
        assert run == "r-1"
        assert await client.result(run, timeout="20s") == "Hello, Ada!"
        view = await client.runs.get(run)
        assert (view.status, view.result) == ("completed", "Hello, Ada!")
        assert view.last_event is not None
        assert (await client.runs.at(run, view.last_event)).status == "completed"
        assert [one.id for one in await client.runs.list(tags={"team": "a"}, since="1h")] == ["r-1"]
        assert await client.runs.list(where={"name": "Bob"}) == []
        assert await client.runs.cancel(run) is False
        assert len(await client.runs.why(run)) == 1
        again = await client.runs.replay(run, input={"name": "Bob"})
        assert await client.result(again, timeout="20s") == "Hello, Bob!"
        found = []
        async for event in client.runs.follow(run):
            found.append(event.kind)
            if event.kind == "flow.completed":
                break
        assert found[0] == "flow.started"


async def test_jobs_queues_and_dead_letters(serve: Serve, url: str) -> None:
    async with running(serve, url) as (_app, client):
        assert await client.jobs.result(await client.enqueue("double", 4), timeout="20s") == 8
        ids = await client.jobs.enqueue_many("double", [1, 2])
        assert [await client.jobs.result(id, timeout="20s") for id in ids] == [2, 4]
        bad = await client.enqueue("double", -1, retry=1)
        with pytest.raises(RunFailed, match="negative"):
            await client.jobs.result(bad, timeout="20s")
        assert (await client.jobs.get(bad)).state == "failed"
        ((letter_id, letter),) = await client.dead_letters.list("double")
        assert letter.original_job_id == bad
        done = await client.dead_letters.redrive(letter_id, input=3)
        assert await client.jobs.result(done.sent[letter_id], timeout="20s") == 6
        await client.queues.pause("double")
        assert next(view for view in await client.queues.list() if view.name == "double").paused
        await client.queues.resume("double")
        assert (await client.queues.counts("double"))["completed"] >= 3


@pytest.mark.spec("000-10.14")
async def test_execute_and_inspect(serve: Serve, url: str) -> None:
    async with running(serve, url) as (app, client):
        frames = [frame async for frame in client.jobs.execute("double", 4, key="j-4")]
        assert [frame.event for frame in frames] == ["added", "started", "completed"]
        assert (frames[-1].data["result"], (await client.jobs.get("j-4")).result) == (8, 8)
        failed = [frame async for frame in client.jobs.execute("double", -4)]
        assert (failed[-1].event, "negative" in failed[-1].data["error"]) == ("failed", True)
        with pytest.raises(Exception, match="invalid queue name"):
            _ = [frame async for frame in client.jobs.execute("no queue!")]
        job = await client.jobs.enqueue("slow")
        await until(lambda: app.workers._worker and app.workers._worker.find_attempt(job))

        async def has_logged() -> bool:
            return (await client.jobs.inspect(job)).log == "waiting"

        await until(has_logged)
        found = await client.jobs.inspect(job)
        assert (found.job, found.runner, "in slow" in found.stack) == (job, "async", True)
        await client.jobs.cancel(job)


async def test_events_state_waits_and_schedules(serve: Serve, url: str) -> None:
    async with running(serve, url) as (app, client):
        assert await client.emit("order.paid", {"id": 1}, key="once")
        assert not await client.emit("order.paid", {"id": 1}, key="once")
        await client.state.set("a/b", None, ttl="1h")
        await client.state.set("c", [1])
        assert await client.state.list() == {"a/b": None, "c": [1]}
        assert await client.state.get("c") == [1]
        assert await client.state.get("none", 5) == 5
        await client.state.of_run("r-1").set("x", 1)
        assert await app.state.of_run("r-1").get("x") == 1
        await client.state.delete("c")
        run = await client.start("approve")
        while not (pending := await client.waits.list(kind="trigger")):
            await asyncio.sleep(0)
        assert await client.waits.fire(await client.waits.token(pending[0].id), {"yes": True}) == run
        assert await client.result(run, timeout="20s") == {"yes": True}
        view = await client.schedules.add("nightly", flow="greet", cron="0 3 * * *", input={"name": "Eve"})
        assert (view.cron, view.flow) == ("0 3 * * *", "greet")
        assert [one.id for one in await client.schedules.list()] == ["nightly"]
        assert (await client.schedules.pause("nightly")).paused
        assert await client.schedules.remove("nightly")


async def test_errors_are_those_of_app(serve: Serve) -> None:
    async with running(serve, ":memory:") as (app, client):
        for call in (app.runs.get, client.runs.get):
            with pytest.raises(UnknownRun, match="no run with id 'none'"):
                await call("none")
        with pytest.raises(BadArgument, match="limit"):
            await client.runs.list(limit=0)
        run = await client.start("approve")
        await until(lambda: app.waits.list(run=run))
        with pytest.raises(WaitTimeout, match="trigger 'boss'"):
            await client.result(run, timeout="10ms")
        await app.tokens.add("ada")
        client._connection._http.headers.pop("authorization", None)
        app.tokens._any = (0, False)
        with pytest.raises(Unauthorized):
            await client.runs.list()


@pytest.mark.parametrize("id", ["", "a/b", "r-1/cancel", "/", ".", "..", "../_queue"])
async def test_an_id_that_no_path_can_hold_is_of_nothing(serve: Serve, id: str) -> None:
    async with running(serve, ":memory:") as (app, client):
        for runs in (app.runs, client.runs):
            for call in (runs.get, runs.cancel, runs.why, runs.result):
                with pytest.raises(UnknownRun, match="no run with id"):
                    await call(id)  # type: ignore[operator]
        for jobs in (app.jobs, client.jobs):
            with pytest.raises(UnknownJob):
                await jobs.get(id)


async def test_secrets_are_hidden_unless_an_admin_reveals_them(serve: Serve, url: str) -> None:
    async with running(serve, url) as (app, client):
        await app.state.set("login", {"password": "hunter2"})
        assert await client.state.get("login") == {"password": "[redacted]"}
        async with Client(client._connection.url, reveal=True) as admin:
            assert await admin.state.get("login") == {"password": "hunter2"}
        recorded = [event.data for event in await app.events.read_all("nq:audit:log")]
        assert [(one["action"], one.get("reveal")) for one in recorded] == [("get_state", True)]


async def test_a_server_that_is_not_there() -> None:
    async with Client("http://127.0.0.1:1") as client:
        with pytest.raises(StoreUnavailable, match="penstock serve"):
            await client.queues.list()


async def test_a_stream_continues_after_a_lost_connection(serve: Serve, url: str) -> None:
    stream = "nq:entity:e-1"
    async with running(serve, url) as (app, client):
        found: list[int] = []
        lost = 0

        class Fragile(httpx.AsyncByteStream):
            """Breaks a response after some chunks."""

            def __init__(self, inner: Any) -> None:
                self._inner = inner

            async def __aiter__(self) -> AsyncIterator[bytes]:
                nonlocal lost
                count = 0
                async for chunk in self._inner:
                    yield chunk
                    count += 1
                    if count == 4:
                        lost += 1
                        raise httpx.ReadError("cut")

            async def aclose(self) -> None:
                await self._inner.aclose()

        class Cut(httpx.AsyncHTTPTransport):
            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                response = await super().handle_async_request(request)
                response.stream = Fragile(response.stream)
                return response

        async with Client(client._connection.url, transport=Cut()) as fragile:

            async def write() -> None:
                for n in range(12):
                    await app.events.append(stream, "thing.happened", {"n": n})
                    await asyncio.sleep(0.05)

            writing = asyncio.create_task(write())
            async with asyncio.timeout(20):
                async for event in fragile.events.subscribe(stream):
                    found.append(event.data["n"])
                    if len(found) == 12:
                        break
            await writing
    assert found == list(range(12))
    assert lost > 0


async def test_without_an_event_loop(serve: Serve) -> None:
    async with running(serve, ":memory:") as (_app, client):

        def use() -> str:
            with SyncClient(client._connection.url) as sync:
                run = sync.start("greet", {"name": "Ada"})
                assert sync.runs.get(run).id == run
                return sync.result(run, timeout="20s")  # type: ignore[no-any-return]

        assert await asyncio.to_thread(use) == "Hello, Ada!"


FACETS = ["runs", "jobs", "queues", "dead_letters", "schedules", "waits", "events", "state"]


@pytest.mark.parametrize("facet", FACETS)
async def test_the_client_has_the_methods_and_options_of_app(facet: str) -> None:
    async with App(":memory:", handlers=()) as app, Client("http://127.0.0.1:1") as client:
        for name, method in inspect.getmembers(getattr(client, facet), callable):
            if name.startswith("_"):
                continue
            theirs = inspect.signature(getattr(getattr(app, facet), name)).parameters
            ours = inspect.signature(method).parameters
            assert set(ours) <= set(theirs), f"{facet}.{name} has {set(ours) - set(theirs)}, which App does not have"
            for option, parameter in ours.items():
                assert parameter.kind is theirs[option].kind, f"{facet}.{name}({option})"


@flow("fragile", queue="fragile", retry=1)
async def fragile(input: Any, ctx: Context) -> None:
    ctx.log.error("it broke", n=input)
    raise ValueError(f"broken {input}")


@asynccontextmanager
async def operating(serve: Serve, url: str) -> AsyncIterator[tuple[App, Client]]:
    """Serve an App without a worker, and yield it with a client of its server."""
    async with (
        App(url, handlers=[greet, approve, double, fragile]) as app,
        serve(app) as http,
        Client(str(http.base_url)) as client,
    ):
        yield app, client


async def test_actions_with_dry_runs_and_versions(serve: Serve, url: str) -> None:
    async with operating(serve, url) as (_app, client):
        run = await client.start("approve", key="r-1")
        plan = await client.runs.pause(run, dry_run=True)
        assert [event.kind for event in plan.events] == ["flow.paused"]
        assert await client.runs.pause(run, version=plan) is True
        with pytest.raises(RunMoved):
            await client.runs.resume(run, version=plan)
        assert await client.runs.resume(run) is True
        preview = await client.runs.replay(run, dry_run=True)
        assert [event.kind for event in preview.events] == ["flow.started"]
        job_id = await client.enqueue("double", 1, delay="1h")
        assert (await client.jobs.cancel(job_id, dry_run=True)).cancelled_jobs == (job_id,)
        assert (await client.jobs.promote(job_id, dry_run=True)).woken_jobs == (job_id,)
        assert await client.jobs.cancel(job_id, "not needed") is True
        assert await client.jobs.retry(job_id) is True
        assert (await client.jobs.remove(job_id, dry_run=True)).removed_jobs == (job_id,)
        assert await client.jobs.remove(job_id) is True
        assert (await client.events.emit("order.paid", dry_run=True)).events[0].kind == "order.paid"


async def test_bulk_actions_and_dead_letters(serve: Serve, url: str) -> None:
    async with operating(serve, url) as (app, client):
        async with app.workers.background():
            for n in range(2):
                await client.start("fragile", n, key=f"f-{n}")
                assert (await client.runs.wait(f"f-{n}", timeout="20s")).status == "failed"
        (line,) = await client.runs.logs("f-1", level="error", step="fragile")
        assert (line.msg, line.fields) == ("it broke", {"n": 1})
        assert await client.dead_letters.count("fragile") == 2
        (group,) = await client.dead_letters.groups()
        assert await client.dead_letters.group(group.id) == group
        assert len(await client.dead_letters.list("fragile", group=group.id)) == 2
        assert (await client.dead_letters.redrive("f-0.fragile.1", dry_run=True)).run == "f-0"
        found = await client.runs.list(step="fragile", error="broken", status="failed")
        assert sorted(one.id for one in found) == ["f-0", "f-1"]
        counted = await client.runs.bulk("retry", flow="fragile", dry_run=True)
        with pytest.raises(CountChanged):
            await client.runs.bulk("retry", flow="fragile", expect=7)
        done = await client.runs.bulk("retry", flow="fragile", expect=counted.matched)
        assert sorted(done.changed) == ["f-0", "f-1"]
        with pytest.raises(UnknownJob):
            await client.dead_letters.redrive_group(group.id)
        async with app.workers.background():
            await client.runs.wait("f-0", timeout="20s")
            await client.runs.wait("f-1", timeout="20s")
        assert len((await client.dead_letters.redrive_group(group.id)).sent) == 2
        assert await client.runs.children("f-0") == []


async def test_schedules_waits_webhooks_and_tokens(serve: Serve, url: str) -> None:
    async with operating(serve, url) as (app, client):
        await client.schedules.add("hourly", flow="greet", every="1h")
        assert len(await client.schedules.next_slots("hourly", count=2)) == 2
        assert await client.schedules.deactivate("greet") == ["hourly"]
        hook = await client.webhooks.register("shop/orders", flow="approve", method=["POST", "PUT"])
        assert await client.webhooks.get("shop/orders") == hook
        assert await client.webhooks.list() == [hook]
        assert await client.webhooks.remove("shop/orders") is True
        await client.start("approve", key="r-1")
        async with app.workers.background():
            await until(lambda: app.waits.list())
        (wait,) = await client.waits.list(since="1h")
        assert (await client.waits.get(wait.id)).run == "r-1"
        assert (await client.waits.resolve(wait.id, 7, dry_run=True)).run == "r-1"
        assert await client.waits.resolve(wait.id, 7, reason="by phone") == "r-1"
        token, text = await client.tokens.add("ada", "admin", expires="1d")
        async with Client(client._connection.url, token=text) as other:
            assert [one.id for one in await other.tokens.list()] == [token.id]
            assert (await other.tokens.revoke(token.id)).id == token.id


async def test_events_streams_and_the_feed(serve: Serve, url: str) -> None:
    async with operating(serve, url) as (app, client):
        event = await client.events.append("nq:entity:e-1", "thing.made", {"n": 1}, correlation_id="c-1")
        assert event is not None
        assert (event.kind, event.correlation_id) == ("thing.made", "c-1")
        assert [one.id for one in await client.events.streams("entity")] == ["e-1"]
        await client.emit("order.paid")
        assert [one.kind for one in await client.events.read("nq:global")] == ["order.paid"]
        await client.start("greet", {"name": "Ada"}, key="r-1")
        assert (await client.events.state("flow", "r-1")).name == "greet"
        items = [item async for item in client.events.feed()]
        assert [item.event.kind for item in items if item.stream != "nq:audit:log"][:2] == ["thing.made", "order.paid"]
        later = client.events.feed(after=items[-1].cursor, follow=True)
        await app.emit("order.sent")
        async for item in later:
            if item.event.kind == "order.sent":
                break
        assert (await client.queues.rates("double"))[-1].added == 0
        assert [flow["id"] for flow in await client.flows.list()] == ["greet", "approve", "fragile"]
        assert (await client.flows.diagram("greet"))["nodes"]
        assert (await client.describe())["fingerprint"]
        assert any(check.name for check in await client.diagnose())
        page = await client.jobs.list("double", states=["waiting", "delayed"])
        assert (list(page), page.cursor) == ([], None)


async def test_runs_are_exported_and_imported(serve: Serve, tmp_path: Any) -> None:
    async with operating(serve, f"sqlite:///{tmp_path}/a.db") as (app, client):
        await client.start("greet", {"name": "Ada"}, key="r-1")
        await client.start("greet", {"name": "Bob"}, key="r-2")
        assert await client.runs.export("r-1") == await app.runs.export("r-1")
        lines = [line async for line in client.runs.export_all()]
    async with operating(serve, f"sqlite:///{tmp_path}/b.db") as (_app, client):
        assert await client.runs.import_(b"\n".join(lines)) == ["r-1", "r-2"]
        assert (await client.runs.preflight("greet")).runs == 2
