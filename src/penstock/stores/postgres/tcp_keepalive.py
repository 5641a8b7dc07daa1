"""Detect a peer that is gone without closing its connections: a cable, a cloud's network, a machine without power.

The timeout of a command is long, because a busy server may need it. TCP keepalive is shorter: the kernel of a live
machine acknowledges what it receives even if its Postgres is busy.
"""

from __future__ import annotations

import contextlib
import socket

TIMEOUT_S = 10
PROBES = 3


def enable_keepalive(sock: socket.socket | None) -> None:
    """Make the kernel drop a connection whose peer has acknowledged nothing for `TIMEOUT_S`."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for name, value in _options().items():
        # Systems differ in which options they have. A connection without one still works.
        if (option := getattr(socket, name, None)) is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _options() -> dict[str, int]:
    """Return the socket options: a connection may be idle for half of the timeout, probes take the other half."""
    idle, interval = max(TIMEOUT_S // 2, 1), max(TIMEOUT_S // 2 // PROBES, 1)
    return {
        "TCP_KEEPIDLE": idle,
        "TCP_KEEPALIVE": idle,  # the same on macOS
        "TCP_KEEPINTVL": interval,
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": TIMEOUT_S * 1000,  # for sent data that is not acknowledged: no probes go out then
    }


def server_settings() -> dict[str, str]:
    """Return the same for the server: the transaction of a client that is gone must not hold its locks for hours."""
    options = _options()
    return {
        "tcp_keepalives_idle": str(options["TCP_KEEPIDLE"]),
        "tcp_keepalives_interval": str(options["TCP_KEEPINTVL"]),
        "tcp_keepalives_count": str(PROBES),
    }
