"""What a running handler says meanwhile: logs, progress, partial output. In batches, bounded, oldest dropped first."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ..core.errors import PenstockError

MAX_FRAMES = 1000
PAUSE = 0.03  # seconds: a person sees it at once, and a handler shorter than this costs no extra commit


class Batch(NamedTuple):
    """What was said since the last one: events, the latest progress, and log lines as text."""

    frames: list[bytes]
    progress: bytes | None
    logs: list[str]


NOTHING = Batch([], None, [])
Send = Callable[[Batch], Awaitable[None]]


class Frames:
    """A buffer between a handler, on whatever thread it runs, and the stream."""

    def __init__(self, send: Send, dropped: Callable[[int], bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._drop_notice = dropped
        self._loop = loop
        self._frames: deque[bytes] = deque()
        self._progress: bytes | None = None
        self._logs: deque[str] = deque(maxlen=MAX_FRAMES)
        self._dropped = 0
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None
        self._flight: asyncio.Task[None] | None = None
        self._lock = threading.Lock()

    def add(self, body: bytes, progress: bytes | None = None, line: str | None = None) -> None:
        with self._lock:
            self._frames.append(body)
            if line is not None:
                self._logs.append(line)
            if progress is not None:
                self._progress = progress
            if len(self._frames) > MAX_FRAMES:
                self._frames.popleft()
                self._dropped += 1
        # The first frame may come from a handler's thread, so that which thread the loop has is not known from here.
        if asyncio._get_running_loop() is self._loop:
            self._arm()
        else:
            self._loop.call_soon_threadsafe(self._arm)

    async def rest(self) -> Batch:
        """Ends the buffer: what has not been sent goes with the attempt's own commit."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._flight is not None:
            await asyncio.wait((self._flight,))
        return self._take()

    def _arm(self) -> None:
        if self._timer is None and self._flight is None and self._frames and not self._ended:
            self._timer = self._loop.call_later(PAUSE, self._launch)

    def _launch(self) -> None:
        self._timer = None
        self._flight = self._loop.create_task(self._flush(), name="penstock-frames")

    async def _flush(self) -> None:
        try:
            await self._send(self._take())
        except PenstockError:
            pass  # the attempt's own commit will meet the same trouble and report it
        finally:
            self._flight = None
            self._arm()

    def _take(self) -> Batch:
        with self._lock:
            bodies = list(self._frames)
            self._frames.clear()
            if self._dropped:
                bodies.insert(0, self._drop_notice(self._dropped))
                self._dropped = 0
            progress, self._progress = self._progress, None
            logs = list(self._logs)
            self._logs.clear()
        return Batch(bodies, progress, logs)
