"""One Node process that runs many handlers, and the frames to and from each of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec

from ...core.errors import PayloadTooLarge, RunnerLost
from ...ports.frames import (
    Cancel,
    ErrorFrame,
    Frame,
    HandlerFrame,
    Ready,
    Suspend,
    WorkerFrame,
    max_frame_bytes,
)
from ..cpu_shares import lower_priority
from ..guard import Guard
from ..output import OutputThread
from ..remote import to_exception
from .describe import HOST, NODE_FLAGS
from .program import HostOptions, Node

log = logging.getLogger("penstock.node")

START_TIMEOUT_S = 30.0
RELEASE_TIMEOUT_S = 1.0  # how long a blocked host has to let an attempt go
EXIT_TIMEOUT_S = 2.0
OUTPUT_TIMEOUT_S = 0.5  # for what a process printed before its end; what it has started may still hold its output
EVALUATE_TIMEOUT_S = 10.0  # of a function in a config


class Released(Frame, frozen=True, tag="released"):
    """The host has let go of an attempt that was cancelled or suspended."""


class Evaluated(Frame, frozen=True, tag="evaluated"):
    """What a function of a config returned."""

    value: Any = None
    error: ErrorFrame | None = None


class Evaluate(Frame, frozen=True, tag="evaluate"):
    """Call the function at `path` of the config of `file`."""

    file: str
    path: list[str | int]
    values: list[Any]


_decode = msgspec.json.Decoder(tuple[int, HandlerFrame | Released | Evaluated]).decode
_encode = msgspec.json.Encoder().encode


class HostConnection:
    """The frames of one task. See runners.remote.Connection."""

    def __init__(self, host: HostProcess, number: int) -> None:
        self._host = host
        self.number = number
        self._frames: deque[HandlerFrame] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._end: Exception | None = None
        self._is_closed = False

    def send(self, frame: WorkerFrame) -> None:
        if isinstance(frame, Cancel | Suspend):
            self._host.release(self.number, is_stopped=isinstance(frame, Cancel))
        self._host.send(self.number, frame)

    async def receive(self) -> HandlerFrame | None:
        while not self._frames:
            if self._end is not None:
                raise self._end
            if self._is_closed:
                return None
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self._frames.popleft()

    def take(self, frame: HandlerFrame) -> None:
        self._frames.append(frame)
        self._wake()

    def end(self, problem: Exception | None = None) -> None:
        """End the connection: the host is gone."""
        self._is_closed, self._end = True, problem
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class HostProcess(asyncio.Protocol):
    """A Node process. It ends when its socket closes, and kills itself when this process is gone."""

    def __init__(self, node: Node, options: HostOptions, guard: Guard) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._connections: dict[int, HostConnection] = {}
        self._evaluations: dict[int, asyncio.Future[Any]] = {}
        self._releases: dict[int, asyncio.TimerHandle] = {}
        self._outgoing: list[bytes] = []
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self.is_lost = False
        self.is_retiring = False
        self.versions: dict[str, str] = {}  # of the worker files that it has loaded
        self.loaded: dict[str, str] = {}  # hashes of those files and of what they import
        self._guard = guard
        mine, its = socket.socketpair()
        memory_mb = options.memory_mb
        flags = [*NODE_FLAGS, *([f"--max-old-space-size={memory_mb}"] if memory_mb else [])]
        self._max_bytes = max_frame_bytes(options.lifts_limits)
        limits = {"threads": options.threads, "memoryMb": memory_mb, "frameBytes": self._max_bytes}
        config = json.dumps({"stripper": node.stripper, **limits})
        command = [node.path, *flags, str(HOST), "serve", str(its.fileno()), config]
        with its:
            self._process = subprocess.Popen(  # noqa: S603
                lower_priority(command, options.cpu_shares),
                pass_fds=(its.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                env={name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
                start_new_session=True,
            )
        guard.add(self.pid)
        assert self._process.stdout is not None
        self._output = OutputThread("Node process", self.pid, self._process.stdout)
        self._output.start()
        self._socket = mine

    def can_load(self, sources: Mapping[str, str]) -> bool:
        """Return whether none of these files is loaded in another version: Node imports a file once."""
        return all(self.loaded.get(file, seen) == seen for file, seen in sources.items())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        return self._ready.done()

    @property
    def is_idle(self) -> bool:
        return not self._connections and not self._evaluations

    async def start(self) -> None:
        """Wait until the host takes tasks."""
        await self._loop.create_connection(lambda: self, sock=self._socket)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._ready
        except TimeoutError:
            self.kill()
            raise RunnerLost(f"Node did not start within {START_TIMEOUT_S:g} s") from None

    def open(self) -> HostConnection:
        """Return a connection for one task."""
        number = next(self._numbers)
        connection = self._connections[number] = HostConnection(self, number)
        if self.is_lost:
            connection.end()
        return connection

    def close_connection(self, connection: HostConnection) -> None:
        """Forget a connection after its task ended."""
        self._connections.pop(connection.number, None)
        self._end_if_retired()

    def _end_if_retired(self) -> None:
        if self.is_retiring and self.is_idle:
            self.kill()

    async def evaluate(self, file: str, path: Sequence[str | int], values: Sequence[Any]) -> Any:
        """Call a function of a file's config and return what it returns."""
        number = next(self._numbers)
        answer = self._evaluations[number] = self._loop.create_future()
        try:
            if self.is_lost:
                raise RunnerLost("the Node process has ended")
            self.send(number, Evaluate(file, list(path), list(values)))
            async with asyncio.timeout(EVALUATE_TIMEOUT_S) as limit:
                return await answer
        except TimeoutError:
            if not limit.expired():
                raise
            self._expect_release(number)
            self.send(number, Cancel("timeout"))
            raise TimeoutError(
                f"config.{'.'.join(map(str, path))} of {file} did not return within {EVALUATE_TIMEOUT_S:g} s; it must "
                "decide from its arguments and wait for nothing"
            ) from None
        finally:
            self._evaluations.pop(number, None)
            self._end_if_retired()

    def send(self, number: int, frame: WorkerFrame | Evaluate) -> None:
        # A raw payload may have line breaks between its values; inside its strings they are escaped.
        line = _encode((number, frame)).replace(b"\n", b" ")
        if len(line) > self._max_bytes:
            raise PayloadTooLarge(f"a frame to Node of {len(line):,} bytes is larger than {self._max_bytes:,} bytes")
        self._outgoing.append(line)
        if len(self._outgoing) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        lines, self._outgoing = self._outgoing, []
        if self._transport is not None and not self.is_lost:
            self._transport.write(b"\n".join((*lines, b"")))

    def release(self, number: int, is_stopped: bool) -> None:
        """Expect that the host lets an attempt go. One that does not is blocked by a handler: it is killed."""
        if is_stopped and number in self._connections:
            self._expect_release(number)

    def _expect_release(self, number: int) -> None:
        if not self.is_lost and number not in self._releases:
            self._releases[number] = self._loop.call_later(RELEASE_TIMEOUT_S, self._kill_blocked)

    def _kill_blocked(self) -> None:
        if not self.is_lost:
            log.warning(
                "Node process %s did not stop a cancelled handler within %g s, because a handler blocks its event "
                "loop; it is killed, and its other handlers fail and are retried if their policy allows it",
                self.pid,
                RELEASE_TIMEOUT_S,
            )
            self.kill()

    def retire(self) -> None:
        """Take no more tasks, and end after the last running one."""
        self.is_retiring = True
        if self.is_idle:
            self.kill()

    def kill(self) -> None:
        """End the process and everything it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._lose()
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """End the process and wait until it is gone."""
        self.kill()
        await asyncio.to_thread(self._reap, EXIT_TIMEOUT_S)

    def _reap(self, timeout: float | None = None) -> None:
        """Wait for the end of the process: no zombie stays, and then its id may be used again."""
        self._process.wait(timeout)
        self._guard.remove(self.pid)
        self._output.join(OUTPUT_TIMEOUT_S)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is no subclass
        if self._outgoing:
            self._flush()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if b"\n" not in data:
            if len(received) > self._max_bytes:
                self._refuse(ValueError(f"a frame is larger than {self._max_bytes:,} bytes"))
            return
        lines = bytes(received).split(b"\n")
        self._received = bytearray(lines.pop())
        for line in lines:
            try:
                if len(line) > self._max_bytes:
                    raise ValueError(f"a frame is larger than {self._max_bytes:,} bytes")
                number, frame = _decode(line)
            except ValueError as problem:  # also what msgspec raises
                self._refuse(problem)
                return
            self._take(number, frame)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.kill()
        self._loop.run_in_executor(None, self._reap)

    def _refuse(self, problem: Exception) -> None:
        self._lose(problem)
        self.kill()

    def _take(self, number: int, frame: HandlerFrame | Released | Evaluated) -> None:
        match frame:
            case Ready():
                if not self._ready.done():
                    self._ready.set_result(None)
            case Released():
                if (timer := self._releases.pop(number, None)) is not None:
                    timer.cancel()
            case Evaluated(value, error):
                answer = self._evaluations.get(number)
                if answer is not None and not answer.done():
                    if error is None:
                        answer.set_result(value)
                    else:
                        answer.set_exception(to_exception(error, {}))
            case _:
                connection = self._connections.get(number)
                if connection is not None:
                    connection.take(frame)

    def _lose(self, problem: Exception | None = None) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        for timer in self._releases.values():
            timer.cancel()
        lost = RunnerLost("the Node process ended before it answered")
        if not self._ready.done():
            self._ready.set_exception(lost)
            self._ready.exception()  # nobody may wait for it
        for answer in self._evaluations.values():
            if not answer.done():
                answer.set_exception(lost)
        for connection in self._connections.values():
            connection.end(problem)
