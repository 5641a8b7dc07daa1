"""A blocking connection, for the thread that renews leases: a busy event loop cannot starve it."""

from __future__ import annotations

import socket
import threading
from typing import Any

import hiredis

from ...core.errors import StoreUnavailable
from .place import Host, Place, is_replica, packed
from .resp import Part, pack, translate
from .scripts import Script

SECONDS = 10.0


class BlockingClient:
    """One command at a time, from any thread."""

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self._name = name
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._peer: Host = ("", 0)
        self._left = False
        self._reader = hiredis.Reader()

    def evaluate(self, script: Script, parts: list[Any]) -> Any:
        """Runs a script; one that Redis has forgotten is sent whole."""
        with self._lock:
            try:
                reply = self._evaluate(script, parts)
                if self._place.learn(reply, self._peer):
                    self._drop()
                    reply = self._evaluate(script, parts)
            except OSError as problem:
                self._drop()
                raise StoreUnavailable(f"{self._place} does not answer ({problem})") from None
            if self._place.is_left(reply):
                self._drop()  # the next call asks who is master
        if isinstance(reply, hiredis.HiredisError):
            raise translate(reply, str(self._place))
        return reply

    def _evaluate(self, script: Script, parts: list[Any]) -> Any:
        reply = self._exchange(("EVALSHA", script.sha, *parts))
        if isinstance(reply, hiredis.HiredisError) and str(reply).startswith("NOSCRIPT"):
            reply = self._exchange(("EVAL", script.text, *parts))
        return reply

    def leave(self) -> None:
        """The next call opens another connection; does not wait for the one under way."""
        self._left = True

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _exchange(self, parts: tuple[Any, ...]) -> Any:
        if self._left:
            self._left = False
            self._drop()
        if self._socket is None:
            self._socket = self._dial()
        return self._talk(self._socket, parts)

    def _talk(self, line: socket.socket, parts: tuple[Part, ...]) -> Any:
        line.sendall(pack(parts))
        return self._hear(line)

    def _hear(self, line: socket.socket) -> Any:
        while True:
            reply = self._reader.gets()
            if reply is not False:
                return reply
            data = line.recv(65536)
            if not data:
                raise OSError("it hung up")
            self._reader.feed(data)

    def _dial(self) -> socket.socket:
        if self._place.address.master:
            return self._enter(self._locate())
        *others, last = self._place.candidates()
        for host in others:
            try:
                return self._enter(host)
            except OSError:
                self._place.forget()
        return self._enter(last)

    def _enter(self, host: Host) -> socket.socket:
        line = self._connect(host)
        self._peer = host
        try:
            commands = self._place.greeting(self._name)
            replies = self._ask(line, commands)
            for reply in replies[: -1 if self._place.address.master else None]:
                if isinstance(reply, hiredis.HiredisError):
                    raise translate(reply, str(self._place))
            if is_replica(replies[-1]):
                raise OSError("it is between two masters")
        except BaseException:
            line.close()
            raise
        return line

    def _ask(self, line: socket.socket, commands: list[tuple[Part, ...]]) -> list[Any]:
        """What is asked first on a new line."""
        self._reader = hiredis.Reader()
        line.sendall(packed(commands))
        return [self._hear(line) for _ in commands]

    def _connect(self, host: Host) -> socket.socket:
        line = socket.create_connection(host, SECONDS)
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._place.address.context()
            return context.wrap_socket(line, server_hostname=host[0]) if context else line
        except BaseException:
            line.close()
            raise

    def _locate(self) -> Host:
        for host in self._place.address.hosts:
            try:
                with self._connect(host) as line:
                    found = self._ask(line, self._place.question())[-1]
            except OSError:
                continue
            if isinstance(found, list):
                return found[0].decode(), int(found[1])
        raise OSError("no sentinel knows its master")

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
