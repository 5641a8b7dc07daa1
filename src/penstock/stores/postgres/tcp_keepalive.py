"""Noticing that the other end is gone when nothing says so: a cable, a cloud's network, a machine without power.

The command's own timeout is long, since a server may have a lot to do. So it is the kernel that is asked: a living
machine acknowledges what it receives even if its Postgres is busy.
"""

from __future__ import annotations

import contextlib
import socket

SECONDS = 10
PROBES = 3


def notice_silence(line: socket.socket | None) -> None:
    """Has the kernel give up a connection whose other end has acknowledged nothing for a while."""
    if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for name, value in _options().items():
        # Systems differ in what they have: a connection without is still a connection.
        if (option := getattr(socket, name, None)) is not None:
            with contextlib.suppress(OSError):
                line.setsockopt(socket.IPPROTO_TCP, option, value)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _options() -> dict[str, int]:
    """Half of the time a connection may be idle, in the other half it is asked whether it is there."""
    idle, pause = max(SECONDS // 2, 1), max(SECONDS // 2 // PROBES, 1)
    return {
        "TCP_KEEPIDLE": idle,
        "TCP_KEEPALIVE": idle,  # the same on macOS
        "TCP_KEEPINTVL": pause,
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": SECONDS * 1000,  # what was sent and is not acknowledged: probes do not go out then
    }


def server_settings() -> dict[str, str]:
    """The same for the server's end: a transaction of a client that is gone is not to hold its locks for hours."""
    options = _options()
    return {
        "tcp_keepalives_idle": str(options["TCP_KEEPIDLE"]),
        "tcp_keepalives_interval": str(options["TCP_KEEPINTVL"]),
        "tcp_keepalives_count": str(PROBES),
    }
