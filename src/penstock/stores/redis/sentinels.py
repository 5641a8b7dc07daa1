"""Ask sentinels which server is the master. A sentinel that is away, slow or answers nonsense is passed over."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from typing import Any

import hiredis

from ...core.errors import StoreError, StoreUnavailable
from .address import Address, Host, is_host
from .resp import pack_all

SENTINEL_TIMEOUT_S = 1.0
MAX_REPLY_BYTES = 2**20  # of one sentinel; the facts about a master are about 1 KB
_READ_BYTES = 2**16
_DOWN = (b"s_down", b"o_down", b"disconnected")


class BadAnswer(Exception):
    """A sentinel does not know the master, or its answer cannot be read."""


async def find_master(address: Address) -> Host:
    """Return the master that the first useful sentinel names."""
    problems: list[Exception] = []
    for host in address.hosts:
        try:
            async with asyncio.timeout(SENTINEL_TIMEOUT_S):
                return read_master(await _ask(address, host))
        except (OSError, ValueError, BadAnswer) as problem:  # ValueError: a host that no resolver takes
            problems.append(problem)
    raise _no_master(address, problems)


def find_master_blocking(address: Address) -> Host:
    """Ask the sentinels from a thread without an event loop."""
    problems: list[Exception] = []
    for host in address.hosts:
        try:
            return read_master(_ask_blocking(address, host, time.monotonic() + SENTINEL_TIMEOUT_S))
        except (OSError, ValueError, BadAnswer) as problem:
            problems.append(problem)
    raise _no_master(address, problems)


def read_master(reply: Any) -> Host:
    """Return the address in a reply to SENTINEL MASTER."""
    if isinstance(reply, hiredis.HiredisError):
        raise BadAnswer(str(reply)[:200])
    if not isinstance(reply, list) or not all(isinstance(part, bytes) for part in reply):
        raise BadAnswer(f"a sentinel answered {repr(reply)[:80]}")
    facts = dict(zip(reply[::2], reply[1::2], strict=False))
    flags = facts.get(b"flags", b"").split(b",")
    if b"master" not in flags or any(flag in _DOWN for flag in flags):
        raise BadAnswer(f"the master is {facts.get(b'flags', b'unknown').decode('utf-8', 'replace')[:80]}")
    host, port = facts.get(b"ip", b"").decode("utf-8", "replace"), facts.get(b"port", b"").decode("utf-8", "replace")
    if not is_host(host, port):
        raise BadAnswer(f"a sentinel named the address {f'{host}:{port}'[:80]!r}")
    return host, int(port)


async def _ask(address: Address, host: Host) -> Any:
    reader, writer = await asyncio.open_connection(*host, ssl=address.context())
    try:
        request, replies = _request(address)
        writer.write(request)
        while not replies.feed(await reader.read(_READ_BYTES)):
            pass
        return replies.last
    finally:
        writer.transport.abort()


def _ask_blocking(address: Address, host: Host, deadline: float) -> Any:
    connection = socket.create_connection(host, SENTINEL_TIMEOUT_S)
    try:
        if (context := address.context()) is not None:
            connection = context.wrap_socket(connection, server_hostname=host[0])
        request, replies = _request(address)
        connection.sendall(request)
        while True:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            if replies.feed(connection.recv(_READ_BYTES)):
                return replies.last
            if time.monotonic() > deadline:
                raise TimeoutError("no answer in time")
    finally:
        connection.close()


def _request(address: Address) -> tuple[bytes, _Replies]:
    login = [] if address.sentinel_password is None else [("AUTH", address.sentinel_password)]
    commands = [*login, ("SENTINEL", "MASTER", address.master or "")]
    return pack_all(commands), _Replies(len(commands))


class _Replies:
    """Collects replies up to a size."""

    def __init__(self, count: int) -> None:
        self._reader = hiredis.Reader()
        self._missing = count
        self._bytes = 0
        self.last: Any = None

    def feed(self, data: bytes) -> bool:
        """Take bytes and return whether the replies are complete. An error reply to AUTH is the last one."""
        if not data:
            raise BadAnswer("a sentinel closed the connection")
        self._bytes += len(data)
        if self._bytes > MAX_REPLY_BYTES:
            raise BadAnswer(f"a sentinel sent more than {MAX_REPLY_BYTES:,} bytes")
        try:
            self._reader.feed(data)
            while self._missing and (reply := self._reader.gets()) is not False:
                self._missing -= 1
                self.last = reply
                if isinstance(reply, hiredis.HiredisError):
                    return True
        except (hiredis.HiredisError, MemoryError) as problem:
            raise BadAnswer(f"a sentinel does not speak the protocol of Redis: {problem}") from None
        return not self._missing


def _no_master(address: Address, problems: list[Exception]) -> StoreError:
    shown = "; ".join(dict.fromkeys(str(problem) or "no answer" for problem in problems))
    if any(isinstance(problem, ssl.SSLCertVerificationError) for problem in problems):
        return StoreError(
            f"the certificate of {address} is not trusted ({shown}); pass the CA certificate with ?ca=FILE"
        )
    return StoreUnavailable(
        f"cannot find the master of {address} ({shown}); check that the sentinels are running and monitor a master of "
        "that name"
    )
