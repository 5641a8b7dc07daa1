"""What a child prints, as lines of the worker's log."""

from __future__ import annotations

import logging
import time

from ...ports.runner import Task

log = logging.getLogger("penstock.runner")
MAX_LINE_BYTES = 4096
MAX_LINES_PER_S = 200


class OutputLog:
    """Splits output into lines and logs them. Long lines are cut, and lines beyond a rate are counted, not logged."""

    def __init__(self) -> None:
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
        """Log what has no line break."""
        if self._rest:
            self._log(self._rest, pid, task)
            self._rest = b""

    def _log(self, line: bytes, pid: int, task: Task | None) -> None:
        text = line[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip()
        if not text:
            return
        self.last_line = text
        now = time.monotonic()
        if now - self._window >= 1.0:
            if self._dropped:
                log.warning("child %d printed %d lines more than are logged", pid, self._dropped)
            self._window, self._count, self._dropped = now, 0, 0
        self._count += 1
        if self._count > MAX_LINES_PER_S:
            self._dropped += 1
            return
        job = task.job if task is not None else "-"
        log.info("child %d (%s): %s", pid, job, text, extra={"pid": pid, "job": job})
