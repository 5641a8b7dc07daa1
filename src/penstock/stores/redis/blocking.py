"""A blocking connection, for the thread that renews leases: a busy event loop cannot starve it."""

from __future__ import annotations

import socket
import threading
from typing import Any

import hiredis

from ...core.errors import StoreUnavailable
from .address import Address
from .resp import pack, translate
from .scripts import Script

SECONDS = 10.0


class BlockingClient:
    """One command at a time, from any thread."""

    def __init__(self, address: Address, name: str) -> None:
        self._address = address
        self._name = name
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._reader = hiredis.Reader()

    def evaluate(self, script: Script, parts: list[Any]) -> Any:
        """Runs a script; one that Redis has forgotten is sent whole."""
        with self._lock:
            try:
                reply = self._exchange(("EVALSHA", script.sha, *parts))
                if isinstance(reply, hiredis.HiredisError) and str(reply).startswith("NOSCRIPT"):
                    reply = self._exchange(("EVAL", script.text, *parts))
            except OSError as problem:
                self._drop()
                raise StoreUnavailable(f"{self._address} does not answer ({problem})") from None
        if isinstance(reply, hiredis.HiredisError):
            raise translate(reply, str(self._address))
        return reply

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _exchange(self, parts: tuple[Any, ...]) -> Any:
        if self._socket is None:
            self._socket = self._dial()
        return self._talk(self._socket, parts)

    def _talk(self, line: socket.socket, parts: tuple[Any, ...]) -> Any:
        line.sendall(pack(parts))
        while True:
            reply = self._reader.gets()
            if reply is not False:
                return reply
            data = line.recv(65536)
            if not data:
                raise OSError("it hung up")
            self._reader.feed(data)

    def _dial(self) -> socket.socket:
        address = self._address
        self._reader = hiredis.Reader()
        host, port = self._locate() if address.master else address.hosts[0]
        line = self._connect(host, port)
        try:
            self._enter(line)
        except BaseException:
            line.close()
            raise
        return line

    def _enter(self, line: socket.socket) -> None:
        address = self._address
        if address.password is not None:
            login = (address.user, address.password) if address.user else (address.password,)
            self._demand(line, ("AUTH", *login))
        self._demand(line, ("CLIENT", "SETNAME", self._name))
        self._demand(line, ("SELECT", address.db))

    def _connect(self, host: str, port: int) -> socket.socket:
        line = socket.create_connection((host, port), SECONDS)
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._address.context()
            return context.wrap_socket(line, server_hostname=host) if context else line
        except BaseException:
            line.close()
            raise

    def _locate(self) -> tuple[str, int]:
        for host, port in self._address.hosts:
            try:
                with self._connect(host, port) as line:
                    found = self._talk(line, ("SENTINEL", "get-master-addr-by-name", self._address.master or ""))
            except OSError:
                continue
            if isinstance(found, list):
                return found[0].decode(), int(found[1])
        raise OSError("no sentinel knows its master")

    def _demand(self, line: socket.socket, parts: tuple[Any, ...]) -> None:
        reply = self._talk(line, parts)
        if isinstance(reply, hiredis.HiredisError):
            raise translate(reply, str(self._address))

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
