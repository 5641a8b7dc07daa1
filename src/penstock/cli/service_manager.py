"""Reports to systemd that a process is ready, lives and stops. Without systemd nothing happens."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
SOCKET_VARIABLE, INTERVAL_VARIABLE = "NOTIFY_SOCKET", "WATCHDOG_USEC"


def notify(state: str) -> None:
    """Send a state to the service manager, if one asked for it (`Type=notify`)."""
    address = os.environ.get(SOCKET_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


class ServiceReports:
    """Reports to the service manager from `ready` on that the event loop lives (`WatchdogSec=`)."""

    def __init__(self) -> None:
        self._alive: asyncio.Task[None] | None = None

    def ready(self) -> None:
        """Report that the service has started."""
        notify(READY)
        usec = os.environ.get(INTERVAL_VARIABLE, "")
        if usec.isdecimal() and int(usec):
            self._alive = asyncio.create_task(_report_alive(int(usec) / 2e6), name="penstock-watchdog")

    def close(self) -> None:
        """Report nothing more."""
        if self._alive is not None:
            self._alive.cancel()


async def _report_alive(interval_s: float) -> None:
    while True:
        notify(ALIVE)
        await asyncio.sleep(interval_s)
