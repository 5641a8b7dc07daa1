"""Python processes for the tests, forked from one that has imported the package.

The tests start hundreds of processes, and most of what each does is to import. `start` takes what follows `python` on a command
line, or a command line of `penstock`. Each process is real: it has its own pid, and dies of SIGKILL alone. Only Linux has the
pidfd that this needs: elsewhere `HAS_PIDFD` is false, and the caller starts processes in the usual way.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from functools import cache
from pathlib import Path
from typing import IO

# What takes long to import, and reads no environment while it does.
PRELOADED = (
    "argparse", "asyncpg", "hiredis", "redis.asyncio", "penstock", "penstock.cli.argv", "penstock.cli.command_table",
    "penstock.app.app", "penstock.app.dags", "penstock.app.diagnosis", "penstock.app.entities", "penstock.app.jobs",
    "penstock.app.outbox", "penstock.app.preflight", "penstock.app.queues", "penstock.app.run_actions", "penstock.app.sync",
    "penstock.app.transactions", "penstock.app.waits", "penstock.app.webhooks", "penstock.app.workers",
    "penstock.cli.commands.run", "penstock.cli.commands.runs", "penstock.dags.engine", "penstock.entities.engine",
    "penstock.flows.delivery", "penstock.cli.errors", "penstock.cli.session",
    "penstock.testing.clock", "penstock.testing.history", "penstock.testing.faults", "penstock.testing.threadless_sqlite",
    "penstock.stores.postgres", "penstock.stores.redis", "penstock.stores.sqlite", "rich.live",
)  # fmt: skip
HAS_PIDFD = hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")
MAX_REQUEST_BYTES = 1 << 20


class ForkedProcess:
    """A process of the server. It has the methods of Popen that the tests use; its exit code is not known."""

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
        env = {**os.environ, "PYTHONHASHSEED": "0"}  # the order of sets of strings must not vary
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=env, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()

    def start(
        self, command: list[str], env: dict[str, str], folder: Path, *, has_stdout: bool, stderr: int | None
    ) -> ForkedProcess:
        their_stdin, stdin = os.pipe()
        stdout, their_stdout = os.pipe() if has_stdout else (None, os.open(os.devnull, os.O_WRONLY))
        request = json.dumps([command, env, str(folder)]).encode()
        fds = [their_stdin, their_stdout, their_stdout if stderr is None else stderr]
        socket.send_fds(self._socket, [request], fds)
        os.close(their_stdin)
        os.close(their_stdout)
        return ForkedProcess(int(self._socket.recv(100)), stdin, stdout)


@cache
def server() -> ForkServer:
    """Return the server of this process."""
    return ForkServer()


def start(
    command: list[str], env: dict[str, str], folder: Path, *, has_stdout: bool = True, stderr: int | None = None
) -> ForkedProcess:
    """Start `python *command`, or `penstock …`, in a folder. `stderr` is a descriptor; without one, it goes to the output."""
    return server().start(command, env, folder, has_stdout=has_stdout, stderr=stderr)


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


def _become(fds: list[int], command: list[str], env: dict[str, str], folder: str) -> None:
    """Do what Python does with a command line, and end the process."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
            2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False
        )
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        _execute(command)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # wait for threads, as Python does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _execute(command: list[str]) -> None:
    first, rest = command[0], command[1:]
    if first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "penstock":
        sys.argv = command
        from penstock.cli import main

        sys.exit(main())
    else:
        sys.argv, sys.path[0] = command, str(Path(first).resolve().parent)
        module = types.ModuleType("__main__")
        module.__file__ = first
        sys.modules["__main__"] = module
        exec(compile(Path(first).read_text("utf-8"), first, "exec"), vars(module))


if __name__ == "__main__":
    for name in PRELOADED:
        importlib.import_module(name)
    serve(socket.socket(fileno=int(sys.argv[1])))
