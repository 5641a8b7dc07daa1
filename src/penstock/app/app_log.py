"""`app.log`: log lines of an application outside of handlers, with the methods and the redaction of `ctx.log`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..context.context import Log
from ..core.events import EventBodies
from ..core.payload import pack, unpack
from ..telemetry.logging import LOGGER
from ..worker.live_log import make_loggable

log = logging.getLogger(f"{LOGGER}.app")


class AppLogChannel:
    """Passes lines to Python's logging. They belong to no run, so no event is written."""

    def __init__(self, bodies: EventBodies) -> None:
        self._bodies = bodies

    def check(self) -> None:
        """An App has no attempt that may have ended."""

    def log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        """Log a line as `penstock.app`, its secrets hidden."""
        number = getattr(logging, level.upper())
        if not log.isEnabledFor(number):
            return
        text, fields = make_loggable(message, fields)
        extra: dict[str, Any] = {"redacted": True}
        if fields:
            extra["fields"] = self._bodies.redact_value(unpack(pack(fields)))
        log.log(number, "%s", self._bodies.redact_text(text), extra=extra)


def make_app_log(bodies: EventBodies) -> Log:
    """Return the log of an App."""
    return Log(AppLogChannel(bodies))
