"""Tags of events: who can set them, and how events are found by them, on every store."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest

from penstock import Await, Context, SyncApp, flow, job
from penstock.app import tagged_events
from penstock.core.errors import BadArgument
from penstock.core.event_tags import MAX_TAG_CHARS, MAX_TAGS, check_event_tags
from penstock.dags import node
from penstock.entities import States, Transition, entity, on_event
from penstock.testing import FakeContext
from penstock.testing.until import until

pytestmark = pytest.mark.spec("001-1.12")


@flow("order")
async def order(input: Any, ctx: Context) -> None:
    ctx.emit("order.paid", 1, tags=["audit", "eu", "audit"])
    ctx.emit({"kind": "order.packed", "data": 2, "tags": ["eu"]})
    ctx.emit("order.shipped", 3)


@flow("held", wait=Await("time", delay=lambda _: 0.001))
async def held(input: Any, ctx: Context) -> None:
    ctx.emit("order.paid", 1, tags=["late"])


@flow("waiting")
async def waiting(input: Any, ctx: Context) -> None:
    ctx.emit("order.opened", tags=["before"])
    await ctx.wait.event("go")


@job(queue="mail")
async def mail(input: Any, ctx: Context) -> None:
    ctx.emit("mail.sent", tags=["audit"])


def kinds(events: list[Any]) -> list[str]:
    return [event.kind for event in events]


async def test_a_step_and_a_job_tag_what_they_emit(app: Any) -> None:
    async with app(order, mail) as a, a.workers.background():
        run, _ = await a.run_to_end(order, tags={"audit": "eu"})
        stream = f"nq:flow:{run}"
        assert kinds(await a.events.read(stream, tags=["eu"])) == ["order.paid", "order.packed"]
        (paid,) = await a.events.read(stream, tags=["eu", "audit"])
        assert paid.meta["tags"] == ["audit", "eu"]
        assert kinds(await a.events.read(stream, tags=["eu"], backward=True)) == ["order.packed", "order.paid"]
        assert kinds(await a.events.read(stream, tags=["eu"], limit=1)) == ["order.paid"]
        assert kinds(await a.events.read(stream, tags=["eu"], after=paid.id)) == ["order.packed"]
        assert await a.events.read(stream, tags=["nobody has it"]) == []
        await a.jobs.result(await a.enqueue(mail))
        assert kinds(await a.events.read("nq:queue:mail", tags=["audit"])) == ["mail.sent"]


async def test_events_from_outside_are_tagged(app: Any) -> None:
    async with app(waiting) as a, a.workers.background():
        run = await a.start(waiting)
        await a.wait_for_step(run, "waiting", "suspended")
        await a.emit("price.changed", 1, tags=["eu"])
        await a.events.append("nq:entity:e", "x", 1, meta={"by": "ada"}, tags=["eu"])
        await a.emit("go", run=run, tags=["eu", "last"])
        await a.wait_for_end(run)
        feed = [item async for item in a.events.feed(tags=["eu"])]
        assert [(item.stream, item.event.kind) for item in feed] == [
            ("nq:global", "price.changed"), ("nq:entity:e", "x"), (f"nq:flow:{run}", "go"),
        ]  # fmt: skip
        assert feed[1].event.meta == {"by": "ada", "tags": ["eu"]}
        assert kinds(await a.events.read(f"nq:flow:{run}", tags=["before"])) == ["order.opened"]
        assert [one.kind for one in (await a.events.emit("price.cut", tags=["eu"], dry_run=True)).events] == [
            "price.cut"
        ]


async def test_a_held_emit_keeps_its_tags(app: Any) -> None:
    async with app(held) as a, a.workers.background():
        run, _ = await a.run_to_end(held)
        assert kinds(await a.events.read(f"nq:flow:{run}", tags=["late"])) == ["order.paid"]


async def test_a_subscription_yields_only_events_with_the_tags(app: Any) -> None:
    async with app() as a:
        await a.events.append("nq:entity:e", "first", tags=["x"])
        await a.events.append("nq:entity:e", "second")
        seen: list[str] = []

        async def follow(events: Any) -> None:
            async with aclosing(events):
                async for event in events:
                    seen.append(getattr(event, "event", event).kind)

        reading = [
            asyncio.create_task(follow(a.events.subscribe("nq:entity:e", tags=["x"]))),
            asyncio.create_task(follow(a.events.feed(follow=True, tags=["x"]))),
        ]
        await until(lambda: len(seen) == 2)
        await a.events.append("nq:entity:e", "third")
        await a.events.append("nq:entity:e", "fourth", tags=["y", "x"])
        await until(lambda: len(seen) == 4)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        assert sorted(seen) == ["first", "first", "fourth", "fourth"]


async def test_a_tagged_event_of_a_transaction(app: Any) -> None:
    """An event to a run waits for the commit in a job: the tags go with it."""
    async with app(waiting) as a, a.workers.background():
        run = await a.start(waiting)
        await a.wait_for_step(run, "waiting", "suspended")
        writers = a._transactions.direct
        await writers._emit_by_job(run, "go", None, None, ["late"])
        await a.wait_for_end(run)
        assert kinds(await a.events.read(f"nq:flow:{run}", tags=["late"])) == ["go"]


async def test_pages_are_read_until_enough_events_have_the_tags(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagged_events, "PAGE_EVENTS", 3)
    async with memory() as a:
        for n in range(20):
            await a.events.append("nq:entity:e", "x", n, tags=["rare"] if n % 7 == 3 else None)
        found = await a.events.read("nq:entity:e", tags=["rare"])
        assert [event.data for event in found] == [3, 10, 17]
        assert [e.data for e in await a.events.read("nq:entity:e", tags=["rare"], backward=True)] == [17, 10, 3]
        assert [e.data for e in await a.events.read("nq:entity:e", tags=["rare"], limit=2)] == [3, 10]
        scan = tagged_events.read_tagged
        assert await scan(a.store, "nq:entity:e", ["rare"], None, None, 9, False, 9) == (found[:1], found_id(9))
        events, cursor = await scan(a.store, "nq:entity:e", ["rare"], None, None, 9, True, 6)
        assert ([event.data for event in events], cursor) == ([17], found_id(15))


def found_id(seq: int) -> Any:
    class Ends:
        def __eq__(self, other: object) -> bool:
            return str(other).endswith(f"-{seq}")

        __hash__ = None  # type: ignore[assignment]

    return Ends()


@node("tagging")
async def tagging(input: Any, config: Any, ctx: Context) -> None:
    ctx.emit("packed", 1, tags=["of a node"])
    await ctx.wait.event("go")


@entity("parcel")
class Parcel:
    states = States("new", finals=["gone"])
    transitions = [Transition("go", "new", "gone")]

    @on_event("go")
    def go(self, data: dict[str, Any], payload: Any, ctx: Any) -> None:
        ctx.emit("parcel.gone", tags=["of an entity"])


async def test_nodes_and_entities_tag_what_they_emit(app: Any) -> None:
    async with app(tagging, Parcel) as a, a.workers.background():
        await a.dags.register({"id": "tags", "nodes": [{"id": "one", "type": "tagging"}]})
        run = await a.dags.start("tags", None, key="r1")
        await a.emit("go", run=run, tags=["to a dag"])
        await a.runs.wait(run, timeout=20)
        stream = "nq:dag:r1"
        assert kinds(await a.events.read(stream, tags=["of a node"])) == ["packed"]
        assert kinds(await a.events.read(stream, tags=["to a dag"])) == ["go"]
        await a.entities.create("urn:parcel:1", type="parcel")
        id = (await a.entities.get("urn:parcel:1")).id
        await a.emit("go", run=id, tags=["to an entity"])
        stream = f"nq:entity:{id}"
        await until(lambda: _reads(a, stream, "of an entity"))
        assert kinds(await a.events.read(stream, tags=["of an entity"])) == ["parcel.gone"]
        assert kinds(await a.events.read(stream, tags=["to an entity"])) == ["entity.received"]


async def _reads(a: Any, stream: str, tag: str) -> bool:
    return bool(await a.events.read(stream, tags=[tag]))


@pytest.mark.parametrize(
    "tags", ["eu", {"a": "b"}, [1], [""], ["a" * (MAX_TAG_CHARS + 1)], [str(n) for n in range(MAX_TAGS + 1)], ["\0"], 7]
)
async def test_bad_tags_are_refused(memory: Any, tags: Any) -> None:
    async with memory() as a:
        for call in (
            lambda: a.emit("x", tags=tags),
            lambda: a.events.append("nq:global", "x", tags=tags),
            lambda: a.events.read("nq:global", tags=tags),
        ):
            with pytest.raises(BadArgument, match="tag"):
                await call()
        for follow in (a.events.feed, lambda tags: a.events.subscribe("nq:global", tags=tags)):
            with pytest.raises(BadArgument, match="tag"):
                follow(tags=tags)
        assert await a.events.read("nq:global") == []


async def test_bad_tags_fail_the_step(memory: Any) -> None:
    @flow("wrong")
    async def wrong(input: Any, ctx: Context) -> None:
        ctx.emit("x", tags="eu")

    async with memory(wrong) as a, a.workers.background():
        run, status = await a.run_to_end(wrong)
        assert status == "failed"
        assert "must be a list of words" in (await a.events_of(run, "step.failed"))[0].data["error"]


def test_sets_are_sorted() -> None:
    assert check_event_tags({"b", "a"}) == ["a", "b"]


async def test_a_fake_context_has_the_tags() -> None:
    ctx = FakeContext()
    await order(None, ctx)
    assert ctx.emitted_tags == [["audit", "eu"], ["eu"], []]


def test_a_sync_app(url: str) -> None:
    with SyncApp(url, handlers=[]) as app:
        app.emit("x", 1, tags=["a"])
        app.emit("y", 1)
        assert kinds(app.events.read("nq:global", tags=["a"])) == ["x"]
        assert [item.event.kind for item in app.events.feed(tags=["a"])] == ["x"]


def test_commands(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.cli import main

    (tmp_path / "workers").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["emit", "price.changed", "--data", "1", "--tag", "eu", "--tag", "audit"]) == 0
    assert main(["emit", "price.changed", "--data", "2"]) == 0
    capsys.readouterr()
    for source in (["nq:global"], ["--all"]):
        assert main(["events", *source, "--tag", "audit", "--tag", "eu", "--json"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert json.loads(line)["meta"]["tags"] == ["eu", "audit"]
    assert main(["events", "--all", "--tag", "nobody"]) == 0
    assert "No events with the tag nobody" in capsys.readouterr().err
    assert main(["events", "nq:global", "--tag", "a", "--tag", "b"]) == 0
    assert "No events in nq:global with the tags a, b" in capsys.readouterr().err
