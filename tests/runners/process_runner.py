"""A process runner as small as it can be: one Python child for each task, JSON frames over two pipes.

It proves that a task and a channel are enough to run a handler elsewhere. It is not for production: no warm pool, no
limits, no isolation.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from penstock.ports.frames import HandlerFrame, WorkerFrame, decode_handler_frame, encode_frame
from penstock.ports.runner import Channel, Task
from penstock.runners.inprocess import InProcessRunner
from penstock.runners.remote import RemoteRun

HOST = Path(__file__).with_name("process_host.py")
MAX_FRAME_BYTES = 1024 * 1024
TERMINATE_TIMEOUT_S = 5.0


class PipeConnection:
    """One frame a line: JSON has no raw line break."""

    def __init__(self, reader: asyncio.StreamReader, out: int) -> None:
        self._reader = reader
        self._out = os.fdopen(out, "wb", buffering=0)

    def send(self, frame: WorkerFrame) -> None:
        try:
            self._out.write(encode_frame(frame) + b"\n")
        except (BrokenPipeError, ValueError):
            pass

    async def receive(self) -> HandlerFrame | None:
        line = await self._reader.readline()
        return decode_handler_frame(line) if line.endswith(b"\n") else None

    def close(self) -> None:
        self._out.close()


class ProcessRunner:
    """Runs importable handlers in a child, and the engine's own in this process."""

    def __init__(self, concurrency: int) -> None:
        self._here = InProcessRunner(concurrency)
        self.pids: list[int] = []

    async def run(self, task: Task, channel: Channel) -> Any:
        if task.handler.function is None:
            return await self._here.run(task, channel)
        theirs_in, out = os.pipe()
        into, theirs_out = os.pipe()
        arguments = (sys.executable, str(HOST), str(theirs_in), str(theirs_out))
        child = await asyncio.create_subprocess_exec(*arguments, pass_fds=(theirs_in, theirs_out))
        self.pids.append(child.pid)
        os.close(theirs_in)
        os.close(theirs_out)
        reader = asyncio.StreamReader(MAX_FRAME_BYTES)
        pipe = os.fdopen(into, "rb", buffering=0)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        connection = PipeConnection(reader, out)
        try:
            return await RemoteRun(task, channel, connection).run()
        finally:
            connection.close()
            await self._stop(child)
            transport.close()

    async def _stop(self, child: asyncio.subprocess.Process) -> None:
        """Let the child end: it leaves when its pipe closes. Kill it if it does not."""
        try:
            async with asyncio.timeout(TERMINATE_TIMEOUT_S):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()

    async def close(self) -> None:
        await self._here.close()
