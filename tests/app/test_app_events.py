"""`app.events`: append to, read and follow any stream; subscribe to events by kind and by subject."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import flow, job
from penstock.core.errors import BadArgument, NotJSON
from penstock.core.events import BadEmit, BadStream
from penstock.core.ids import BadId
from penstock.testing.until import until


@flow("shop")
async def shop() -> str:
    return "done"


@pytest.mark.spec("000-3.14", "000-7.1", "000-7.2", "000-7.28", "000-14.2", "001-1.5", "001-6.3", "001-6.4")
@pytest.mark.spec("003-1.1", "003-3.4", "003-4.7", "003-15.1")
@pytest.mark.parametrize(
    ("stream", "subject"),
    [
        ("nq:flow:some-run", "some-run"),
        ("nq:trigger:approval-1", "approval-1"),
        ("nq:webhook:hook-1", "hook-1"),
        ("nq:entity:order-7", "order-7"),
        ("nq:queue:mail", "mail"),
        ("nq:global", "global"),
    ],
)
async def test_append_and_read_any_stream(app: Any, stream: str, subject: str) -> None:
    async with app() as a:
        first = await a.events.append(stream, "it.happened", {"n": 1}, correlation_id="c", meta={"by": "me"})
        second = await a.events.append(stream, "it.happened.again", subject="other")
        assert (first.kind, first.data, first.correlation_id, first.meta) == (
            "it.happened",
            {"n": 1},
            "c",
            {"by": "me"},
        )
        assert (first.subject, second.subject) == (subject, "other")
        assert first.flow == ("some-run" if ":flow:" in stream else None)
        assert first.trigger == ("approval-1" if ":trigger:" in stream else None)
        assert [first.seq, second.seq] == [1, 2]
        assert await a.events.read(stream) == [first, second]
        assert await a.events.read(stream, after=first.id) == [second]
        assert await a.events.read(stream, before=second.id) == [first]
        assert await a.events.read(stream, backward=True, limit=1) == [second]


@pytest.mark.parametrize(
    "stream", ["", "nq", "nq:flow", "nq:flow:", "nq:nonsense:x", "other:flow:x", "nq:flow:a:b", "flow:x"]
)
async def test_a_bad_stream_name_is_refused_with_the_valid_form(memory: Any, stream: str) -> None:
    async with memory() as a:
        with pytest.raises(BadStream, match="nq:<type>:<id>"):
            await a.events.append(stream, "x")
        with pytest.raises(BadStream):
            await a.events.read(stream)
        with pytest.raises(BadStream):
            a.events.subscribe(stream)


async def test_a_custom_namespace(memory: Any) -> None:
    async with memory(shop, namespace="acme") as a, a.workers.background():
        run, _ = await a.run_to_end("shop")
        assert (await a.events.read(f"acme:flow:{run}"))[0].kind == "flow.started"
        with pytest.raises(BadStream, match="acme:<type>:<id>"):
            await a.events.read(f"nq:flow:{run}")


@pytest.mark.spec("001-1.4")
@pytest.mark.parametrize("kind", ["", "a b", "flow.completed", "step.failed", "job.added", None, 5])
async def test_an_invalid_or_reserved_kind_is_refused(memory: Any, kind: Any) -> None:
    async with memory(shop) as a:
        run = await a.start("shop")
        for emit in (
            lambda: a.events.append(f"nq:flow:{run}", kind),
            lambda: a.emit(kind),
            lambda: a.emit(kind, run=run),
        ):
            with pytest.raises(BadEmit if isinstance(kind, str) else BadArgument):
                await emit()
        assert await a.kinds(run) == ["flow.started"]


@pytest.mark.spec("001-1.6")
async def test_other_refusals(memory: Any) -> None:
    async with memory() as a:
        with pytest.raises(NotJSON):
            await a.events.append("nq:global", "x", object())
        with pytest.raises(BadArgument):
            await a.events.append("nq:global", "x", subject=7)
        with pytest.raises(BadArgument):
            await a.events.append("nq:global", "x", correlation_id=7)
        await a.events.append("nq:global", "x")
        with pytest.raises(BadId):
            await a.events.read("nq:global", after="yesterday")
        assert len(await a.events.read("nq:global")) == 1


async def test_a_key_is_accepted_once(app: Any) -> None:
    async with app() as a:
        answers = await asyncio.gather(*(a.events.append("nq:global", "paid", i, key="payment-1") for i in range(20)))
        assert sum(answer is not None for answer in answers) == 1
        assert len(await a.events.read("nq:global")) == 1
        await a.emit("paid", key="payment-1")
        assert len(await a.events.read("nq:global")) == 1
        await a.emit("paid", key="payment-2")
        assert len(await a.events.read("nq:global")) == 2


@pytest.mark.spec("000-3.16", "003-3.4")
async def test_emit_without_a_run_is_global(app: Any) -> None:
    async with app() as a:
        await a.emit("price.changed", {"sku": 1})
        (event,) = await a.events.read("nq:global")
        assert (event.kind, event.data, event.subject) == ("price.changed", {"sku": 1}, "global")


@pytest.mark.spec("000-7.2", "001-5.1", "001-6.4", "003-4.7")
async def test_a_subscription_yields_past_and_new_events_once(app: Any) -> None:
    async with app() as a:
        for n in range(3):
            await a.events.append("nq:entity:e", "x", n)
        seen: list[int] = []
        reading = asyncio.create_task(_collect(a.events.subscribe("nq:entity:e"), seen, 10))
        await until(lambda: len(seen) == 3)
        await asyncio.gather(*(a.events.append("nq:entity:e", "x", n) for n in range(3, 10)))
        await asyncio.wait_for(reading, 20)
        assert seen == [e.data for e in await a.events.read("nq:entity:e")]
        assert sorted(seen) == list(range(10))


async def test_a_subscription_starts_after_a_cursor(app: Any) -> None:
    async with app() as a:
        events = [await a.events.append("nq:entity:e", "x", n) for n in range(5)]
        seen: list[int] = []
        await _collect(a.events.subscribe("nq:entity:e", after=events[2].id), seen, 2)
        assert seen == [3, 4]


async def _collect(events: Any, into: list[int], count: int) -> None:
    async for event in events:
        into.append(event.data)
        if len(into) == count:
            await events.aclose()
            return


@pytest.mark.spec("000-7.9", "001-1.1")
async def test_a_whole_stream_is_read_page_by_page(app: Any) -> None:
    async with app() as a:
        await asyncio.gather(*(a.events.append("nq:entity:e", "x", n) for n in range(1234)))
        events = await a.events.read_all("nq:entity:e")
        assert [e.seq for e in events] == list(range(1, 1235))


# By kind and by subject


@pytest.mark.spec("000-4.1.6", "000-14.3", "003-2.2", "003-4.2", "003-4.3")
async def test_on_kind_and_on_subject(app: Any) -> None:
    by_kind: list[Any] = []
    by_subject: list[Any] = []

    async def slowly(event: Any) -> None:
        await asyncio.sleep(0)
        by_subject.append(event)

    async with app(shop) as a:
        await a.events.append("nq:entity:e", "before.we.listened")
        stop = await a.events.on_kind("flow.completed", by_kind.append)
        run = await a.start("shop")
        await a.events.on_subject(run, slowly)
        other = await a.start("shop")
        async with a.workers.background():
            await a.wait_for_end(run)
            await a.wait_for_end(other)
            await until(lambda: len(by_kind) == 2)
            assert {e.subject for e in by_kind} == {run, other}
            await until(lambda: [e.kind for e in by_subject][-1:] == ["flow.completed"])
            assert {e.subject for e in by_subject} == {run}
            assert by_subject == (await a.stream(run))[-len(by_subject) :], "in order, each once, to the end"
            stop()
            stop()
            await a.run_to_end("shop")
            marker = asyncio.Event()
            await a.events.on_kind("marker", lambda _: marker.set())
            await a.emit("marker")
            await asyncio.wait_for(marker.wait(), 20)
            assert len(by_kind) == 2, "no more after stopping"


@pytest.mark.spec("003-2.2", "003-4.2", "003-4.3")
async def test_on_kind_and_on_subject_of_another_app(shared: Any) -> None:
    received: list[Any] = []

    @job(queue="q")
    async def work() -> None: ...

    async with shared(work) as here, shared(work) as there:
        await here.events.on_kind("job.completed", received.append)
        await here.events.on_subject("global", received.append)
        await there.emit("from.afar", 1)
        async with there.workers.background():
            id = await there.enqueue("q")
            await there.jobs.result(id, timeout=20)
        await until(lambda: len(received) == 2)
        assert [(e.kind, e.subject) for e in received] == [("from.afar", "global"), ("job.completed", id)]


async def test_a_listener_that_raises_does_not_affect_others(memory: Any, caplog: pytest.LogCaptureFixture) -> None:
    received: list[Any] = []

    def broken(_: Any) -> None:
        raise ValueError("broken listener")

    async with memory() as a:
        await a.events.on_kind("x", broken)
        await a.events.on_kind("x", received.append)
        await a.emit("x", 1)
        await a.emit("x", 2)
        await until(lambda: len(received) == 2)
    assert "a subscriber to x raised" in caplog.text
