"""Warns when a handler blocks the event loop: every other handler on it stands still."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from types import FrameType

from ..core.durations import format_ms

log = logging.getLogger("penstock.worker")

BLOCKED_AFTER_S = 2.0
_WORKER_DIR = os.path.dirname(__file__) + os.sep
_LIBRARY_DIRS = tuple(os.path.dirname(os.path.dirname(file)) + os.sep for file in (__file__, asyncio.__file__))


class BlockedLoopDetector:
    """Pings the event loop from another thread. Create it on the loop's own thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._pinged_at: float | None = None
        self._has_warned = False

    def check(self) -> None:
        """Ping the loop, or warn once if it has not answered the last ping for too long."""
        now = self._loop.time()
        pinged_at = self._pinged_at
        if pinged_at is None:
            self._pinged_at = now
            self._has_warned = False
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # it is closed
                pass
        elif now - pinged_at >= BLOCKED_AFTER_S and not self._has_warned:
            self._has_warned = True
            log.warning(
                "the event loop has been blocked for %s by %s; every other handler and every timeout waits; make the "
                "handler `def`, so that it runs on a thread, or call the blocking code with "
                "`await asyncio.to_thread(…)`",
                format_ms((now - pinged_at) * 1000),
                self._culprit(),
            )

    def _answer(self) -> None:
        self._pinged_at = None

    def _culprit(self) -> str:
        """Return the innermost line of the user's code, and the handler that called it."""
        frame: FrameType | None = sys._current_frames().get(self._thread)
        own: list[FrameType] = []
        while frame is not None and not frame.f_code.co_filename.startswith(_WORKER_DIR):
            if not frame.f_code.co_filename.startswith(_LIBRARY_DIRS):
                own.append(frame)
            frame = frame.f_back
        if not own:
            return "an unknown function"
        line, handler = own[0], own[-1] if frame is not None else own[0]
        called = f", called by the handler {handler.f_code.co_name}" if handler is not line else ""
        return f"{line.f_code.co_name} ({line.f_code.co_filename}:{line.f_lineno}){called}"
