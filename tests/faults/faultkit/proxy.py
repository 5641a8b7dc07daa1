"""A proxy with faults: it delays replies, drops replies or packets, and cuts connections."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import ssl
import struct
from types import TracebackType
from typing import Self

SOL_SOCKET = 1
SO_ATTACH_FILTER = 26  # Linux
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # the filter program "return 0": keep no byte of any packet


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _drop_packets(descriptor: int) -> None:
    """Let the kernel drop all packets to a socket before it acknowledges them, as if the machine were gone.

    A proxy that only withholds replies is not enough: its kernel still acknowledges what arrives.
    """
    code = ctypes.create_string_buffer(DROP_ALL, len(DROP_ALL))
    program = _FilterProgram(1, ctypes.cast(code, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_FILTER, ctypes.byref(program), ctypes.sizeof(program)):
        number = ctypes.get_errno()
        raise OSError(number, "cannot attach a filter to a socket")


class Proxy:
    """A proxy between a client and a server on this machine. Its faults can be changed while it runs.

    `delay_s` delays every reply. While `drop_replies` is set, requests get through and replies do not; the connection
    then stays silent, because half a reply would be a different error.
    """

    def __init__(self, server_port: int, context: ssl.SSLContext | None = None) -> None:
        self._server_port = server_port
        self._context = context
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.delay_s = 0.0
        self.drop_replies = False
        self.refuse_connections = False
        self.replies_dropped = 0  # connections that lost a reply
        self.connections_cut = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_connections()
        await self._server.wait_closed()
        while self._connections:
            await asyncio.sleep(0.005)

    def cut_connections(self) -> None:
        """Abort every open connection."""
        for writer in list(self._connections):
            self.connections_cut += 1
            writer.transport.abort()

    def drop_packets(self) -> None:
        """Drop all packets that clients send on open connections, without acknowledgement; new connections work."""
        for writer in list(self._connections):
            _drop_packets(writer.get_extra_info("socket").fileno())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse_connections:
            writer.transport.abort()
            return
        self._connections.add(writer)
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            self._end(writer)
            return
        requests = asyncio.create_task(self._forward_requests(reader, server_writer))
        replies = asyncio.create_task(self._forward_replies(server_reader, writer))
        try:
            await asyncio.wait((requests, replies), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (requests, replies):
                task.cancel()
            await asyncio.wait((requests, replies))
            server_writer.transport.abort()
            self._end(writer)

    def _end(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        self._connections.discard(writer)

    async def _forward_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    async def _forward_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_dropping = False
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.drop_replies and not is_dropping:
                    is_dropping = True
                    self.replies_dropped += 1
                if is_dropping:
                    continue
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
