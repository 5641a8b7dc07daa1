"""Wake-ups from other processes: one connection listens for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ...core.errors import StoreError
from .address import Address
from .connection import Wire, connect
from .resp import pack

FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0  # seconds between tries to come back
PING_SECONDS = 5.0


class Subscription:
    """Keeps a subscription alive; after every loss everyone looks, for nobody knows what was said meanwhile."""

    def __init__(
        self,
        address: Address,
        channel: str,
        origin: str,
        hear: Callable[[Iterable[str]], None],
        hear_all: Callable[[], None],
    ) -> None:
        self._address = address
        self._channel = channel
        self._origin = origin.encode()
        self._hear = hear
        self._hear_all = hear_all
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once it listens."""
        wire = await self._subscribe()
        self._task = asyncio.create_task(self._keep(wire))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _keep(self, wire: Wire | None) -> None:
        pause = FIRST_WAIT
        while True:
            try:
                if wire is None:
                    wire = await self._subscribe()
                    self._hear_all()
                pause = FIRST_WAIT
                await self._mind(wire)
            except StoreError:
                wire = None
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_WAIT)
            except BaseException:
                if wire is not None:
                    wire.close()
                raise

    async def _mind(self, wire: Wire) -> None:
        """Until the line is lost; one that is dead without a word is found out by asking."""
        while True:
            try:
                async with asyncio.timeout(PING_SECONDS):
                    await wire.lost.wait()
            except TimeoutError:
                pass
            await wire.call(pack(("PING",)), 1)

    async def _subscribe(self) -> Wire:
        wire = await connect(self._address, "penstock-live")
        await wire.call(pack(("SUBSCRIBE", self._channel)), 1)
        wire.on_push = self._said
        return wire

    def _said(self, message: list[bytes]) -> None:
        origin, _, topics = message[2].partition(b"\n")
        if origin != self._origin:
            self._hear(topics.decode().split("\n"))
