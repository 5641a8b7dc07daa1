"""The event loop's connection to Redis. Commands that are sent before replies arrive go out together.

redis-py sends one command at a time on a connection and takes seven times the processor time for a script call
(docs/decisions/0007).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from ...core.errors import StoreClosed, StoreError, StoreUnavailable
from .address import Host
from .resp import pack, pack_all, translate
from .scripts import scripts
from .sentinels import find_master
from .topology import Topology, is_demoted, is_replica

CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 15.0  # a server that sends nothing for this long, though a call is open, is gone
SLOW_REPLY_TIMEOUT_S = 120.0  # the same for one that sends bytes, but no whole reply
MAX_REPLY_BYTES = 2**29  # the largest string that Redis stores
MAX_REDIRECTS = 3  # MOVED replies to follow before the error is raised
Replies = list[Any]


class Connection(asyncio.Protocol):
    """Sends commands and collects replies. Each call waits for as many replies as it sent commands."""

    def __init__(self, where: str, peer: Host) -> None:
        self._where = where
        self.peer = peer
        self._reader = hiredis.Reader()
        self._calls: deque[tuple[asyncio.Future[Replies], int]] = deque()
        self._replies: Replies = []
        self._transport: asyncio.Transport | None = None
        self._last_data = self._last_reply = 0.0
        self._unread = 0  # bytes of a reply that is not complete yet
        self._complaint: str | None = None  # why we closed the connection
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.on_message: Callable[[list[bytes]], None] | None = None  # for a subscribed connection
        self.lost = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._timer = self._loop.call_later(REPLY_TIMEOUT_S / 3, self._check_timeout)

    def connection_lost(self, problem: Exception | None) -> None:
        self._transport = None
        self.lost.set()
        if self._timer is not None:
            self._timer.cancel()
        why = f" ({problem})" if problem else ""
        error = StoreUnavailable(self._complaint or f"{self._where} closed the connection{why}")
        for future, _ in self._calls:
            if not future.done():
                future.set_exception(error)
        self._calls.clear()

    def data_received(self, data: bytes) -> None:
        self._last_data = self._loop.time()
        self._unread += len(data)
        try:
            self._reader.feed(data)
            self._read_replies()
        except (hiredis.ProtocolError, MemoryError) as problem:
            self._refuse(f"does not speak the protocol of Redis ({problem}); check the address")
        if self._unread > MAX_REPLY_BYTES:
            self._refuse(f"sent a reply of more than {MAX_REPLY_BYTES:,} bytes; check the address")

    def _refuse(self, why: str) -> None:
        self._complaint = f"{self._where}: {self.peer[0]}:{self.peer[1]} {why}"
        self.close()

    def _read_replies(self) -> None:
        replies = self._replies
        while True:
            reply = self._reader.gets()
            if reply is False:
                return
            self._unread, self._last_reply = 0, self._last_data
            if self.on_message is not None and _is_message(reply):
                self.on_message(reply)
                continue
            if not self._calls:
                continue  # no call is open
            replies.append(reply)
            future, count = self._calls[0]
            if len(replies) == count:
                self._calls.popleft()
                if not future.done():  # its caller may be cancelled
                    future.set_result(replies)
                self._replies = replies = []

    def call(self, data: bytes, count: int) -> asyncio.Future[Replies]:
        """Send packed commands; the future resolves to their replies, errors included."""
        future: asyncio.Future[Replies] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(StoreUnavailable(f"{self._where} closed the connection"))
            return future
        if not self._calls:
            self._last_data = self._last_reply = self._loop.time()
        self._calls.append((future, count))
        self._transport.write(data)
        return future

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _check_timeout(self) -> None:
        now = self._loop.time()
        if self._calls and (now - self._last_data > REPLY_TIMEOUT_S or now - self._last_reply > SLOW_REPLY_TIMEOUT_S):
            self.close()
            return
        self._timer = self._loop.call_later(REPLY_TIMEOUT_S / 3, self._check_timeout)


class Client:
    """A connection that reconnects: a call on a lost connection opens a new one."""

    def __init__(self, topology: Topology, name: str) -> None:
        self.topology = topology
        self._name = name
        self._connection: Connection | None = None
        self._opened = 0
        self._connecting: asyncio.Lock = asyncio.Lock()
        self._is_closed = False

    @property
    def rewind_epoch(self) -> int:
        """Count connections, a lost one as soon as it is lost: the next one may lead to a server with older data."""
        is_lost = self._connection is None or not self._connection.is_open
        return 2 * self._opened + is_lost

    async def call(self, *parts: Any) -> Any:
        """Send one command and return its reply; raises our error for an error reply."""
        (reply,) = await self.send([pack(parts)])
        if isinstance(reply, hiredis.HiredisError):
            raise translate(reply, str(self.topology))
        return reply

    async def send(self, commands: list[bytes]) -> Replies:
        """Send commands in one write and return their replies, errors included.

        Loads scripts that the server has lost and follows keys that moved to another node; commands that could not
        run are sent again in order. Raises StoreClosed for a call that was in flight when the client was closed.
        """
        try:
            return await self._send(commands)
        except StoreUnavailable:
            if self._is_closed:
                raise self._closed() from None
            raise

    def check_open(self) -> None:
        """Raise StoreClosed after `close`."""
        if self._is_closed:
            raise self._closed()

    def _closed(self) -> StoreClosed:
        return StoreClosed.of(self.topology)

    async def _send(self, commands: list[bytes]) -> Replies:
        current = self._connection
        connection = current if current is not None and current.is_open else await self._open()
        replies = await connection.call(b"".join(commands) if len(commands) > 1 else commands[0], len(commands))
        missing = [n for n, reply in enumerate(replies) if _is_unknown_script(reply)]
        if missing:
            await _load_scripts(connection, str(self.topology))
            await self._send_again(connection, commands, replies, missing)
        for _ in range(MAX_REDIRECTS):
            moved = [n for n, reply in enumerate(replies) if self.topology.follow_move(reply, connection.peer)]
            if not moved:
                break
            connection.close()
            connection = await self._open()
            await self._send_again(connection, commands, replies, moved)
        if any(map(is_demoted, replies)):
            connection.close()  # the next call finds the new master
        return replies

    async def _send_again(
        self, connection: Connection, commands: list[bytes], replies: Replies, which: list[int]
    ) -> None:
        again = await connection.call(b"".join(commands[n] for n in which), len(which))
        for n, reply in zip(which, again, strict=True):
            replies[n] = reply

    async def close(self) -> None:
        self._is_closed = True
        self.drop()

    def drop(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _open(self) -> Connection:
        async with self._connecting:
            self.check_open()
            if self._connection is None or not self._connection.is_open:
                self._connection = await connect(self.topology, self._name)
                self._opened += 1
                await _load_scripts(self._connection, str(self.topology))
            return self._connection


async def connect(topology: Topology, name: str) -> Connection:
    """Open a connection: logged in, and in its database."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if topology.address.master:
                return await _connect_to(topology, await find_master(topology.address), name)
            return await _connect_to_first(topology, name)
    except ssl.SSLCertVerificationError as problem:
        why = problem.verify_message
        raise StoreError(
            f"the certificate of {topology} is not trusted ({why}); pass the CA certificate with ?ca=FILE"
        ) from None
    except (OSError, TimeoutError) as problem:
        raise StoreUnavailable(
            f"cannot reach {topology} ({problem or 'no answer'}); check that the server is running"
        ) from None


