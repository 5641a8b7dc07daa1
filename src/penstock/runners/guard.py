"""Kills the processes of a runner when the worker is killed: see guard_program.py."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading

from . import guard_program


class Guard:
    """The process that kills the children if the worker is killed; and the folder of their temporary files."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="penstock-")
        self._lock = threading.Lock()
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", os.fspath(guard_program.__file__), self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def add(self, pid: int) -> None:
        self._write(f"+{pid}\n")

    def remove(self, pid: int) -> None:
        self._write(f"-{pid}\n")

    def _write(self, line: str) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with self._lock, contextlib.suppress(OSError):  # it was killed: the system still kills the children themselves
            if not pipe.closed:
                os.write(pipe.fileno(), line.encode())

    def close(self) -> None:
        """Let it end: it removes the folder."""
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.close()
        self._process.wait()
