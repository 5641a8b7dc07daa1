"""Python processes for the fault suites, forked from one that has imported the package.

The suites start hundreds of processes, and most of what each does is to import. `start` takes a module of `faultkit`, as
`python -m` does. Each process is real: it has its own pid, and dies of SIGKILL alone. Where the system has no pidfd (only
Linux has), the processes are started in the usual way.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from functools import cache
from typing import IO, Any

from .config import FAULTS_DIR

# What takes long to import, and reads no environment while it does.
PRELOADED = (
    "argparse", "asyncpg", "hiredis", "redis.asyncio", "penstock", "penstock.testing.clock", "penstock.testing.history",
    "penstock.testing.faults", "penstock.testing.threadless_sqlite", "penstock.stores.postgres", "penstock.stores.redis",
    "penstock.stores.sqlite",
)  # fmt: skip
HAS_PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")
MAX_REQUEST_BYTES = 1 << 20


class ForkedProcess:
    """A process of the server. It has the methods of Popen that the suites use; its exit code is not known."""

    def __init__(self, pid: int, stdin: int, stdout: int | None) -> None:
        self.pid = pid
        self.stdin: IO[str] = os.fdopen(stdin, "w", buffering=1)
        self.stdout: IO[str] | None = os.fdopen(stdout) if stdout is not None else None
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return None while it runs."""
        return 0 if select.select([self._pidfd], [], [], 0)[0] else None

    def wait(self, timeout: float | None = None) -> int:
        if not select.select([self._pidfd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return 0

    def send_signal(self, number: int) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            pass  # it has ended

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        try:
            self.stdin.close()
        except BrokenPipeError:
            pass
        text = self.stdout.read() if self.stdout is not None and not self.stdout.closed else ""
        self.wait(timeout)
        if self.stdout is not None:
            self.stdout.close()
        return text, None

    def __del__(self) -> None:
        os.close(self._pidfd)


class ForkServer:
    """The process that forks, from the side of the tests."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "faultkit.fork_server", str(theirs.fileno())]
        env = {**os.environ, "PYTHONHASHSEED": "0"}  # the order of sets of strings must not vary
        self._process = subprocess.Popen(
            command, cwd=FAULTS_DIR, env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()

    def start(
        self, module: str, arguments: list[str], env: dict[str, str], *, has_stdout: bool, stderr: int
    ) -> ForkedProcess:
        their_stdin, stdin = os.pipe()
        stdout, their_stdout = os.pipe() if has_stdout else (None, os.open(os.devnull, os.O_WRONLY))
        request = json.dumps([module, arguments, env]).encode()
        socket.send_fds(self._socket, [request], [their_stdin, their_stdout, stderr])
        os.close(their_stdin)
        os.close(their_stdout)
        return ForkedProcess(int(self._socket.recv(100)), stdin, stdout)


@cache
def _server() -> ForkServer:
    return ForkServer()


def start(
    module: str,
    *arguments: str,
    env: dict[str, str] | None = None,
    has_stdout: bool = True,
    stderr: IO[Any] | None = None,
) -> Any:
    """Start `python -m faultkit.<module>` with a pipe as its standard input; return a Popen or what is like one."""
    variables = {**os.environ, "PYTHONHASHSEED": "0", **(env or {})}
    if HAS_PIDFD:
        return _server().start(
            module, list(arguments), variables, has_stdout=has_stdout, stderr=2 if stderr is None else stderr.fileno()
        )
    return subprocess.Popen(
        [sys.executable, "-m", f"faultkit.{module}", *arguments], cwd=FAULTS_DIR, env=variables, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if has_stdout else subprocess.DEVNULL, stderr=stderr, text=True, bufsize=1,
    )  # fmt: skip


def run(module: str, *arguments: str) -> Any:
    """Run `python -m faultkit.<module>` to its end and return the JSON that it prints."""
    text, _ = start(module, *arguments).communicate()
    assert text, f"faultkit.{module} {' '.join(arguments)} failed, see its standard error"
    return json.loads(text)


def serve(connection: socket.socket) -> None:
    """Fork for each request, until the tests close the connection."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended processes leave at once
    gc.collect()
    gc.freeze()
    while True:
        request, fds, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            connection.close()
            _become(fds, *json.loads(request))
        for fd in fds:
            os.close(fd)
        connection.send(str(pid).encode())


def _become(fds: list[int], module: str, arguments: list[str], env: dict[str, str]) -> None:
    """Run a module as `python -m` does, and end the process."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False))
        os.environ.clear()
        os.environ.update(env)
        sys.argv = [module, *arguments]
        runpy.run_module(f"faultkit.{module}", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    serve(socket.socket(fileno=int(sys.argv[1])))
