"""What another process prints, as lines of the worker's log."""

from __future__ import annotations

import logging
import select
import threading
import time
from typing import IO

from ..ports.runner import Task

log = logging.getLogger("penstock.runner")
MAX_LINE_BYTES = 4096
MAX_LINES_PER_S = 200
WINDOW_S = 1.0


class OutputLog:
    """Splits output into lines and logs them. Long lines are cut, and lines beyond a rate are counted, not logged."""

    def __init__(self, name: str = "child") -> None:
        self._name = name
        self._rest = b""
        self._is_cut = False  # the rest of a long line is dropped
        self._window = 0.0
        self._count = 0
        self._dropped = 0
        self.last_line = ""

    def take(self, data: bytes, pid: int, task: Task | None) -> None:
        """Take a piece of output, at most 64 KB."""
        *lines, rest = (self._rest + data).split(b"\n")
        if self._is_cut and lines:
            self._is_cut = False
            lines = lines[1:]
        for line in lines:
            self._log(line, pid, task)
        if self._is_cut:
            rest = b""
        elif len(rest) > MAX_LINE_BYTES:
            self._log(rest, pid, task)
            rest, self._is_cut = b"", True
        self._rest = rest

    def flush(self, pid: int, task: Task | None) -> None:
        """Log what has no line break, and how many lines were dropped."""
        if self._rest:
            self._log(self._rest, pid, task)
            self._rest = b""
        self.report_dropped(pid)

    @property
    def report_in_s(self) -> float | None:
        """In how many seconds `report_dropped` is due if nothing else is printed; None if no line was dropped."""
        return max(self._window + WINDOW_S - time.monotonic(), 0.0) if self._dropped else None

    def report_dropped(self, pid: int) -> None:
        """Log how many lines were dropped since the last report."""
        if self._dropped:
            log.warning("%s %d printed %d lines more than are logged", self._name, pid, self._dropped)
            self._dropped = 0

    def _log(self, line: bytes, pid: int, task: Task | None) -> None:
        text = line[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip()
        if not text:
            return
        self.last_line = text
        now = time.monotonic()
        if now - self._window >= WINDOW_S:
            self.report_dropped(pid)
            self._window, self._count = now, 0
        self._count += 1
        if self._count > MAX_LINES_PER_S:
            self._dropped += 1
            return
        job = task.job if task is not None else "-"
        log.info("%s %d (%s): %s", self._name, pid, job, text, extra={"pid": pid, "job": job})


class OutputThread(threading.Thread):
    """Logs what a process prints until it has closed its output."""

    def __init__(self, name: str, pid: int, pipe: IO[bytes]) -> None:
        super().__init__(name=f"penstock-output-{pid}", daemon=True)
        self._pid = pid
        self._pipe = pipe
        self._output = OutputLog(name)

    def run(self) -> None:
        readable = select.poll()
        readable.register(self._pipe)
        with self._pipe:
            while True:
                pause_s = self._output.report_in_s
                if not readable.poll(None if pause_s is None else pause_s * 1000):
                    self._output.report_dropped(self._pid)
                elif data := self._pipe.read(2**16):
                    self._output.take(data, self._pid, None)
                else:
                    break
        self._output.flush(self._pid, None)
