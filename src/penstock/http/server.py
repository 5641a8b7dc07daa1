"""Serve an App with uvicorn: one process, one event loop, the App opened before the first request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

from ..core.api_errors import BadAddress
from .auth import is_loopback
from .protocol import BoundedHttpProtocol, BoundedSocketProtocol

STOP_TIMEOUT_S = 5  # open streams have this long to end
BACKLOG = 2048  # connections that wait to be accepted


def check_address(host: str, has_tokens: bool) -> None:
    """Raise BadAddress for an address that others can reach while no token protects the API."""
    if not has_tokens and not is_loopback(host):
        raise BadAddress(
            f"without tokens the server listens only on this machine, not on {host!r}; create a token first, "
            "with `penstock tokens add NAME --role admin`"
        )


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raise BadAddress if the address is in use or does not exist."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio turns Nagle's algorithm off: otherwise each answer waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)  # until then, another process can bind the same address
    except (OSError, OverflowError, TypeError, ValueError) as problem:  # a name that is none
        listener.close()
        raise BadAddress(f"cannot listen on {host}:{port}: {problem}; choose another --host or --port") from None
    listener.set_inheritable(True)
    return listener


class Server:
    """Serves an ASGI application on a socket until `stop`."""

    def __init__(self, application: ASGIApp, listener: socket.socket) -> None:
        config = uvicorn.Config(
            application,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=STOP_TIMEOUT_S,
            ws_max_size=2**20,
            ws_max_queue=32,
            http=BoundedHttpProtocol,
            ws=BoundedSocketProtocol,
        )
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._listener = listener

    async def run(self, on_ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop`. Call `on_ready` when requests are accepted."""
        startup = self._server.startup

        async def start(sockets: list[socket.socket] | None = None) -> None:
            await startup(sockets)
            if self._server.started and on_ready is not None:
                on_ready()

        self._server.startup = start  # type: ignore[method-assign]
        with suppress(asyncio.CancelledError):
            await self._server._serve([self._listener])

    def stop(self) -> None:
        """Stop accepting requests, end the streams and return from `run`."""
        self._server.should_exit = True
