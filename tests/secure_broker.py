"""A proxy in front of a Kafka broker that requires TLS, and perhaps SASL with PLAIN. The broker inside librdkafka has neither.

It answers the two requests of SASL itself, and names itself as the broker in what it passes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from typing import Self

API_VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
ACCEPTED, DENIED = 0, 58


class SecureBroker:
    """Accepts TLS connections; `login` is the only user and its password, None asks for no login."""

    def __init__(self, address: str, context: ssl.SSLContext, login: tuple[str, str] | None = None) -> None:
        self._host, _, port = address.partition(":")
        self._port = int(port)
        self._context = context
        self._login = login
        self._serving: list[asyncio.Task[None]] = []
        self.clients: set[str] = set()  # the client ids that sent a request

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.append(task)
        try:
            back, forth = await asyncio.open_connection(self._host, self._port)
            asked = set[int]()  # the requests for the versions of the broker
            answers = asyncio.create_task(self._pass_back(back, writer, asked))
            try:
                await self._pass_on(reader, writer, forth, asked)
            finally:
                answers.cancel()
                forth.transport.abort()
        finally:
            writer.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, forth: asyncio.StreamWriter, asked: set[int]
    ) -> None:
        is_known = self._login is None
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                request = await _read(reader)
                kind, _, correlation, length = struct.unpack_from(">hhih", request)
                if kind == API_VERSIONS:
                    asked.add(correlation)
                self.clients.add(request[10 : 10 + length].decode())
                body = request[10 + max(length, 0) :]
                if kind == HANDSHAKE:
                    _write(writer, struct.pack(">ihih5s", correlation, ACCEPTED, 1, 5, b"PLAIN"))
                elif kind == AUTHENTICATE:
                    is_known = self._accepts(body)
                    reason = b"" if is_known else b"wrong password"
                    code = ACCEPTED if is_known else DENIED
                    _write(writer, struct.pack(f">ihh{len(reason)}si", correlation, code, len(reason), reason, 0))
                elif is_known or kind == API_VERSIONS:
                    _write(forth, request)
                else:
                    break  # as a broker does with a client that has not logged in

    def _accepts(self, body: bytes) -> bool:
        assert self._login is not None
        user, password = self._login
        return body[4:].split(b"\0")[1:] == [user.encode(), password.encode()]

    async def _pass_back(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: set[int]) -> None:
        host = self._host.encode()
        old, new = (host + struct.pack(">i", port) for port in (self._port, self.port))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                answer = await _read(back)
                if self._login is not None and struct.unpack_from(">i", answer)[0] in asked:
                    answer = _add_sasl(answer)
                _write(writer, answer.replace(old, new))


async def _read(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(struct.pack(">i", len(data)) + data)


def _add_sasl(answer: bytes) -> bytes:
    """Add the two requests of SASL to the list of those that the broker knows."""
    correlation, error, count = struct.unpack_from(">ihi", answer)
    return struct.pack(">ihi", correlation, error, count + 2) + answer[10:] + struct.pack(">6h", 17, 1, 1, 36, 0, 0)
