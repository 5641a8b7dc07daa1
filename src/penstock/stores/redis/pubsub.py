"""Wake-ups from other processes: one connection listens for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import hiredis

from ...core.errors import StoreError, StoreUnavailable
from .connection import Wire, connect, locate
from .place import Place
from .resp import pack, translate

FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0  # seconds between tries to come back
PING_SECONDS = 5.0
ASK_SECONDS = 0.5  # between questions to sentinels who the master is


class Subscription:
    """Keeps a subscription alive; after every loss everyone looks, for nobody knows what was said meanwhile."""

    def __init__(
        self,
        place: Place,
        channel: str,
        origin: str,
        hear: Callable[[Iterable[str]], None],
        hear_all: Callable[[], None],
        left: Callable[[], None],
    ) -> None:
        self._place = place
        self._channel = channel
        self._origin = origin.encode()
        self._hear = hear
        self._hear_all = hear_all
        self._left = left
        self._wire: Wire | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once it listens."""
        self._wire = await self._subscribe()
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._hang_up()  # here too: a task that is cancelled before it began does nothing

    def _hang_up(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def _keep(self) -> None:
        pause = FIRST_WAIT
        while True:
            try:
                if self._wire is None:
                    self._wire = await self._subscribe()
                    self._hear_all()
                pause = FIRST_WAIT
                await self._mind(self._wire)
            except (StoreError, OSError, TimeoutError):
                self._hang_up()
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_WAIT)

    async def _mind(self, wire: Wire) -> None:
        """Until the line is lost; one that is dead without a word is found out by asking."""
        sentinels = self._place.address.master is not None
        while True:
            try:
                async with asyncio.timeout(ASK_SECONDS if sentinels else PING_SECONDS):
                    await wire.lost.wait()
            except TimeoutError:
                pass
            await wire.call(pack(("PING",)), 1)
            if sentinels:
                await self._follow(wire)

    async def _follow(self, wire: Wire) -> None:
        """A master that was replaced goes on answering for ten seconds, and all that it is told then is lost."""
        async with asyncio.timeout(ASK_SECONDS):
            master = await locate(self._place)
        if master != wire.peer:
            self._left()
            raise StoreUnavailable(f"{self._place} has another master now")

    async def _subscribe(self) -> Wire:
        wire = await connect(self._place, "penstock-live")
        try:
            (reply,) = await wire.call(pack(("SUBSCRIBE", self._channel)), 1)
            if isinstance(reply, hiredis.HiredisError):
                raise translate(reply, str(self._place))
        except BaseException:
            wire.close()
            raise
        wire.on_push = self._said
        return wire

    def _said(self, message: list[bytes]) -> None:
        origin, _, topics = message[2].partition(b"\n")
        if origin != self._origin:
            self._hear(topics.decode().split("\n"))
