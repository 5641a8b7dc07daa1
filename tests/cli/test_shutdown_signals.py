"""A stop signal is never lost, whatever the command is doing when it arrives."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from penstock.cli.session import open_app
from penstock.cli.shutdown_signals import handle_stop_signals

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class SignalledApp:
    """An App that gets a stop signal while it opens."""

    def __init__(self, opening: Callable[[], Any]) -> None:
        self._opening = opening
        self.is_closed = False

    async def open(self, **_: Any) -> None:
        await self._opening()

    async def close(self) -> None:
        self.is_closed = True


def stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def signal_at_the_end() -> None:
    """The task is done when the loop learns of the signal: nothing is left to cancel."""
    stop_this_process()


async def signal_before_the_end() -> None:
    """The loop learns of the signal between the task's end and the turn of the one that waits for it."""
    asyncio.get_running_loop().call_soon(stop_this_process)
    await asyncio.sleep(0)


async def ignore_cancellation() -> None:
    """The last write of the opening is done in the moment of its cancellation."""
    asyncio.get_running_loop().call_soon(stop_this_process)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        pass


@pytest.mark.parametrize("opening", [signal_at_the_end, signal_before_the_end, ignore_cancellation])
@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_signal_while_the_app_opens_stops_the_command(new_loop: Callable, opening: Callable) -> None:
    async def work() -> bool:
        stopped = asyncio.Event()
        async with open_app(app) as is_open:  # type: ignore[arg-type]
            if is_open:
                with handle_stop_signals(stopped.set):
                    await asyncio.wait_for(stopped.wait(), 30)
        return app.is_closed

    app = SignalledApp(opening)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(work())


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_signal_at_the_end_of_a_block_is_handled_there_or_in_the_next(new_loop: Callable, turns: int) -> None:
    """In one of these turns, the loop has taken the signal, but calls the handler after the block."""

    async def work() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        waiting = loop.create_future()

        def end_later(turns: int) -> None:
            if turns:
                loop.call_soon(end_later, turns - 1)
            else:
                waiting.set_result(None)

        has_ended = False

        def stop() -> None:
            if not has_ended:
                stopped.set()

        with handle_stop_signals(stop):
            stop_this_process()
            end_later(turns)
            await waiting
            has_ended = True
        with handle_stop_signals(stopped.set):
            await asyncio.wait_for(stopped.wait(), 30)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work())
