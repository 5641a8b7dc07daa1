"""One child process: its socket, its output, its memory, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...core.errors import PythonMissing, RunnerLost
from ...core.text import shorten
from ...core.worker_folders import search_path
from ...ports.frames import (
    Cancel,
    Done,
    Failed,
    HandlerFrame,
    Heartbeat,
    Inspect,
    Inspected,
    Ping,
    Ready,
    WorkerFrame,
    decode_handler_frame,
    encode_frame,
    max_frame_bytes,
)
from ...ports.runner import Channel, HandlerState, Task
from ..cpu_shares import lower_priority
from ..output import OutputLog
from ..remote import RemoteRun
from .options import ProcessOptions

log = logging.getLogger("penstock.runner")
START_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 1.0  # between the end of the connection and that of the process
EXPLAIN_TIMEOUT_S = 10.0  # a busy machine is slow in reporting the end of a process
INSPECT_TIMEOUT_S = 2.0
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20


class Child:
    """A child that runs one task at a time."""

    def __init__(self, options: ProcessOptions, folder: str) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._folder = tempfile.mkdtemp(prefix="child-", dir=folder)
        self.jobs = 0
        self.task: Task | None = None
        self.rss_mb = 0.0  # as the child last reported it
        self.is_stale = False  # it has loaded code that has changed
        self.killed_for: str | None = None  # why the pool killed it
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.exit_code: int | None = None
        self.last_heartbeat = self._loop.time()
        self.output = OutputLog()
        self._frames: deque[HandlerFrame | ValueError | None] = deque()
        self._arrived = asyncio.Event()
        self._has_end = False  # of the running task
        self._inspections: dict[int, asyncio.Future[Inspected]] = {}
        self._ours, theirs = socket.socketpair()
        try:
            self._process = self._start(theirs)
        except (OSError, PythonMissing):
            self._ours.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._tasks = [self._loop.create_task(self._read(), name="penstock-child")]
        self._tasks.append(self._loop.create_task(self._read_output(), name="penstock-child-output"))
        threading.Thread(target=self._watch, name=f"penstock-child-{self.pid}", daemon=True).start()

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        """Start the process on this thread: the system kills it when the thread that started it ends."""
        options = self._options
        environment = options.make_environment(os.environ, self._folder)
        _check_interpreter(options.command[0], environment)
        config = {
            "parent": os.getpid(),
            "paths": self._paths(),
            "dir": options.dir,
            "importMode": options.import_mode,
            "queueNames": options.queue_names,
            "unknownFields": options.unknown_fields,
            "liftsLimits": options.lifts_limits,
            "cpuS": options.cpu_s,
            "files": options.files,
            "memoryMb": 2 * options.memory_mb,  # a handler that allocates faster than the pool looks gets MemoryError
        }
        text = msgspec.json.encode(config).decode()
        return subprocess.Popen(  # noqa: S603 the command is a setting
            lower_priority([*options.command, "-m", "penstock.host", str(theirs.fileno()), text], options.cpu_shares),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            env=environment,
            start_new_session=True,
        )

    def _paths(self) -> list[str]:
        """Return where the child looks for modules after its own places; another interpreter has other packages."""
        paths = [path or os.getcwd() for path in search_path(Path(self._options.dir))]
        if self._options.command == (sys.executable,):
            return paths
        prefixes = tuple({sys.prefix, sys.base_prefix})
        return [path for path in paths if not path.startswith(prefixes)]

    # One task

    async def run(self, task: Task, channel: Channel) -> Any:
        """Run a task and return its result; raises what its handler raised, or RunnerLost."""
        channel.on_inspect(self._look)
        self.task = task
        self._has_end = False
        self.ready.clear()
        self._frames.clear()
        try:
            return await RemoteRun(task, channel, self).run()
        except RunnerLost as problem:
            raise await self._explain(problem) from None
        finally:
            self.jobs += 1
            self.task = None
            self.last_heartbeat = self._loop.time()
            self._frames.clear()
            if not self._has_end:
                self.send(Cancel("the attempt has ended"))

    async def _explain(self, problem: RunnerLost) -> RunnerLost:
        """Return a lost child's error with the reason, once its exit code is known."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXPLAIN_TIMEOUT_S):
                await self.ended.wait()
        return RunnerLost(f"{problem} ({self.describe_end()})")

    def describe_end(self) -> str:
        """Return why the child has ended: the reason it was killed for, or its exit code and its last output."""
        if self.killed_for is not None and self.exit_code in (None, -signal.SIGKILL):  # else it ended before the kill
            return self.killed_for
        end = "it still runs" if self.exit_code is None else _describe_exit(self.exit_code)
        return f"{end}; its last output: {self.output.last_line}" if self.output.last_line else end

    def send(self, frame: WorkerFrame) -> None:
        if not self.ended.is_set() and self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode_frame(frame) + b"\n")

    _writer: asyncio.StreamWriter | None = None

    async def receive(self) -> HandlerFrame | None:
        while not self._frames:
            if self.ended.is_set():
                return None
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._frames.popleft()
        if isinstance(frame, ValueError):
            raise frame
        return frame

    # Frames and output

    async def _read(self) -> None:
        limit = max_frame_bytes(self._options.lifts_limits)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._ours, limit=limit)
        try:
            while True:
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    break
                self._take(decode_handler_frame(line))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except ValueError as problem:  # a frame that is too long, is no JSON, or is none of ours
            if self.task is not None:
                self._push(problem)
            self.kill(f"it sent a bad frame: {problem}")
            return
        # The child has ended, or closed its end only: then it is of no use.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_TIMEOUT_S):
                await self.ended.wait()
        self.kill("it closed its connection")

    def _take(self, frame: HandlerFrame) -> None:
        match frame:
            case Ready(rss_mb):
                self.rss_mb = rss_mb
                self.ready.set()
            case Heartbeat(rss_mb):
                self.rss_mb, self.last_heartbeat = rss_mb, self._loop.time()
            case Inspected(id):
                waiting = self._inspections.pop(id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(frame)
            case _ if self.task is not None:
                self._has_end = self._has_end or isinstance(frame, Done | Failed)
                self._push(frame)

    def _push(self, frame: HandlerFrame | ValueError) -> None:
        self._frames.append(frame)
        self._arrived.set()

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        reader = asyncio.StreamReader(limit=2**16)
        transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._process.stdout
        )
        try:
            while True:
                try:
                    async with asyncio.timeout(self.output.report_in_s):
                        data = await reader.read(2**16)
                except TimeoutError:
                    self.output.report_dropped(self.pid)
                    continue
                if not data:
                    break
                self.output.take(data, self.pid, self.task)
        finally:
            self.output.flush(self.pid, self.task)
            transport.close()

    # Health

    def measure_mb(self) -> float:
        """Return the memory that the child uses now, in MB."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                return int(file.read().split()[1]) * _PAGE_MB
        except (OSError, IndexError, ValueError):
            return self.rss_mb

    def ping(self) -> None:
        self.send(Ping())

    async def _look(self) -> HandlerState:
        found = await self.inspect()
        stack = found.stack if found is not None else ""
        return HandlerState(stack, round(self.measure_mb(), 1), self.output.last_line)

    async def inspect(self) -> Inspected | None:
        """Return the stack of the running handler; None if the child does not answer."""
        id = max(self._inspections, default=0) + 1
        waiting: asyncio.Future[Inspected] = self._loop.create_future()
        self._inspections[id] = waiting
        self.send(Inspect(id))
        try:
            async with asyncio.timeout(INSPECT_TIMEOUT_S):
                return await waiting
        except TimeoutError:
            return None
        finally:
            self._inspections.pop(id, None)

    # The end

    def _watch(self) -> None:
        """Wait for the end of the process; kill what it has started before its id can be used again."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._signal(signal.SIGKILL)
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._on_end, code)

    def _on_end(self, code: int) -> None:
        self.exit_code = code
        self.ended.set()
        self.ready.clear()
        self._arrived.set()

    def kill(self, reason: str) -> None:
        """Kill the child and all processes of its group."""
        if not self.ended.is_set():
            self.killed_for = self.killed_for or reason
            self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask the child to end: SIGTERM to its group."""
        if not self.ended.is_set():
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def wait_until_ready(self, timeout: float) -> bool:
        """Return whether the child takes tasks, at the latest after `timeout` seconds."""
        waits = [self._loop.create_task(self.ready.wait()), self._loop.create_task(self.ended.wait())]
        try:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self.ready.is_set() and not self.ended.is_set()

    async def close(self) -> None:
        """Wait for the end of a child that was killed or has ended, and remove what it leaves."""
        await self.ended.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        else:
            self._ours.close()
        for waiting in self._inspections.values():
            waiting.cancel()
        await asyncio.to_thread(shutil.rmtree, self._folder, True)


def _check_interpreter(program: str, environment: Mapping[str, str]) -> None:
    """Raise PythonMissing if the system would not find a program. `nice`, which starts it, only ends with 127."""
    if shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
        where = "does not exist, or cannot be executed" if os.path.dirname(program) else "is not in a folder of PATH"
        raise PythonMissing(
            f"a child process of the runner cannot be started: its interpreter {shorten(program, 300)} {where}; set "
            "process_python to the command of an installed Python"
        )


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"
