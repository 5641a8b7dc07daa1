"""A line to a server on which things go wrong: bytes are late, replies are swallowed, connections are cut."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from types import TracebackType
from typing import Self

from .deaf import deafen


class Proxy:
    """Between a client and a server on this machine. What it does can be changed while it runs.

    `delay` holds every reply back for so many seconds. While `swallow` is set requests get through and their replies
    do not, nor does anything else on that line afterwards: half a reply would be an error of another kind.
    """

    def __init__(self, server_port: int, context: ssl.SSLContext | None = None) -> None:
        self._server_port = server_port
        self._context = context
        self._lines: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.delay = 0.0
        self.swallow = False
        self.refuse = False
        self.swallowed = 0  # lines on which a reply was lost
        self.cut = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        await self._server.wait_closed()
        while self._lines:
            await asyncio.sleep(0.005)

    def drop(self) -> None:
        """Cuts every line now, without a word."""
        for writer in list(self._lines):
            self.cut += 1
            writer.transport.abort()

    def deafen(self) -> None:
        """Nothing that is sent on the lines there are arrives, or is acknowledged; new lines are as they should be."""
        for writer in list(self._lines):
            deafen(writer.get_extra_info("socket").fileno())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        self._lines.add(writer)
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            self._end(writer)
            return
        there = asyncio.create_task(self._requests(reader, server_writer))
        back = asyncio.create_task(self._replies(server_reader, writer))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.wait((there, back))
            server_writer.transport.abort()
            self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        self._lines.discard(writer)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lost = False
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.swallow and not lost:
                    lost = True
                    self.swallowed += 1
                if lost:
                    continue
                if self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
