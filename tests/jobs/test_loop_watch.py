"""An `async def` handler that blocks the event loop is named in the log while it does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from penstock import App, job
from penstock.worker import blocked_loop as loop_watch


class Ear(logging.Handler):
    """Hears warnings on whatever thread they are written."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: list[str] = []
        self.spoken = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())
        self.spoken.set()


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ear]:
    monkeypatch.setattr(loop_watch, "LONG", 0.05)
    ear = Ear()
    loop_watch.log.addHandler(ear)
    yield ear
    loop_watch.log.removeHandler(ear)


async def test_what_blocks_the_loop_is_named(ear: Ear) -> None:
    @job(queue="q")
    async def greedy(input: Any) -> bool:
        return ear.spoken.wait(30)  # on the loop's thread, until someone complains

    async with App(":memory:", handlers=[greedy], lease="500ms") as app, app.workers.background():
        assert await app.jobs.result(await app.enqueue("q"), timeout=40)
    assert len(ear.heard) == 1, "once for each time"
    assert "the event loop has been blocked for " in ear.heard[0]
    assert f" by greedy ({__file__}:" in ear.heard[0]
    assert "asyncio.to_thread" in ear.heard[0]


class Loop:
    """A loop whose time a test sets, and which answers when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon_threadsafe(self, answer: Callable[[], None]) -> None:
        self.asked.append(answer)

    def turn(self) -> None:
        while self.asked:
            self.asked.pop()()


def test_a_loop_that_answers_is_asked_again_and_never_blamed(ear: Ear) -> None:
    loop = Loop()
    watch = loop_watch.LoopWatch(cast(Any, loop))
    for _ in range(3):
        watch.look()
        assert len(loop.asked) == 1
        loop.turn()
        loop.now += 100
    assert ear.heard == []


def test_it_is_blamed_once_each_time(ear: Ear) -> None:
    loop = Loop()
    watch = loop_watch.LoopWatch(cast(Any, loop))
    for _ in range(2):
        for _ in range(4):
            watch.look()
            loop.now += 3
        loop.turn()
    assert [line.partition(" by ")[0] for line in ear.heard] == ["the event loop has been blocked for 3.0 s"] * 2


def test_a_loop_that_is_closed_is_left_alone(ear: Ear) -> None:
    loop = asyncio.new_event_loop()
    watch = loop_watch.LoopWatch(loop)
    loop.close()
    watch.look()
    assert ear.heard == []
