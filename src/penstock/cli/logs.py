"""Penstock's own log, and what handlers log, as lines on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .mistakes import warn

if TYPE_CHECKING:  # `--help` does without them
    from ..settings import Settings

LOGGER = "penstock"


class _Stderr(logging.Handler):
    """One line each. The stream is looked up when written to: a live picture replaces it for a while."""

    as_json = False

    def emit(self, record: logging.LogRecord) -> None:
        about = {key: getattr(record, key) for key in ("run", "step", "job", "attempt") if getattr(record, key, None)}
        text, level = self.format(record), record.levelname.lower()
        if self.as_json:
            warn(json.dumps({"level": level, "logger": record.name, "msg": text, **about}))
            return
        place = " ".join(str(about[key]) for key in ("run", "step") if key in about)
        warn(f"{'' if level == 'info' else f'{level}: '}{f'{place}: ' if place else ''}{text}")


@contextmanager
def logged() -> Iterator[None]:
    """Shows the log while a command runs; afterwards it is as it was."""
    log = logging.getLogger(LOGGER)
    before = log.level, log.propagate, log.handlers[:]
    log.propagate, log.handlers = False, [_Stderr()]
    log.setLevel("WARNING")
    try:
        yield
    finally:
        log.level, log.propagate, log.handlers = before


def log_as(settings: Settings, chatty: bool) -> None:
    """From the level that was set on; if none was, from `info` on for a worker and for a person at a terminal."""
    log = logging.getLogger(LOGGER)
    told = "log" in settings.sources
    log.setLevel((settings.log if told else "info" if chatty or sys.stderr.isatty() else "warning").upper())
    for handler in log.handlers:
        if isinstance(handler, _Stderr):
            handler.as_json = settings.log_format == "json"
