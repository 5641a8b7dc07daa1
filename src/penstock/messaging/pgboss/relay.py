"""Events of ours that become jobs of pg-boss.

The event is what a commit wrote; the job follows from it. Where the reading has come to is remembered after the jobs
are there, and a job's id follows from its event, so one that is sent again is not added again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from uuid import NAMESPACE_URL, uuid5

from ...core.errors import PenstockError, StoreError
from ...ports.bridge import BridgeHost
from ...ports.store import FeedItem
from ...stores.postgres.connection import Connections
from .queues import Queues

log = logging.getLogger("penstock.pgboss")
PAGE = 500
AFTER_TROUBLE = 1.0  # seconds


class Relay:
    """Sends events of some kinds to queues."""

    def __init__(
        self, kinds: Mapping[str, str], hands: BridgeHost, queues: Queues, connections: Connections, place: str
    ) -> None:
        self._kinds = kinds
        self._hands = hands
        self._queues = queues
        self._connections = connections
        self._key = f"pgboss/{place}/relayed"

    async def begin(self) -> None:
        """From now on, the first time; later from where it was left."""
        if await self._hands.load_value(self._key) is None:
            newest = await self._hands.store.feed(None)
            await self._hands.save_value(self._key, newest[-1].cursor if newest else "")

    async def run(self) -> None:
        with self._hands.store.signals.listen("events") as listener:
            while True:
                try:
                    if not await self.relay_page():
                        await listener.wait(1.0)
                except StoreError as problem:
                    log.warning("events are not relayed to pg-boss for now: %s", problem)
                    await asyncio.sleep(AFTER_TROUBLE)
                except Exception:
                    log.exception("events are not relayed to pg-boss for now")
                    await asyncio.sleep(AFTER_TROUBLE)

    async def relay_page(self) -> int:
        """Sends what is in the next page of the feed; gives how long the page was."""
        items = await self._hands.store.feed(await self._hands.load_value(self._key), PAGE)
        for item in items:
            if item.event.kind in self._kinds:
                await self._send(item)
        if items:
            await self._hands.save_value(self._key, items[-1].cursor)
        return len(items)

    async def _send(self, item: FeedItem) -> None:
        queue, event = self._kinds[item.event.kind], item.event
        id = str(uuid5(NAMESPACE_URL, f"penstock:{item.stream}/{event.id}"))
        try:
            await self._connections.run(lambda c: self._queues.send(c, queue, event.data, id=id))
        except StoreError:
            raise
        except PenstockError as problem:  # it would be so for ever: the next ones are not to wait for it
            log.error("event %s of %s is not sent to pg-boss: %s", event.id, item.stream, problem)
