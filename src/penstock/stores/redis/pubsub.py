"""Wake-ups from other processes, over one subscribed connection.

Every commit of every process arrives here, so it uses our own connection: redis-py takes three times the processor time
for a message (docs/decisions/0007).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import hiredis
import msgspec

from ...core.errors import StoreError, StoreUnavailable
from .connection import Connection, connect
from .resp import pack, translate
from .sentinels import find_master
from .topology import Topology

MIN_RECONNECT_DELAY_S, MAX_RECONNECT_DELAY_S = 0.05, 1.0
PING_INTERVAL_S = 5.0
MASTER_CHECK_INTERVAL_S = 0.5


class ChannelListener(msgspec.Struct, frozen=True, eq=False):
    """Who is notified about a channel. Messages with its own origin are ignored."""

    channel: str
    origin: str
    notify: Callable[[Iterable[str]], None]
    notify_all: Callable[[], None]


class ChannelSubscription:
    """Keeps the subscriptions to channels alive, on one connection. After every reconnect all listeners are notified,
    because messages may be missing."""

    def __init__(self, topology: Topology, on_new_master: Callable[[], None]) -> None:
        self._topology = topology
        self._listeners: list[ChannelListener] = []
        self._on_new_master = on_new_master
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def add(self, listener: ChannelListener) -> None:
        """Subscribe to a channel; returns when Redis has confirmed it."""
        async with self._starting:
            self._listeners.append(listener)
            try:
                if self._task is None:
                    self._connection = await self._subscribe()
                    self._task = asyncio.create_task(self._keep_subscribed())
                elif self._connection is not None:  # else it is reconnecting, and subscribes to all channels
                    await self._call(self._connection, "SUBSCRIBE", listener.channel)
            except BaseException:
                self._listeners.remove(listener)
                raise

    async def remove(self, listener: ChannelListener) -> None:
        """Unsubscribe from a channel, unless another listener needs it."""
        if listener not in self._listeners:
            return
        self._listeners.remove(listener)
        is_needed = any(other.channel == listener.channel for other in self._listeners)
        if self._connection is not None and self._connection.is_open and not is_needed and self._listeners:
            with suppress(StoreError):  # the next connection does not subscribe to it
                await self._call(self._connection, "UNSUBSCRIBE", listener.channel)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._drop()  # a task that is cancelled before its first step does not

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _keep_subscribed(self) -> None:
        delay = MIN_RECONNECT_DELAY_S
        while True:
            try:
                if self._connection is None:
                    self._connection = await self._subscribe()
                    for listener in self._listeners:
                        listener.notify_all()
                delay = MIN_RECONNECT_DELAY_S
                await self._watch(self._connection)
            except (StoreError, OSError, TimeoutError):
                self._drop()
                await asyncio.sleep(delay)
                delay = min(delay * 2, MAX_RECONNECT_DELAY_S)

    async def _watch(self, connection: Connection) -> None:
        """Return when the connection is lost. A ping finds one that is dead without an error."""
        has_sentinels = self._topology.address.master is not None
        while True:
            try:
                async with asyncio.timeout(MASTER_CHECK_INTERVAL_S if has_sentinels else PING_INTERVAL_S):
                    await connection.lost.wait()
            except TimeoutError:
                pass
            await connection.call(pack(("PING",)), 1)
            if has_sentinels:
                await self._check_master(connection)

    async def _check_master(self, connection: Connection) -> None:
        """Leave a master that was replaced: it may answer for ten more seconds, and all writes to it are lost."""
        async with asyncio.timeout(MASTER_CHECK_INTERVAL_S):
            master = await find_master(self._topology.address)
        if master != connection.peer:
            self._on_new_master()
            raise StoreUnavailable(f"the master of {self._topology} changed; reconnecting")

    async def _subscribe(self) -> Connection:
        connection = await connect(self._topology, "penstock-live")
        try:
            for channel in {listener.channel for listener in self._listeners}:
                await self._call(connection, "SUBSCRIBE", channel)
        except BaseException:
            connection.close()
            raise
        connection.on_message = self._receive
        return connection

    async def _call(self, connection: Connection, *parts: str) -> None:
        (reply,) = await connection.call(pack(parts), 1)
        if isinstance(reply, hiredis.HiredisError):
            raise translate(reply, str(self._topology))

    def _receive(self, message: list[bytes]) -> None:
        channel, origin = message[-2].decode("utf-8", "replace"), message[-1].partition(b"\n")[0]
        # Any program may publish anything.
        topics = message[-1].partition(b"\n")[2].decode("utf-8", "replace").split("\n")
        for listener in self._listeners:
            if listener.channel == channel and listener.origin.encode() != origin:
                listener.notify(topics)
