"""Wake-ups between the processes that have one file open: each tells the others, after a commit, to look again.

They are a hint. A process that receives none, because the system has no such sockets or another network namespace keeps
them out, sees the commit when it polls. A wake-up says nothing but that, so a foreign program learns nothing from it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable

SLOTS = 16  # processes of one file that can be woken; further ones poll
SCAN_INTERVAL_S = 0.1  # between two looks for new processes
MIN_INTERVAL_S = 0.005  # between two wake-ups: a busy process must not keep the others busy
_DATAGRAM_BYTES = 1


class Neighbours:
    """The socket of one store, and the addresses of the other stores on the same file. It leaves no file behind: Linux
    has addresses without one, which go with their process."""

    def __init__(self, path: str, on_wake: Callable[[], None]) -> None:
        self._path = path
        self._on_wake = on_wake
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._others: tuple[str, ...] = ()
        self._known: tuple[str, ...] = ()  # those that answered
        self._scan_at = self._quiet_until = 0.0
        self._pending: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Take an address, if there is a free one. Call it on the event loop, when the file exists."""
        if sys.platform != "linux":
            return
        found = os.stat(self._path)
        addresses = [f"\0penstock-{found.st_dev:x}-{found.st_ino:x}-{slot}" for slot in range(SLOTS)]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        for own in addresses:
            try:
                self._socket.bind(own)
            except OSError:
                continue  # another process has it
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket.fileno(), self._receive)
            addresses.remove(own)
            break
        self._others = tuple(addresses)

    def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
        self._others = self._known = ()
        if self._socket is not None and self._socket.fileno() >= 0:  # it is not closed yet
            if self._loop is not None:
                self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def wake(self) -> None:
        """Wake the others. One caller at a time, on any thread."""
        now = time.monotonic()
        if now >= self._scan_at:
            self._scan_at, self._known = now + SCAN_INTERVAL_S, self._others
        if self._known:
            self._known = tuple(filter(self._send, self._known))

    def _send(self, address: str) -> bool:
        assert self._socket is not None
        try:
            self._socket.sendto(bytes(_DATAGRAM_BYTES), address)
        except BlockingIOError:
            pass  # it has not yet read the wake-ups before
        except OSError:
            return False  # nobody has this address, or this store is being closed
        return True

    def _receive(self) -> None:
        assert self._loop is not None
        assert self._socket is not None
        try:
            while True:
                self._socket.recv(_DATAGRAM_BYTES)
        except OSError:
            pass  # there are no more
        if self._pending is None:
            self._pending = self._loop.call_at(max(self._quiet_until, self._loop.time()), self._notify)

    def _notify(self) -> None:
        assert self._loop is not None
        self._pending = None
        self._quiet_until = self._loop.time() + MIN_INTERVAL_S
        self._on_wake()
