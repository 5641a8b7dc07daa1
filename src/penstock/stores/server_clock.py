"""The clock of a server, kept from its replies: see docs/decisions/0011-time.md."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ..core.errors import StoreError

log = logging.getLogger("penstock")

MAX_AGE_MS = 5000  # without a reply for this long, the store asks for the time
JUMP_MS = 1000  # a larger correction is logged

# Where there is one, use the clock that also runs while the machine is suspended.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None) or getattr(time, "CLOCK_MONOTONIC", None)


def elapsed_ms() -> int:
    """Return milliseconds since some moment in the past; setting the machine's clock does not change them."""
    return (time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)) // 1_000_000


class ServerClock:
    """Shows the server's time: `elapsed_ms` plus an offset that every reply with a time corrects."""

    def __init__(self, ask: Callable[[], Awaitable[int]]) -> None:
        self._ask = ask
        self._offset: int | None = None
        self._noted_ms = 0
        self._task: asyncio.Task[None] | None = None

    def now_ms(self) -> int:
        assert self._offset is not None, "the store is not open"
        return elapsed_ms() + self._offset

    def note(self, server_ms: int, sent_ms: int) -> None:
        """Correct the offset by a reply: the server read its clock after the request was sent and before now.

        The offset moves only as far as that requires, so slow replies do not disturb it. The first one is the largest
        possible: a delay must not end early.
        """
        received_ms = self._noted_ms = elapsed_ms()
        least, most = server_ms - received_ms, server_ms - sent_ms
        offset = self._offset
        if offset is None:
            self._offset = most
        elif not least <= offset <= most:
            self._offset = least if offset < least else most
            if abs(self._offset - offset) > JUMP_MS:
                log.warning("the clock of the store jumped by %.1f s", (self._offset - offset) / 1000)

    async def start(self) -> None:
        """Ask for the time, and keep it fresh until `stop`."""
        await self._refresh()
        self._task = asyncio.create_task(self._keep_fresh(), name="penstock-clock")

    async def stop(self) -> None:
        """Stop asking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _refresh(self) -> None:
        sent_ms = elapsed_ms()
        self.note(await self._ask(), sent_ms)

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(MAX_AGE_MS / 1000)
            if elapsed_ms() - self._noted_ms >= MAX_AGE_MS:
                with suppress(StoreError):  # during an outage the offset stays valid
                    await self._refresh()
