"""The log of a command, on stderr: Penstock's own, what handlers say, and what their code and its libraries log."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ..telemetry.logging import LOGGER, Level, configure, unchanged

if TYPE_CHECKING:  # `--help` does without them
    from ..settings import Settings

ROOT = ""


def logged() -> AbstractContextManager[None]:
    """Once a command has ended, logging is as it was."""
    return unchanged(ROOT, LOGGER)


def log_as(settings: Settings, chatty: bool) -> None:
    """From the level that was set on; if none was, from `info` on for a worker and for a person at a terminal."""
    from ..core.redaction import Redactor

    usual: Level = "info" if chatty or sys.stderr.isatty() else "warning"
    level = settings.log if "log" in settings.sources else usual
    configure(level, settings.log_format, logger=ROOT, redactor=Redactor(settings.redact))
