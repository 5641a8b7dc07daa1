"""Many readers in one process: those of one stream share each read, and others are not woken for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.core.events import Event
from penstock.stores.tail import SharedReads
from penstock.testing import until

READERS = 60


def make_event(seq: int, data: Any = None) -> Event:
    return Event(f"1-{seq}", "2026-01-01T00:00:00Z", "ticked", "s", data=data)


class SlowReads:
    """A stream whose reads wait, and are counted."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.calls = 0
        self.may_answer = asyncio.Event()

    async def __call__(self, stream: str, *, after: str | None, limit: int) -> list[Event]:
        self.calls += 1
        found = list(self.events)
        await self.may_answer.wait()
        return found


async def test_calls_at_the_same_time_share_a_read() -> None:
    reads = SlowReads()
    reads.events = [make_event(1, {"n": [1, 2**70]}), make_event(2, {"n": "x"})]
    shared = SharedReads(reads)
    tasks = [asyncio.create_task(shared("s", after=None, limit=10)) for _ in range(READERS)]
    other = asyncio.create_task(shared("s", after="1-1", limit=10))
    await asyncio.sleep(0)
    reads.may_answer.set()
    pages = await asyncio.gather(*tasks, other)
    assert reads.calls == 2
    assert all(page == reads.events for page in pages)
    pages[0][1].data["n"] = "changed"
    assert [page[1].data["n"] for page in pages[1:READERS]] == ["x"] * (READERS - 1)


async def test_a_call_never_joins_a_read_that_has_started() -> None:
    """What was committed in between would be missing, and the signal for it is used up."""
    reads = SlowReads()
    shared = SharedReads(reads)
    first = asyncio.create_task(shared("s", after=None, limit=10))
    await until(lambda: reads.calls == 1)
    reads.events = [make_event(1)]
    second = asyncio.create_task(shared("s", after=None, limit=10))
    await asyncio.sleep(0)
    reads.may_answer.set()
    assert (await first, await second) == ([], reads.events)


async def test_a_cancelled_reader_leaves_the_others() -> None:
    reads = SlowReads()
    reads.events = [make_event(1)]
    shared = SharedReads(reads)
    first, second = (asyncio.create_task(shared("s", after=None, limit=10)) for _ in range(2))
    await until(lambda: reads.calls == 1)
    first.cancel()
    reads.may_answer.set()
    assert await second == reads.events


async def test_an_error_reaches_every_reader() -> None:
    async def fail(*_: Any, **__: Any) -> list[Event]:
        raise OSError("gone")

    shared = SharedReads(fail)
    found = await asyncio.gather(*(shared("s", after=None, limit=1) for _ in range(3)), return_exceptions=True)
    assert [str(problem) for problem in found] == ["gone"] * 3


async def follow_all(app: Any, streams: list[str], got: Counter[str]) -> list[asyncio.Task[None]]:
    """Start a reader for each stream, and count the events it gets."""

    async def follow(stream: str) -> None:
        async for _ in app.events.subscribe(stream):
            got[stream] += 1

    return [asyncio.create_task(follow(stream)) for stream in streams]


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def count_reads(app: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    reads: Counter[str] = Counter()
    read = app.store._shared_reads._read

    async def counted(stream: str, **page: Any) -> list[Event]:
        reads[stream] += 1
        return await read(stream, **page)  # type: ignore[no-any-return]

    monkeypatch.setattr(app.store._shared_reads, "_read", counted)
    return reads


async def test_readers_of_one_stream_read_it_once(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On every store: a few reads for each event, however many readers there are."""
    stream, got = "nq:entity:one", Counter[str]()
    async with app() as a:
        reads = count_reads(a, monkeypatch)
        tasks = await follow_all(a, [stream] * READERS, got)
        for n in range(5):
            await a.events.append(stream, "ticked", n)
            await until(lambda n=n: got[stream] == READERS * (n + 1))  # type: ignore[misc]
        await stop(tasks)
    assert reads[stream] < 3 * 5 + 5


async def test_a_commit_of_another_process_wakes_the_readers_of_its_streams(
    tmp_path: Path, app_factory: Any, no_polling: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite tells only that something was committed. The store looks once which streams it was, for all readers."""
    url, got = f"sqlite:///{tmp_path}/p.db", Counter[str]()
    streams = [f"nq:entity:s{n}" for n in range(READERS)]
    async with app_factory(url)() as a, app_factory(url)() as writer:
        tasks = await follow_all(a, streams, got)
        await writer.events.append(streams[0], "ticked")  # from here on, the store knows what it has seen
        await until(lambda: got[streams[0]] == 1)
        await until(lambda: a.store._seen_position is not None)
        reads = count_reads(a, monkeypatch)
        for n in range(2, 5):
            await writer.events.append(streams[7], "ticked")
            await until(lambda n=n: got[streams[7]] == n - 1)  # type: ignore[misc]
        await stop(tasks)
    assert reads.keys() <= {streams[0], streams[7]}
