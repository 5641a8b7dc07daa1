"""Penstock's own log, and what handlers log, as plain lines on stderr."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .mistakes import UsageMistake, warn


class _Stderr(logging.Handler):
    """One line each. The stream is looked up when written to: a live picture replaces it for a while."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        parts = (getattr(record, "run", None), getattr(record, "step", None))
        place = " ".join(str(part) for part in parts if part)
        warn(f"{level}{f'{place}: ' if place else ''}{self.format(record)}")


@contextmanager
def logged(chatty: bool) -> Iterator[None]:
    """Shows the log while a command runs, from PENSTOCK_LOG on, or from `info` on for a worker and for a person."""
    log = logging.getLogger("penstock")
    before = log.level, log.propagate, log.handlers[:]
    log.setLevel(_level("info" if chatty or sys.stderr.isatty() else "warning"))
    log.propagate, log.handlers = False, [_Stderr()]
    try:
        yield
    finally:
        log.level, log.propagate, log.handlers = before


def _level(default: str) -> str:
    level = os.environ.get("PENSTOCK_LOG") or default
    if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise UsageMistake(f"PENSTOCK_LOG={level}: write debug, info, warning or error")
    return level.upper()
