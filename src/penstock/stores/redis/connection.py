"""One connection to Redis on the event loop: whatever is sent before replies come back goes out together."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from ...core.errors import StoreClosed, StoreError, StoreUnavailable
from .place import Host, Place, is_replica, packed
from .resp import pack, translate
from .scripts import scripts

CONNECT_SECONDS = 5.0
REDIRECTS = 3  # servers of a cluster to be sent to before it is an answer
SILENCE_SECONDS = 15.0  # a server that says nothing for so long, though it was asked, is not there
Replies = list[Any]


class Wire(asyncio.Protocol):
    """Bytes out, replies in. Each call waits for as many replies as it sent commands."""

    def __init__(self, place: str, peer: Host) -> None:
        self._place = place
        self.peer = peer
        self._reader = hiredis.Reader()
        self._calls: deque[tuple[asyncio.Future[Replies], int]] = deque()
        self._replies: Replies = []
        self._transport: asyncio.Transport | None = None
        self._heard = 0.0
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None
        self.on_push: Callable[[list[bytes]], None] | None = None  # for a line that listens to a channel
        self.lost = asyncio.Event()

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._watch = self._loop.call_later(SILENCE_SECONDS / 3, self._look)

    def connection_lost(self, problem: Exception | None) -> None:
        self._transport = None
        self.lost.set()
        if self._watch is not None:
            self._watch.cancel()
        why = f" ({problem})" if problem else ""
        error = StoreUnavailable(f"{self._place} hung up{why}")
        for future, _ in self._calls:
            if not future.done():
                future.set_exception(error)
        self._calls.clear()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        self._reader.feed(data)
        replies = self._replies
        while True:
            reply = self._reader.gets()
            if reply is False:
                return
            if self.on_push is not None and reply[0] == b"message":
                self.on_push(reply)
                continue
            if not self._calls:
                continue  # nobody asked
            replies.append(reply)
            future, count = self._calls[0]
            if len(replies) == count:
                self._calls.popleft()
                if not future.done():  # its caller may have gone away
                    future.set_result(replies)
                self._replies = replies = []

    def call(self, data: bytes, count: int) -> asyncio.Future[Replies]:
        """Sends commands that are packed already; gives their replies, errors among them."""
        future: asyncio.Future[Replies] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(StoreUnavailable(f"{self._place} hung up"))
            return future
        if not self._calls:
            self._heard = self._loop.time()
        self._calls.append((future, count))
        self._transport.write(data)
        return future

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        if self._calls and self._loop.time() - self._heard > SILENCE_SECONDS:
            self.close()
            return
        self._watch = self._loop.call_later(SILENCE_SECONDS / 3, self._look)


class Client:
    """A connection that comes back by itself: a call on a lost one opens the next."""

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self._name = name
        self._wire: Wire | None = None
        self._opened = 0
        self._opening: asyncio.Lock = asyncio.Lock()
        self._closed = False

    @property
    def rewind_epoch(self) -> int:
        """How many connections there were, the lost ones counted when they are lost: behind the next one there may be
        another server."""
        lost = self._wire is None or not self._wire.open
        return 2 * self._opened + lost

    async def call(self, *parts: Any) -> Any:
        """One command and its reply; an error is raised in our words."""
        (reply,) = await self.send([pack(parts)])
        if isinstance(reply, hiredis.HiredisError):
            raise translate(reply, str(self.place))
        return reply

    async def send(self, commands: list[bytes]) -> Replies:
        """Commands in one write; gives their replies, errors among them. A script Redis has forgotten is loaded, a
        server whose keys are elsewhere is left for the other; what could not run is sent again in its order."""
        wire = self._wire if self._wire is not None and self._wire.open else await self._open()
        replies = await wire.call(b"".join(commands) if len(commands) > 1 else commands[0], len(commands))
        missing = [n for n, reply in enumerate(replies) if _is_unknown(reply)]
        if missing:
            await _load(wire, str(self.place))
            await self._again(wire, commands, replies, missing)
        for _ in range(REDIRECTS):
            moved = [n for n, reply in enumerate(replies) if self.place.learn(reply, wire.peer)]
            if not moved:
                break
            wire.close()
            wire = await self._open()
            await self._again(wire, commands, replies, moved)
        if any(map(self.place.is_left, replies)):
            wire.close()  # the next call asks who is master
        return replies

    async def _again(self, wire: Wire, commands: list[bytes], replies: Replies, which: list[int]) -> None:
        again = await wire.call(b"".join(commands[n] for n in which), len(which))
        for n, reply in zip(which, again, strict=True):
            replies[n] = reply

    async def close(self) -> None:
        self._closed = True
        self.drop()

    def drop(self) -> None:
        """Lets the connection go; the next call opens another."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def _open(self) -> Wire:
        async with self._opening:
            if self._closed:
                raise StoreClosed(f"the store at {self.place} is closed")
            if self._wire is None or not self._wire.open:
                self._wire = await connect(self.place, self._name)
                self._opened += 1
                await _load(self._wire, str(self.place))
            return self._wire


async def connect(place: Place, name: str) -> Wire:
    """A connection that is let in and in its database."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            if place.address.master:
                return await _enter(place, await locate(place), name)
            return await _first(place, name)
    except ssl.SSLCertVerificationError as problem:
        why = problem.verify_message
        raise StoreError(f"the certificate of {place} is not trusted ({why}): ?ca=file names its authority") from None
    except (OSError, TimeoutError) as problem:
        raise StoreUnavailable(f"cannot reach {place} ({problem or 'no answer'}): is it running?") from None


async def _first(place: Place, name: str) -> Wire:
    """The first server that answers."""
    *others, last = place.candidates()
    for host in others:
        try:
            return await _enter(place, host, name)
        except (OSError, StoreUnavailable):
            place.forget()
    return await _enter(place, last, name)


async def _dial(place: Place, host: Host) -> Wire:
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(lambda: Wire(str(place), host), *host, ssl=place.address.context())
    return wire


async def _enter(place: Place, host: Host, name: str) -> Wire:
    wire = await _dial(place, host)
    try:
        commands = place.greeting(name)
        replies = await wire.call(packed(commands), len(commands))
        for reply in replies[: -1 if place.address.master else None]:
            if isinstance(reply, hiredis.HiredisError):
                raise translate(reply, str(place))
        if is_replica(replies[-1]):
            raise StoreUnavailable(f"{place} is between two masters: {host[0]}:{host[1]} is none")
    except BaseException:  # also when the time is up: a line nobody uses would stay open
        wire.close()
        raise
    return wire


async def locate(place: Place) -> Host:
    """Asks the sentinels in turn who the master is."""
    why = "none of them answers"
    for host in place.address.hosts:
        try:
            wire = await _dial(place, host)
        except ssl.SSLCertVerificationError:
            raise
        except OSError:
            continue
        try:
            commands = place.question()
            found = (await wire.call(packed(commands), len(commands)))[-1]
        except StoreError:
            continue
        finally:
            wire.close()
        if isinstance(found, list):
            return found[0].decode(), int(found[1])
        why = str(found) if found is not None else "they do not know that name"
    raise StoreUnavailable(f"no sentinel of {place} tells its master ({why})")


async def _load(wire: Wire, place: str) -> None:
    commands = [pack(("SCRIPT", "LOAD", script.text)) for script in scripts().values()]
    for reply in await wire.call(b"".join(commands), len(commands)):
        if isinstance(reply, hiredis.HiredisError):
            raise translate(reply, place)


def _is_unknown(reply: Any) -> bool:
    return isinstance(reply, hiredis.HiredisError) and str(reply).startswith("NOSCRIPT")
