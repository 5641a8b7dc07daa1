"""What the specifications ask of the stores: where things are kept, for how long, and who can read them."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import redis

import postgres_server
import redis_server
from penstock import App, Context, Node, flow, job, step
from penstock.app import workers
from penstock.core.errors import StoreUnavailable
from penstock.testing.clock import FakeClock
from penstock.testing.until import until


@flow("sum", queue="sums")
async def add(numbers: list[int], ctx: Context) -> int:
    ctx.log("adding")
    await ctx.state.set("seen", len(numbers))
    return sum(numbers)


@job(queue="pages", retry=1)
async def render(page: Any) -> Any:
    if page == "torn":
        raise ValueError("the page is torn")
    return page


@job(queue="books", retry=1)
async def bind(_title: Any, ctx: Context) -> Any:
    return sorted((await ctx.children_values()).values())


@pytest.mark.spec("000-1.5", "003-12.1", "003-1.2", "001-0.1")
async def test_another_app_reads_runs_events_and_state(shared: Any) -> None:
    async with shared(add) as one, one.workers.background():
        run, _ = await one.run_to_end("sum", [1, 2])
        await one.state.set("rates/eur", 1.08)
        view, events = await one.runs.get(run), await one.stream(run)
    async with shared() as other:
        assert (await other.runs.get(run), await other.stream(run)) == (view, events)
        assert await other.state.of_run(run).get("seen") == 2
        assert await other.state.get("rates/eur") == 1.08


@pytest.mark.spec("000-15.1")
async def test_the_state_of_a_run_from_outside(app: Any) -> None:
    async with app(add) as a:
        run = await a.start("sum", [1])
        state = a.state.of_run(run)
        await state.set("cart/a", 1)
        await state.set("cart/b", 2, ttl="1h")
        assert await state.patch("cart/a", lambda n: n + 10) == 11
        assert await state.list("cart/") == {"cart/a": 11, "cart/b": 2}
        await state.delete("cart/b")
        assert (await state.get("cart/a"), await state.get("cart/b")) == (11, None)
        assert await a.state.list() == {}


@pytest.mark.spec("001-4.10", "003-3.5", "001-4.6")
async def test_an_index_entry_and_its_first_event(app: Any, clock: FakeClock) -> None:
    async with app(add, clock=clock) as a:
        await a.start("sum", [1], key="first")
        clock.advance("1h")
        await a.start("sum", [2], key="second")
        second, first = await a.runs.list(flow="sum")
        assert [(row.id, row.flow) for row in (first, second)] == [("first", "sum"), ("second", "sum")]
        for row in (first, second):
            (source,) = await a.events.read(f"nq:flow:{row.id}", limit=1)
            assert (source.id.endswith("-1"), source.kind, source.data["queue"]) == (True, "flow.started", "sums")
            assert row.started_at == source.ts


@pytest.mark.spec("000-3.21", "001-0.2", "001-6.6")
async def test_old_events_are_removed(app: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SWEEP_INTERVAL_S", 0.01)
    async with app(render, clock=clock, retain_events="3d") as a:
        await a.emit("old")
        a.advance_clock("2d")
        await a.emit("new")
        async with a.workers.background():
            await until(lambda: _kinds(a, 2))
            a.advance_clock("2d")
            await until(lambda: _kinds(a, 1))
        assert [event.kind for event in await a.events.read_all("nq:global")] == ["new"]


async def _kinds(a: App, count: int) -> bool:
    return len(await a.events.read_all("nq:global")) == count


@pytest.mark.spec("000-14.1", "000-4.1.4")
async def test_the_fields_of_a_job(app: Any) -> None:
    @job(queue="mail")
    async def send(to: str, ctx: Context) -> str:
        await ctx.progress(50)
        if to == "nobody":
            raise ValueError("no such address")
        return f"sent to {to}"

    async with app(send) as a:
        good, bad = await a.enqueue(send, "ada"), await a.enqueue(send, "nobody")
        assert (await a.jobs.get(good)).state == "waiting"
        async with a.workers.background():
            await a.wait_for_state(good, "completed")
            await a.wait_for_state(bad, "failed")
        done, failed = await a.jobs.get(good), await a.jobs.get(bad)
        assert (done.id, done.name, done.input, done.progress) == (good, "send", "ada", 50)
        assert (done.result, done.error) == ("sent to ada", None)
        assert (failed.state, failed.result, failed.error["error"]) == ("failed", None, "no such address")


@pytest.mark.spec("000-7.11", "001-6.1", "003-4.1", "003-10.1")
async def test_events_on_redis_are_a_redis_stream() -> None:
    url = redis_server.url()
    async with App(url, handlers=[add]) as app, app.workers.background():
        with closing(redis.Redis.from_url(url)) as client, closing(client.pubsub()) as channel:
            channel.psubscribe("nq:live:*")
            run = await app.start("sum", [1, 2])
            assert await app.result(run, timeout=20) == 3
            stored = await asyncio.to_thread(client.xrange, f"nq:flow:{run}")
            assert len(stored) == len(await app.events.read_all(f"nq:flow:{run}")) > 3
            published = await asyncio.to_thread(lambda: [channel.get_message(timeout=5) for _ in range(4)])
            assert any(
                run.encode() in message["data"] for message in published if message and message["type"] == "pmessage"
            )
            assert list(client.scan_iter("nq:proj:*")) == []


@pytest.mark.spec("003-3.8")
async def test_an_index_entry_on_redis_is_small() -> None:
    url, count = redis_server.url(), 500
    async with App(url, handlers=[add]) as app:
        await asyncio.gather(*(app.start("sum", [n] * 50) for n in range(count)))
        with closing(redis.Redis.from_url(url)) as client:
            assert client.zcard("nq:runs:flow:sum") == count
            assert client.memory_usage("nq:runs:flow:sum", samples=0) / count < 200


@pytest.mark.spec("000-7.13")
async def test_events_on_postgres_are_rows() -> None:
    url = postgres_server.url()
    async with App(url, handlers=[add]) as app, app.workers.background():
        run = await app.start("sum", [1, 2])
        assert await app.result(run, timeout=20) == 3
        (schema,) = parse_qs(urlsplit(url).query)["schema"]
        ((count,),) = postgres_server.server().do(f"SELECT count(*) FROM {schema}.events")
        assert count == len(await app.events.read_all(f"nq:flow:{run}")) > 3


@pytest.mark.spec("000-7.13", "003-1.3", "003-4.1", "003-4.5", "003-10.2")
async def test_a_subscriber_of_another_app_is_notified(shared: Any) -> None:
    """Polling is off. Opening a connection wakes all readers once, so one event would prove nothing."""
    async with shared() as here, shared() as there:
        received = here.events.subscribe("nq:entity:order-7")
        for n in range(4):
            await there.events.append("nq:entity:order-7", "order.changed", n)
            assert (await asyncio.wait_for(anext(received), 20)).data == n
        await received.aclose()


@pytest.mark.spec("002-7.1")
async def test_queues_on_redis_are_made_lazily_and_share_connections() -> None:
    url = redis_server.url()
    async with App(url, handlers=[]) as app:
        with closing(redis.Redis.from_url(url)) as client:
            await app.enqueue("q0", 1)
            assert [row.name for row in await app.queues.list()] == ["q0"]
            before = sorted(one["name"] for one in client.client_list() if one["name"])
            for n in range(20):
                await app.enqueue(f"q{n}", 1)
            assert sorted(one["name"] for one in client.client_list() if one["name"]) == before
            assert len(await app.queues.list()) == 20


@pytest.mark.spec("004-2.1", "004-2.2")
async def test_a_tree_under_a_prefix_of_its_own() -> None:
    url = redis_server.url()
    app = App(f"{url}{'&' if '?' in url else '?'}prefix=spane", handlers=[render, bind])
    async with app, app.workers.background():
        tree = await app.jobs.enqueue_tree(Node(bind, children=[Node(render, n) for n in (1, 2)]))
        assert await app.jobs.result(tree.id, timeout=20) == [1, 2]
        with closing(redis.Redis.from_url(url)) as client:
            assert client.exists(f"spane:books:{tree.id}")
            assert list(client.scan_iter("bull:*")) == []
    with pytest.raises(StoreUnavailable):
        await app.jobs.enqueue_tree(Node(bind, children=[Node(render, 3)]))


@pytest.mark.spec("004-5.3")
@pytest.mark.parametrize("flag", ["continueParentOnFailure", "removeDependencyOnFailure"])
async def test_a_parent_continues_without_a_failed_child(app: Any, flag: str) -> None:
    children = [
        {"name": "render", "queue": "pages", "data": "torn", "opts": {flag: True}},
        {"name": "render", "queue": "pages", "data": 2},
    ]

    @job(queue="books", retry=1)
    async def count(_title: Any, ctx: Context) -> int:
        await ctx.remove_children()
        return len(await ctx.failed_children())

    async with app(render, count) as a, a.workers.background():
        tree = await a.jobs.enqueue_tree({"name": "count", "queue": "books", "children": children})
        assert await a.jobs.result(tree.id, timeout=20) == (1 if flag == "continueParentOnFailure" else 0)


@pytest.mark.spec("003-14.6")
async def test_the_size_of_stored_events(tmp_path: Path) -> None:
    """About 100 bytes for an event and 10 KB for a run of 100: at most half as much again, with ids of 36 characters."""

    @flow("order", emits=["packed"])
    async def order(ctx: Context) -> None:
        for n in range(20):
            ctx.emit("packed", {"sku": n})

    @step(on="packed", mode="each")
    async def label(item: dict[str, int], ctx: Context) -> int:
        ctx.log("labelled", sku=item["sku"])
        ctx.progress(100)
        return item["sku"]

    file = tmp_path / "store.db"
    async with App(f"sqlite:///{file}", handlers=[order, label]) as app, app.workers.background():
        await (await app.start("order")).wait()
    with closing(sqlite3.connect(file)) as connection:
        ((count, size),) = connection.execute("SELECT count(*), sum(length(body)) FROM events")
    assert count >= 100
    assert size / count <= 150
    assert size * 100 / count <= 15_000
