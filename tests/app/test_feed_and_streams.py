"""The feed of all events, streams of a type and pages of jobs, on every store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, SyncApp, flow, job
from penstock.app.jobs import Jobs
from penstock.cli import main
from penstock.core.errors import BadArgument
from penstock.core.events import BadStream
from penstock.core.ids import BadId
from penstock.testing import FakeClock


@flow("hello")
async def hello(input: Any, ctx: Context) -> None:
    ctx.emit("greeted", input)


@job(queue="mail", name="send")
async def send(input: Any) -> None: ...


HANDLERS = (hello, send)


@pytest.mark.spec("000-7.5", "001-3.3")
async def test_the_feed_has_every_event_with_its_stream_and_continues_at_a_cursor(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one:
        async with one.workers.background():
            await one.run_to_end(hello, 1, key="a")
            await one.jobs.result(await one.enqueue(send, 1))
        await one.emit("shop.opened", 7)
        items = [item async for item in one.events.feed()]
        by_stream: dict[str, list[Any]] = {}
        for item in items:
            by_stream.setdefault(item.stream, []).append(item.event)
        assert by_stream["nq:flow:a"] == await one.stream("a")
        assert [event.kind for event in by_stream["nq:global"]] == ["shop.opened"]
        assert by_stream["nq:queue:mail"] == await one.events.read_all("nq:queue:mail")
        rest = [item async for item in one.events.feed(after=items[2].cursor)]
        assert rest == items[3:]
        assert [item async for item in one.events.feed(after="latest")] == []
        assert [item async for item in one.events.feed(after=items[-1].cursor)] == []


async def test_a_follower_misses_nothing_while_many_processes_write(app: Callable[..., Any]) -> None:
    writers, each = 5, 12
    async with app(*HANDLERS) as one:
        seen: list[tuple[str, int]] = []

        async def follow() -> None:
            cursor: str | None = None
            while len(seen) < writers * each:  # it starts again at its cursor after every few events
                async with aclosing(one.events.feed(after=cursor, follow=True)) as items:
                    async for item in items:
                        cursor = item.cursor
                        seen.append((item.stream, item.event.seq))
                        if len(seen) % 7 == 0 or len(seen) == writers * each:
                            break

        async def write(n: int) -> None:
            for _ in range(each):
                await one.events.append(f"nq:entity:e{n}", "stock.changed", n)

        async with asyncio.timeout(30):
            await asyncio.gather(follow(), *map(write, range(writers)))
        assert sorted(seen) == sorted((f"nq:entity:e{n}", seq) for n in range(writers) for seq in range(1, each + 1))


async def test_a_follower_from_now_on(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one:
        await one.emit("shop.opened", 1)
        async with aclosing(one.events.feed(after="latest", follow=True)) as items, asyncio.timeout(30):
            waiting = asyncio.ensure_future(anext(items))
            await asyncio.sleep(0)
            while not waiting.done():
                await one.emit("shop.closed", 2)
                await asyncio.wait((waiting,), timeout=0.5)
            assert (waiting.result().stream, waiting.result().event.kind) == ("nq:global", "shop.closed")


async def test_a_wrong_cursor(app: Callable[..., Any]) -> None:
    async with app(*HANDLERS) as one:
        with pytest.raises(BadId, match="'yesterday'"):
            [item async for item in one.events.feed(after="yesterday")]


async def test_streams_of_a_type_newest_first(app: Callable[..., Any], clock: FakeClock) -> None:
    async with app(*HANDLERS, clock=clock) as one:
        for name in ("c", "a", "b"):
            await one.start(hello, 1, key=name)
            await one.events.append(f"nq:entity:{name}", "stock.created")
            clock.advance("1s")
        await one.events.append("nq:flow:c", "noted")
        await one.emit("shop.opened")
        found = await one.events.streams("flow")
        assert [row.id for row in found] == ["b", "a", "c"], "in the order in which they were created"
        assert (found[-1].name, found[-1].type, found[-1].events) == ("nq:flow:c", "flow", 2)
        assert found[-1].last_event_at > found[0].last_event_at
        pages: list[Any] = []
        while page := await one.events.streams("entity", before=pages[-1].name if pages else None, limit=2):
            pages += page
        assert [row.id for row in pages] == ["b", "a", "c"]
        assert await one.events.streams("webhook") == []
        assert await one.events.streams("flow", before="nq:flow:none") == []
        with pytest.raises(BadStream, match="unknown type of streams 'flows'; known types: flow, trigger"):
            await one.events.streams("flows")


@pytest.mark.spec("000-4.1.5")
async def test_jobs_by_several_states_and_by_name(app: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async with app(*HANDLERS) as one:
        for n in range(6):
            await one.enqueue("post", n, key=f"w{n}", name="letter" if n % 2 else "parcel")
            await one.enqueue("post", n, key=f"d{n}", name="letter" if n % 2 else "parcel", delay=f"{60 + n}m")
        both = ["delayed", "waiting"]
        whole = await one.jobs.list("post", states=both)
        assert [job.id for job in whole] == [*(f"d{n}" for n in range(6)), *(f"w{n}" for n in range(6))]
        assert (whole.cursor, whole.is_cut) == (None, False)
        letters = await one.jobs.list("post", states=both, name="letter")
        assert [job.id for job in letters] == ["d1", "d3", "d5", "w1", "w3", "w5"]
        pages: list[str] = []
        page = await one.jobs.list("post", states=both, name="letter", limit=4)
        while True:
            pages += [job.id for job in page]
            if page.cursor is None:
                break
            page = await one.jobs.list("post", states=both, name="letter", limit=4, after=page.cursor)
        assert pages == [job.id for job in letters]
        assert [job.id for job in await one.jobs.list("post", after="w3")] == ["w4", "w5"], "one state: an id is enough"
        monkeypatch.setattr("penstock.app.jobs.MAX_JOBS_SCANNED", 3)
        monkeypatch.setattr("penstock.app.jobs.PAGE_JOBS", 2)
        cut = await one.jobs.list("post", states=both, name="none")
        assert (list(cut), cut.is_cut) == ([], True)
        found: list[str] = []
        page = await one.jobs.list("post", states=both, name="letter")
        while page.cursor is not None:
            found += [job.id for job in page]
            page = await one.jobs.list("post", states=both, name="letter", after=page.cursor)
        assert [*found, *(job.id for job in page)] == [job.id for job in letters]
        with pytest.raises(BadArgument, match="cursor of a page that lists the same states"):
            await one.jobs.list("post", states=both, after="w3")
        with pytest.raises(BadArgument, match="at least one state"):
            await one.jobs.list("post", states=[])
        assert Jobs.list.__doc__


def test_the_commands_and_the_sync_app(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with SyncApp(url, handlers=HANDLERS) as app:
        app.start(hello, 1, key="a")
        app.enqueue("mail", 1, key="m1", name="send")
        app.enqueue("mail", 1, key="m2", name="other", delay="1h")
        assert [item.stream for item in app.events.feed()] == ["nq:flow:a", "nq:queue:mail", "nq:queue:mail"]
        assert [row.id for row in app.events.streams("flow")] == ["a"]
        assert [job.id for job in app.jobs.list("mail", states=["waiting", "delayed"], name="other")] == ["m2"]
    assert main(["events", "--all", "--json", "--url", url]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["stream"] for line in lines] == ["nq:flow:a", "nq:queue:mail", "nq:queue:mail"]
    assert main(["events", "--all", "--after", lines[0]["cursor"], "--limit", "1", "--url", url]) == 0
    assert "nq:queue:mail" in capsys.readouterr().out
    assert main(["events", "--url", url]) == 2
    assert "--all" in capsys.readouterr().err
    assert main(["streams", "queue", "--json", "--url", url]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "nq:queue:mail"
    assert (
        main(
            [
                "jobs",
                "list",
                "mail",
                "--state",
                "waiting",
                "--state",
                "delayed",
                "--name",
                "other",
                "--json",
                "--url",
                url,
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["id"] == "m2"
