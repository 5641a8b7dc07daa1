"""After a full sweep only what is listed here is left of finished work, on every store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import redis

import postgres_server
from penstock import Context, Permanent, flow, job, step
from penstock.dags import DagBuilder, node
from penstock.jobs.job_trees import Node
from penstock.testing import TestApp
from penstock.testing.contracts.sweep_batches import sweep_all
from store_urls import STORE_URLS

# The tables of SQLite and Postgres. `streams` has a row for each queue, one for the global stream and one for the order of
# all events (SQLite only): event ids continue where they ended. `waits` has the wait by which an event starts a flow.
# `workers` has the worker of the test itself, if it has reported since the sweep.
TABLES = {"queues", "finished_counts", "streams", "schedules", "waits", "schema_versions", "store_info", "workers"}
# The same in Redis, with BullMQ's own keys of a queue.
KEYS = {
    "nq:queues", "nq:streams", "nq:streams:by_type:", "nq:streams:by_type:nq:queue:", "nq:stream_heads", "nq:schedules", "nq:schedules:due", "nq:schedule:*", "nq:wait:*",
    "nq:waits:flow", "nq:topic:*", "nq:topic_keys:*", "nq:run:*:waits", "nq:sweep_cursors",
    "bull:*:namespace", "bull:*:meta", "bull:*:id", "bull:*:events", "bull:*:marker", "bull:*:metrics:*", "bull:*:stalled-check", "bull:*:pc",
    "bull:*:repeat", "bull:*:repeat:*",  # the schedule, as BullMQ lists it
    "bull:*:metrics:completed:*", "bull:*:nq:dedupe_until:*",  # the latter with a test's clock only, else Redis expires it
}  # fmt: skip


# Dags and webhooks, which are no finished work.
REGISTERED = {"states", "nq:states", "nq:state:*", "nq:streams:by_type:nq:webhook:"}


@flow("order", emits=["order.packed", "order.sent"])
async def order(input: Any, ctx: Context) -> Any:
    await ctx.run("price", lambda: 7)
    await ctx.state.set("cart", [1, 2])
    await ctx.state.set("seen", 1, ttl="1h")
    await ctx.wait.time("1h")
    ctx.log("packed")
    ctx.emit("order.packed", {"n": 1})
    ctx.emit("order.packed", {"n": 2})
    return (await ctx.wait.event("order.paid", match={"id": 7}, timeout="1d")).data


@step(flow="order", on="order.packed", mode="each")
async def send(packed: Any, ctx: Context) -> None:
    if packed["n"] == 2:
        trigger = await ctx.wait.trigger("approval", timeout="2d", signed="SWEEP_SECRET")
        await trigger.wait()


@flow("audit", start_on="order.paid")
async def audit(input: Any) -> None: ...


@flow("broken", emits=[])
async def broken(input: Any) -> None:
    raise Permanent("no")


@job(queue="mail", retry=2, rate_limit={"max": 5, "durationMs": 1000, "perKey": True}, rate_key="to")
async def mail(input: Any, ctx: Context) -> Any:
    await ctx.run("render", lambda: 1)
    await ctx.progress(50)
    if input["to"] == "bad":
        raise Permanent("no such address")
    return input


@job(queue="kept", keep_completed=2)
async def kept() -> None: ...


@job(queue="book")
async def book() -> str:
    return "bound"


async def _work(app: TestApp) -> None:
    """Use everything that stores rows or keys, until all of it has ended."""
    run = await app.start("order", {"id": 7}, key="seven")
    await app.advance("2h")
    await app.emit("order.paid", {"id": 7})
    await app.settle()
    (trigger,) = await app.waits.list(run=run, kind="trigger")
    token = await app.waits.token(trigger.id)
    await app.waits.fire(token, signature=await app.waits.sign(token, {"ok": True}))
    await app.finish(run)
    cancelled = await app.start("order")
    await app.settle()
    await app.runs.cancel(cancelled)
    broken = await app.start("broken")
    await app.finish(broken)
    for n in range(9):
        await app.jobs.enqueue("mail", {"to": f"u{n % 4}"}, dedupe=f"k{n}", priority=n % 3)
    await app.jobs.enqueue("mail", {"to": "late"}, dedupe="ttl", dedupe_ttl="1h", delay="1m")
    failed = await app.jobs.enqueue("mail", {"to": "bad"})
    for _ in range(4):
        await app.jobs.enqueue("kept", order_key="one")
    await app.run_tree(Node(book, children=[Node(book), Node(book, children=[Node(book)])]))
    await app.schedules.add("hourly", queue="book", every="1h", limit=2)
    await app.schedules.add("stays", queue="book", every="1000d")
    await app.state.set("kept/a", 1, ttl="1h")
    await app.advance("3h")
    for letter in (failed, f"{broken}.broken.1"):
        await app.dead_letters.discard(f"{letter}.dlq")
    await app.schedules.remove("hourly")
    await app.settle()


@pytest.mark.spec("000-4.3.7")
@pytest.mark.parametrize("kind", STORE_URLS)
async def test_nothing_is_left_but_what_is_listed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_SECRET", "a secret of at least 24 bytes")
    url = STORE_URLS[kind](tmp_path)
    handlers = (order, send, audit, broken, mail, kept, book)
    async with TestApp(url, handlers=handlers) as app:
        await _work(app)
        assert sum((await _contents(app, url)).values()) > 100
        await app.advance("8d")  # once keys are kept for a week, and applied units for a day
        await sweep_all(app.store, app.time)
        left = await _contents(app, url)
        assert set(left) <= TABLES | KEYS, left
        assert left.get("waits", left.get("nq:wait:*")) == 1, left
        assert left.get("schedules", left.get("nq:schedule:*")) == 1, left
        assert left.get("streams", 0) <= 8, left
        assert left.get("workers", 0) <= 1, left


@flow("kid", attributes={"customer": "c"}, emits=[])
async def kid(input: Any, ctx: Context) -> Any:
    if input["c"] == "bad":
        raise Permanent("no")
    return input


@flow("family", attributes={"customer": "c"}, emits=[])
async def family(input: Any, ctx: Context) -> None:
    await ctx.call("kid", {"c": "a"})
    await ctx.call_many("kid", [{"c": str(n)} for n in range(5)])
    ctx.enqueue("book")
    ctx.start("kid", {"c": "z"})


@flow("hook", webhook={"path": "shop/orders"}, emits=[])
async def hook(input: Any) -> None: ...


@node("echo")
async def echo(input: Any) -> Any:
    return input


async def _work_of_several_runs(app: TestApp) -> None:
    """Use child runs, launches, attributes, tags, webhooks and dags, until all of it has ended."""
    run = await app.start("family", {"c": "ada"}, tags={"a": "b"}, correlation_id="corr")
    await app.finish(run)
    failed = await app.start("kid", {"c": "bad"})
    await app.finish(failed)
    await app.dead_letters.discard(f"{failed}.kid.1.dlq")
    answer = await app.webhooks.receive("shop/orders", "POST", {"Idempotency-Key": "k"}, b"{}")
    await app.finish(answer.run)
    builder = DagBuilder("d")
    builder.add("a", "echo")
    builder.add("b", "echo", after="a")
    await app.dags.register(builder.build())
    await app.finish(await app.dags.start("d", 1))
    late = await app.enqueue("book", delay="1h")
    assert await app.jobs.cancel(late, "no") is True
    await app.settle()


@pytest.mark.parametrize("kind", STORE_URLS)
async def test_nothing_is_left_of_child_runs_webhooks_and_dags(kind: str, tmp_path: Path) -> None:
    url = STORE_URLS[kind](tmp_path)
    async with TestApp(url, handlers=(kid, family, hook, echo, book)) as app:
        await _work_of_several_runs(app)
        assert sum((await _contents(app, url)).values()) > 100
        await app.advance("8d")
        await sweep_all(app.store, app.time)
        left = await _contents(app, url)
        assert set(left) <= TABLES | KEYS | REGISTERED, left
        assert left.get("states", left.get("nq:state:*", 0)) == 2, left  # the dag and its version


async def _contents(app: TestApp, url: str) -> Counter[str]:
    """Count the rows of each table, or the keys of each kind."""
    readers: dict[str, Callable[..., Any]] = {"postgresql": _postgres_rows, "redis": _redis_keys}
    scheme = urlsplit(url).scheme
    return readers[scheme](url) if scheme in readers else await _sqlite_rows(app)


async def _sqlite_rows(app: TestApp) -> Counter[str]:
    def count(cursor: Any) -> Counter[str]:
        tables = [name for (name,) in cursor.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return +Counter({name: cursor.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables})

    return await app.store._reader.run(count)


def _postgres_rows(url: str) -> Counter[str]:
    (schema,) = parse_qs(urlsplit(url).query)["schema"]
    do = postgres_server.server().do
    tables = [name for (name,) in do("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)]
    return +Counter({name: do(f"SELECT count(*) FROM {schema}.{name}")[0][0] for name in tables})


def _redis_keys(url: str) -> Counter[str]:
    """Count keys by name, with `*` for the name of a queue, a run, a wait or a schedule."""
    with closing(redis.Redis.from_url(url)) as client:
        found = Counter(_pattern(key.decode()) for key in client.scan_iter(count=1000))
        found["streams"] = client.zcard("nq:streams")
        found["nq:feed"] = client.xlen("nq:feed")
        return +found


def _pattern(key: str) -> str:
    first, second, *rest = key.split(":")
    if first == "bull":
        return ":".join(["bull", "*", *(rest[:-1] or rest), *(["*"] if len(rest) > 1 else [])])
    if rest and second in ("wait", "topic", "topic_keys", "schedule", "state"):
        return f"nq:{second}:*"
    if rest and second == "run":
        return ":".join(["nq:run:*", *rest[1:]])
    return key
