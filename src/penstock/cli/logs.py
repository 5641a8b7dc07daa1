"""Logging of a command, on stderr: Penstock's own messages, those of handlers, and those of their libraries."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ..telemetry.logging import LOGGER, Level, configure, restore_loggers

if TYPE_CHECKING:  # `--help` does without them
    from ..settings import Settings

ROOT = ""


def restore_logging() -> AbstractContextManager[None]:
    """Restore the logging configuration when the command ends."""
    return restore_loggers(ROOT, LOGGER)


def configure_logging(settings: Settings, verbose: bool) -> None:
    """Log from the configured level on; by default `info` for workers and on a terminal, else `warning`."""
    from ..core.redaction import Redactor

    default: Level = "info" if verbose or sys.stderr.isatty() else "warning"
    level = settings.log if "log" in settings.sources else default
    configure(level, settings.log_format, logger=ROOT, redactor=Redactor(settings.redact))
