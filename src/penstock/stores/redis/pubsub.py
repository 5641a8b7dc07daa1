"""Wake-ups from other processes, over one subscribed connection.

Every commit of every process arrives here, so it uses our own connection: redis-py takes three times the processor time
for a message (docs/decisions/0007).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import hiredis

from ...core.errors import StoreError, StoreUnavailable
from .connection import Connection, connect
from .resp import pack, translate
from .topology import Topology

MIN_RECONNECT_DELAY_S, MAX_RECONNECT_DELAY_S = 0.05, 1.0
PING_INTERVAL_S = 5.0
MASTER_CHECK_INTERVAL_S = 0.5


class Subscription:
    """Keeps a subscription alive. After every reconnect all listeners are notified, because messages may be missing."""

    def __init__(
        self,
        topology: Topology,
        channel: str,
        origin: str,
        *,
        notify: Callable[[Iterable[str]], None],
        notify_all: Callable[[], None],
        on_new_master: Callable[[], None],
    ) -> None:
        self._topology = topology
        self._channel = channel
        self._origin = origin.encode()
        self._notify = notify
        self._notify_all = notify_all
        self._on_new_master = on_new_master
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribe; returns when Redis has confirmed it."""
        self._connection = await self._subscribe()
        self._task = asyncio.create_task(self._keep_subscribed())

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
                    self._notify_all()
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
            master = await self._topology.find_master()
        if master != connection.peer:
            self._on_new_master()
            raise StoreUnavailable(f"{self._topology} has another master now")

    async def _subscribe(self) -> Connection:
        connection = await connect(self._topology, "penstock-live")
        try:
            (reply,) = await connection.call(pack(("SUBSCRIBE", self._channel)), 1)
            if isinstance(reply, hiredis.HiredisError):
                raise translate(reply, str(self._topology))
        except BaseException:
            connection.close()
            raise
        connection.on_message = self._receive
        return connection

    def _receive(self, message: list[bytes]) -> None:
        origin, _, topics = message[2].partition(b"\n")
        if origin != self._origin:
            self._notify(topics.decode(errors="replace").split("\n"))
