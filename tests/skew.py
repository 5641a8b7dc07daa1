"""A machine whose clock is wrong, and the time of a server as the server itself reports it."""

from __future__ import annotations

import os
from collections.abc import Callable

import postgres_server
import redis_server
from penstock.core.clock import SystemClock

TOLERANCE_MS = 5000  # a slow machine; the smallest skew is four times that
IS_FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
OFFSETS_MS = (-3_600_000, -20_000, 20_000, 3_600_000) if IS_FULL else (-20_000, 3_600_000)

ReadTime = Callable[[], int]


class SkewedClock(SystemClock):
    """The clock of a machine that is ahead of the others, or behind."""

    def __init__(self, offset_ms: int) -> None:
        self.offset_ms = offset_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.offset_ms


def redis_now(server: redis_server.Server | None = None) -> int:
    """Ask a Redis for its time."""
    reply = (server or redis_server.server()).command("TIME").split(b"\r\n")
    return int(reply[2]) * 1000 + int(reply[4]) // 1000


def postgres_now(server: postgres_server.Server | None = None) -> int:
    """Ask a Postgres for its time."""
    return int((server or postgres_server.server()).ask("SELECT extract(epoch FROM clock_timestamp()) * 1000"))


def assert_in(due: int | None, seconds: float, server_now: ReadTime) -> None:
    """Assert that a stored time is so many seconds from now, by the server's clock."""
    assert due is not None
    off = due - server_now() - seconds * 1000
    assert abs(off) < TOLERANCE_MS, f"it is {off / 1000:.1f} s off"
