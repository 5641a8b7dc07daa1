"""The HTTP protocol of the server: connections that send nothing, too slowly or without end are closed."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

WebSocketProtocol: Any = AutoWebSocketsProtocol  # uvicorn's choice among the installed implementations
IS_SANSIO = "SansIO" in WebSocketProtocol.__name__  # older ones of uvicorn close by themselves

HEADER_TIMEOUT_S = 10.0  # from the connection to the end of the headers
MAX_HEADER_BYTES = 64 * 1024  # the address included
DROP = "penstock.drop"  # extension: end the response with these bytes, whether the client reads or not
DROP_TIMEOUT_S = 5.0  # to read them; then what is buffered for the client is thrown away
MAX_FRAGMENTS = 1024  # of one message; empty ones are not part of its size
SERVICE_RESTART, MESSAGE_TOO_BIG, INTERNAL_ERROR = 1012, 1009, 1011
SHUTDOWN_REASON = "the server shuts down; reconnect with the last cursor"


class BoundedSocketProtocol(WebSocketProtocol):  # type: ignore[misc]
    """A WebSocket that can be closed although its client does not read, and whose client cannot fill the memory."""

    close_sent: bool
    _fragments = 0

    async def run_asgi(self) -> None:
        self.scope["extensions"][DROP] = self._drop
        try:
            await super().run_asgi()
        finally:  # a transport that is only closed keeps what its client does not read
            self.loop.call_later(DROP_TIMEOUT_S + getattr(self, "close_timeout", 0), self.transport.abort)

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body":  # refused; uvicorn logs it as a failure otherwise
            self.handshake_complete = True

    def handle_text(self, event: Any) -> None:
        self._fragments = 0
        super().handle_text(event)

    def handle_bytes(self, event: Any) -> None:
        self._fragments = 0
        super().handle_bytes(event)

    def handle_cont(self, event: Any) -> None:
        self._fragments += 1
        if self._fragments >= MAX_FRAGMENTS:
            self._drop(MESSAGE_TOO_BIG, f"a message has more than {MAX_FRAGMENTS:,} fragments")
        if not self.transport.is_closing():
            super().handle_cont(event)

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # no pong for a client that does not read the ones before

    def keepalive_timeout(self) -> None:
        self.pong_timer = self.pending_ping_payload = None
        self._drop(INTERNAL_ERROR, "the client did not answer a ping in time")

    def shutdown(self) -> None:
        if IS_SANSIO and self.handshake_complete and not self.close_sent:
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": SERVICE_RESTART})
            self._drop(SERVICE_RESTART, SHUTDOWN_REASON)
        else:
            super().shutdown()

    def _drop(self, code: int, reason: str) -> None:
        if self.transport.is_closing():
            return
        if (connection := getattr(self, "conn", None)) is not None and not self.close_sent:
            connection.send_close(code, reason)
            self.transport.write(b"".join(connection.data_to_send()))
            self.close_sent = True
        self.transport.close()
        self.loop.call_later(DROP_TIMEOUT_S, self.transport.abort)


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose headers do not arrive in time or are too large."""

    _header_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._header_timer is not None:  # llhttp itself keeps any number of bytes
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES and self._is_unfinished(data):
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {DROP: self._drop}  # type: ignore[dict-item]
        if self._header_timer is None:  # the next request of the connection
            self._wait_for_headers()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._header_bytes = 0
        super().on_headers_complete()

    def _is_unfinished(self, data: bytes) -> bool:
        """Return whether the headers do not end here; the connection is closed then."""
        if data.find(b"\r\n\r\n", 0, MAX_HEADER_BYTES) >= 0:
            return False
        self.send_400_response(f"The headers have more than {MAX_HEADER_BYTES} bytes.")
        return True

    def _wait_for_headers(self) -> None:
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self._close)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _drop(self, last: bytes) -> None:
        """End a response whose client does not read. A connection that is only closed keeps its buffer for ever."""
        if self.transport.is_closing():
            return
        chunked = self.cycle.chunked_encoding
        self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last) if chunked else last)
        self.cycle.disconnected = True
        self.transport.close()
        self.loop.call_later(DROP_TIMEOUT_S, self.transport.abort)

    def _close(self, *_: Any) -> None:
        if not self.transport.is_closing():
            self.transport.close()