async def _connect_to_first(topology: Topology, name: str) -> Connection:
    """Connect to the first server that answers."""
    *others, last = topology.candidates()
    for host in others:
        try:
            return await _connect_to(topology, host, name)
        except (OSError, StoreUnavailable):
            topology.forget_node()
    return await _connect_to(topology, last, name)


async def _connect_to(topology: Topology, host: Host, name: str) -> Connection:
    loop, where = asyncio.get_running_loop(), str(topology)
    context = topology.address.context()
    try:
        _, connection = await loop.create_connection(lambda: Connection(where, host), *host, ssl=context)
    except ssl.SSLError:
        raise
    except (ValueError, OverflowError) as problem:  # a name that no resolver takes
        raise StoreUnavailable(
            f"{where}: cannot connect to {host[0]}:{host[1]} ({problem}); check the address"
        ) from None
    try:
        commands = topology.handshake(name)
        replies = await connection.call(pack_all(commands), len(commands))
        for reply in replies[: -1 if topology.address.master else None]:
            if isinstance(reply, hiredis.HiredisError):
                raise translate(reply, where)
        if is_replica(replies[-1]):
            raise StoreUnavailable(
                f"{where} is changing its master: {host[0]}:{host[1]} is a replica now; try again in a few seconds"
            )
    except BaseException:  # a timeout too: the connection would stay open
        connection.close()
        raise
    return connection


async def _load_scripts(connection: Connection, where: str) -> None:
    commands = [pack(("SCRIPT", "LOAD", script.text)) for script in scripts().values()]
    for reply in await connection.call(b"".join(commands), len(commands)):
        if isinstance(reply, hiredis.HiredisError):
            raise translate(reply, where)


def _is_unknown_script(reply: Any) -> bool:
    return isinstance(reply, hiredis.HiredisError) and str(reply).startswith("NOSCRIPT")


def _is_message(reply: Any) -> bool:
    return isinstance(reply, list) and len(reply) == 3 and reply[0] == b"message" and isinstance(reply[2], bytes)
