"""The buffer between a handler and the stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.context import live_output
from penstock.context.live_output import MAX_BUFFERED_EVENTS, LiveOutput, OutputBatch


class Stream:
    """A slow receiver."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []
        self.door = asyncio.Event()

    async def __call__(self, output: OutputBatch) -> None:
        self.sent.append(output.events)
        await self.door.wait()


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.setattr(live_output, "FLUSH_INTERVAL_S", 0)
    return Stream()


def buffer(stream: Stream) -> LiveOutput:
    return LiveOutput(stream, lambda n: b"dropped %d" % n, asyncio.get_running_loop())


async def run_loop(n: int = 10) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


async def test_output_during_a_send_goes_with_the_next_batch(stream: Stream) -> None:
    output = buffer(stream)
    output.add(b"1")
    await run_loop()
    output.add(b"2")
    output.add(b"3")
    stream.door.set()
    await run_loop()
    assert stream.sent == [[b"1"], [b"2", b"3"]]


async def test_drain_returns_what_was_not_sent_and_stops_sending(stream: Stream) -> None:
    output = buffer(stream)
    output.add(b"1")
    await run_loop()
    output.add(b"2", b"50", "line")
    ending: Any = asyncio.create_task(output.drain())
    await run_loop()
    assert not ending.done(), "what is on its way arrives first"
    stream.door.set()
    assert await ending == ([b"2"], b"50", ["line"])
    await run_loop()
    assert stream.sent == [[b"1"]]


async def test_the_oldest_are_dropped_and_counted(stream: Stream) -> None:
    output = buffer(stream)
    for i in range(MAX_BUFFERED_EVENTS + 5):
        output.add(b"%d" % i)
    bodies = (await output.drain()).events
    assert bodies[0] == b"dropped 5"
    assert bodies[1:] == [b"%d" % i for i in range(5, MAX_BUFFERED_EVENTS + 5)]


async def test_frames_of_another_thread_are_sent(stream: Stream) -> None:
    output = buffer(stream)
    await asyncio.to_thread(output.add, b"from afar")
    await run_loop()
    assert stream.sent == [[b"from afar"]]
    stream.door.set()
    await run_loop()
