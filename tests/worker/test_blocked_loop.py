"""A warning names the `async def` handler that blocks the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from penstock import App, Context, job
from penstock.worker import blocked_loop


class WarningLog(logging.Handler):
    """Collects warnings of every thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        self.has_message = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.has_message.set()


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarningLog]:
    monkeypatch.setattr(blocked_loop, "BLOCKED_AFTER_S", 0.05)
    warnings = WarningLog()
    blocked_loop.log.addHandler(warnings)
    yield warnings
    blocked_loop.log.removeHandler(warnings)


async def test_warning_names_the_blocking_handler(warnings: WarningLog) -> None:
    @job(queue="q")
    async def greedy(input: Any) -> bool:
        return warnings.has_message.wait(30)  # on the loop's thread, until the warning comes

    async with App(":memory:", handlers=[greedy], lease="500ms") as app, app.workers.background():
        assert await app.jobs.result(await app.enqueue("q"), timeout=40)
    assert len(warnings.messages) == 1, "one warning per blockage"
    assert "the event loop has been blocked for " in warnings.messages[0]
    assert f" by greedy ({__file__}:" in warnings.messages[0]
    assert "asyncio.to_thread" in warnings.messages[0]


async def test_warning_names_the_handler_and_the_line_that_blocks(warnings: WarningLog) -> None:
    def crunch() -> bool:
        return warnings.has_message.wait(30)

    @job(queue="q")
    async def greedy(input: Any, ctx: Context) -> bool:
        return await ctx.run("crunch", crunch)

    async with App(":memory:", handlers=[greedy], lease="500ms") as app, app.workers.background():
        assert await app.jobs.result(await app.enqueue("q"), timeout=40)
    assert f" by crunch ({__file__}:" in warnings.messages[0]
    assert ", called by the handler greedy; " in warnings.messages[0]


async def test_a_handler_that_blocks_past_its_timeout_is_named(warnings: WarningLog) -> None:
    @job(queue="q", timeout="10ms")
    async def greedy(input: Any) -> str:
        threading.Event().wait(0.2)  # on the loop's thread: the timeout cannot stop it
        return "done"

    async with App(":memory:", handlers=[greedy]) as app, app.workers.background():
        assert await app.jobs.result(await app.enqueue("q"), timeout=40) == "done"
    assert any(
        "greedy ran longer than its timeout of 0.01 s and could not be stopped, because it blocked the event loop"
        in message
        for message in warnings.messages
    )


class Loop:
    """A loop with a clock set by the test; it answers pings when the test calls `turn`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pings: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon_threadsafe(self, answer: Callable[[], None]) -> None:
        self.pings.append(answer)

    def turn(self) -> None:
        while self.pings:
            self.pings.pop()()


def test_responsive_loop_causes_no_warning(warnings: WarningLog) -> None:
    loop = Loop()
    detector = blocked_loop.BlockedLoopDetector(cast(Any, loop))
    for _ in range(3):
        detector.check()
        assert len(loop.pings) == 1
        loop.turn()
        loop.now += 100
    assert warnings.messages == []


def test_each_blockage_causes_one_warning(warnings: WarningLog) -> None:
    loop = Loop()
    detector = blocked_loop.BlockedLoopDetector(cast(Any, loop))
    for _ in range(2):
        for _ in range(4):
            detector.check()
            loop.now += 3
        loop.turn()
    assert [line.partition(" by ")[0] for line in warnings.messages] == [
        "the event loop has been blocked for 3.0 s"
    ] * 2


def test_closed_loop_is_ignored(warnings: WarningLog) -> None:
    loop = asyncio.new_event_loop()
    detector = blocked_loop.BlockedLoopDetector(loop)
    loop.close()
    detector.check()
    assert warnings.messages == []
