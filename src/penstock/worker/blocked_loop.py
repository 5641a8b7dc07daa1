"""Noticing that something keeps the event loop to itself: everyone else on it stands still meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from types import FrameType

from ..core.durations import format_ms

log = logging.getLogger("penstock.worker")

LONG = 2.0  # seconds without an answer that are worth a word
_OURS = tuple(os.path.dirname(os.path.dirname(file)) + os.sep for file in (__file__, asyncio.__file__))


class LoopWatch:
    """Asks the loop for a sign of life; made on the loop's thread, asked from another one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._asked: float | None = None
        self._told = False

    def look(self) -> None:
        """Warns once for each time the loop has not answered for long; asks it anew."""
        now = self._loop.time()
        asked = self._asked
        if asked is None:
            self._asked = now
            self._told = False
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # it is closed
                pass
        elif now - asked >= LONG and not self._told:
            self._told = True
            log.warning(
                "the event loop has been blocked for %s by %s: make its handler `def`, which runs on a thread, or call "
                "what blocks with `await asyncio.to_thread(…)`",
                format_ms((now - asked) * 1000),
                self._culprit(),
            )

    def _answer(self) -> None:
        self._asked = None

    def _culprit(self) -> str:
        """The innermost line of the user's own code."""
        frame: FrameType | None = sys._current_frames().get(self._thread)
        found = frame
        while frame is not None:
            if not frame.f_code.co_filename.startswith(_OURS):
                found = frame
                break
            frame = frame.f_back
        if found is None:
            return "something"
        code = found.f_code
        return f"{code.co_name} ({code.co_filename}:{found.f_lineno})"
