"""Several worker processes as one: started together, stopped together; one that dies is replaced."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import TextIO

from .errors import MISTAKE, warn

QUICK = 5.0  # seconds: who dies sooner is given longer and longer pauses
LONGEST_PAUSE = 30.0


class Processes:
    """Children that run `penstock worker` with the same options."""

    def __init__(self, count: int, options: Sequence[str], *, json: bool = False) -> None:
        self._count = count
        self._options = options
        self._json = json
        self._stopping = asyncio.Event()
        self._children: dict[int, Process] = {}
        self._code = 0

    async def run(self) -> int:
        """Keeps them running until `stop`, or until one finds something to mend; gives the exit code."""
        async with asyncio.TaskGroup() as group:
            for number in range(1, self._count + 1):
                group.create_task(self._keep(number))
        warn("All stopped.")
        return self._code

    def stop(self) -> None:
        """Every child stops in good order; none is replaced."""
        self._stopping.set()
        for child in self._children.values():
            _send(child, signal.SIGTERM)

    def kill(self) -> None:
        """Every child ends at once: what it had in hand runs again elsewhere."""
        for child in self._children.values():
            _send(child, signal.SIGKILL)

    async def _keep(self, number: int) -> None:
        loop, quick = asyncio.get_running_loop(), 0
        while not self._stopping.is_set():
            since = loop.time()
            code = await self._live(number)
            if self._stopping.is_set():
                return
            if code == MISTAKE:  # the next one would find the same; it has said what
                self._code = MISTAKE
                self.stop()
                return
            quick = quick + 1 if loop.time() - since < QUICK else 0
            pause = min(2.0**quick - 1, LONGEST_PAUSE) if quick > 1 else 0.0
            again = f"starting another in {pause:.0f} s" if pause else "starting another"
            warn(f"Worker {number} {_death(code)}: {again}.")
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _live(self, number: int) -> int:
        """One child from its beginning to its end; its lines are passed on with its number."""
        command = [sys.executable, "-m", "penstock.cli", "worker", "--child-of", str(os.getpid()), *self._options]
        # In a session of its own: Ctrl-C is for the parent, which tells everyone once.
        child = await asyncio.create_subprocess_exec(
            *command, stdout=PIPE, stderr=PIPE, start_new_session=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
        )
        self._children[number] = child
        warn(f"Worker {number} is process {child.pid}.")
        if self._stopping.is_set():
            _send(child, signal.SIGTERM)
        assert child.stdout is not None
        assert child.stderr is not None
        mark = f"[{number}] "
        await asyncio.gather(
            _pass_on(mark, child.stdout, sys.stdout),
            _pass_on(mark, child.stderr, sys.stderr, json=self._json),
        )
        code = await child.wait()
        del self._children[number]
        return code


async def _pass_on(mark: str, stream: asyncio.StreamReader, to: TextIO, *, json: bool = False) -> None:
    while line := await _line(stream):
        text = line.decode(errors="replace").rstrip()
        # An error as JSON stays whole: a program reads it.
        print(text if json and text.startswith("{") else f"{mark}{text}", file=to, flush=True)


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as end:
        return end.partial
    except asyncio.LimitOverrunError as too_long:
        return await stream.read(too_long.consumed)


def _send(child: Process, number: int) -> None:
    try:
        child.send_signal(number)
    except ProcessLookupError:
        pass


def _death(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended unexpectedly with code {code}"
