"""Live output: logs, progress and partials of a running handler, sent in batches. A full buffer drops the oldest."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ..core.errors import PenstockError

MAX_BUFFERED_EVENTS = 1000
FLUSH_INTERVAL_S = 0.03  # a person sees no delay, and a handler shorter than this costs no extra commit


class OutputBatch(NamedTuple):
    """What was written since the last batch: events, the latest progress, and log lines as text."""

    events: list[bytes]
    progress: bytes | None
    logs: list[str]


Send = Callable[[OutputBatch], Awaitable[None]]


class LiveOutput:
    """A buffer between a handler, on any thread, and the stream."""

    def __init__(self, send: Send, encode_drop_notice: Callable[[int], bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._encode_drop_notice = encode_drop_notice
        self._loop = loop
        self._events: deque[bytes] = deque()
        self._progress: bytes | None = None
        self._logs: deque[str] = deque(maxlen=MAX_BUFFERED_EVENTS)
        self._dropped = 0
        self._drained = False
        self._timer: asyncio.TimerHandle | None = None
        self._flight: asyncio.Task[None] | None = None
        self._lock = threading.Lock()

    def add(self, event: bytes, progress: bytes | None = None, line: str | None = None) -> None:
        """Buffer an event; it is sent within FLUSH_INTERVAL_S."""
        with self._lock:
            self._events.append(event)
            if line is not None:
                self._logs.append(line)
            if progress is not None:
                self._progress = progress
            if len(self._events) > MAX_BUFFERED_EVENTS:
                self._events.popleft()
                self._dropped += 1
        # The first event may come from a handler's thread, so the loop's own thread is not known here.
        if asyncio._get_running_loop() is self._loop:
            self._arm()
        else:
            self._loop.call_soon_threadsafe(self._arm)

    async def drain(self) -> OutputBatch:
        """Stop sending and return the rest, for the attempt's own commit."""
        self._drained = True
        if self._timer is not None:
            self._timer.cancel()
        if self._flight is not None:
            await asyncio.wait((self._flight,))
        return self._take()

    def _arm(self) -> None:
        if self._timer is None and self._flight is None and self._events and not self._drained:
            self._timer = self._loop.call_later(FLUSH_INTERVAL_S, self._launch)

    def _launch(self) -> None:
        self._timer = None
        self._flight = self._loop.create_task(self._flush(), name="penstock-live-output")

    async def _flush(self) -> None:
        try:
            await self._send(self._take())
        except PenstockError:
            pass  # the attempt's own commit will fail the same way and report it
        finally:
            self._flight = None
            self._arm()

    def _take(self) -> OutputBatch:
        with self._lock:
            events = list(self._events)
            self._events.clear()
            if self._dropped:
                events.insert(0, self._encode_drop_notice(self._dropped))
                self._dropped = 0
            progress, self._progress = self._progress, None
            logs = list(self._logs)
            self._logs.clear()
        return OutputBatch(events, progress, logs)
