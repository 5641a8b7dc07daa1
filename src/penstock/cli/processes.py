"""Several worker processes under one parent, which starts, stops and replaces them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import TextIO

from .errors import EXIT_ERROR, warn
from .service_manager import INTERVAL_VARIABLE, SOCKET_VARIABLE

QUICK_EXIT_S = 5.0  # a process that exits sooner is restarted after longer and longer delays
MAX_RESTART_DELAY_S = 30.0


class WorkerProcesses:
    """Child processes that run `penstock worker` with the same options."""

    def __init__(self, count: int, options: Sequence[str], *, json: bool = False) -> None:
        self._count = count
        self._options = options
        self._json = json
        self._stopping = asyncio.Event()
        self._children: dict[int, Process] = {}
        self._code = 0

    async def run(self) -> int:
        """Keep them running until `stop`, or until one reports an error to fix; return the exit code."""
        async with asyncio.TaskGroup() as group:
            for number in range(1, self._count + 1):
                group.create_task(self._supervise(number))
        warn("All stopped.")
        return self._code

    def stop(self) -> None:
        """Stop every child gracefully; none is replaced. A second call does nothing: a child that gets a second signal
        stops at once."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        for child in self._children.values():
            _send(child, signal.SIGTERM)

    def kill(self) -> None:
        """Kill every child; its unfinished jobs run again elsewhere."""
        for child in self._children.values():
            _send(child, signal.SIGKILL)

    async def _supervise(self, number: int) -> None:
        loop, quick_exits = asyncio.get_running_loop(), 0
        while not self._stopping.is_set():
            started = loop.time()
            code = await self._run_child(number)
            if self._stopping.is_set():
                return
            if code == EXIT_ERROR:  # a replacement would fail the same way; the child has printed why
                self._code = EXIT_ERROR
                self.stop()
                return
            quick_exits = quick_exits + 1 if loop.time() - started < QUICK_EXIT_S else 0
            delay = min(2.0**quick_exits - 1, MAX_RESTART_DELAY_S) if quick_exits > 1 else 0.0
            restart = f"restarting in {delay:.0f} s" if delay else "restarting"
            warn(f"Worker {number} {_describe_exit(code)}: {restart}.")
            await self._sleep(delay)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _run_child(self, number: int) -> int:
        """Run one child to its end and forward its output, prefixed with its number."""
        command = [sys.executable, "-m", "penstock.cli", "worker", "--child-of", str(os.getpid()), *self._options]
        # In a session of its own: Ctrl-C is for the parent, which signals every child once.
        child = await asyncio.create_subprocess_exec(
            *command, stdout=PIPE, stderr=PIPE, start_new_session=True, env=_child_environment()
        )
        self._children[number] = child
        warn(f"Worker {number} is process {child.pid}.")
        if self._stopping.is_set():
            _send(child, signal.SIGTERM)
        assert child.stdout is not None
        assert child.stderr is not None
        prefix = f"[{number}] "
        await asyncio.gather(
            _forward(prefix, child.stdout, sys.stdout),
            _forward(prefix, child.stderr, sys.stderr, json=self._json),
        )
        code = await child.wait()
        del self._children[number]
        return code


def _child_environment() -> dict[str, str]:
    """Return the environment of a child. The parent alone reports to the service manager."""
    ours = {name: value for name, value in os.environ.items() if name not in (SOCKET_VARIABLE, INTERVAL_VARIABLE)}
    return {**ours, "PYTHONUNBUFFERED": "1"}


async def _forward(prefix: str, stream: asyncio.StreamReader, to: TextIO, *, json: bool = False) -> None:
    while line := await _read_line(stream):
        text = line.decode(errors="replace").rstrip()
        # An error in JSON has no prefix: a program parses it.
        print(text if json and text.startswith("{") else f"{prefix}{text}", file=to, flush=True)


async def _read_line(stream: asyncio.StreamReader) -> bytes:
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


def _describe_exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
