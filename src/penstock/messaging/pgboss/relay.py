"""Send events as jobs to pg-boss.

A commit writes the event, and the relay sends the job. The relay saves its cursor after the jobs are sent. The id of a
job is derived from its event, so a job that is sent again is not added again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from uuid import NAMESPACE_URL, uuid5

from ...core.errors import ConfigError, PenstockError, StoreError, StoreUnavailable
from ...ports.bridge import BridgeHost
from ...ports.store import FeedItem
from ...stores.postgres.connection import Connections
from .queues import Queues, is_row_error

log = logging.getLogger("penstock.pgboss")
PAGE_EVENTS = 500
POLL_INTERVAL_S = 1.0
RETRY_WAIT_S = 1.0  # after an error


class EventRelay:
    """Sends events of some kinds to queues of pg-boss."""

    def __init__(
        self, kinds: Mapping[str, str], host: BridgeHost, queues: Queues, connections: Connections, schema: str
    ) -> None:
        self._kinds = kinds
        self._host = host
        self._queues = queues
        self._connections = connections
        self._key = f"pgboss/{schema}/relayed"

    async def start(self) -> None:
        """Save the present end of the feed as the cursor, unless there is a cursor. Raise ConfigError for an invalid
        one: events would be lost or sent again from any other position."""
        cursor = await self._host.load_value(self._key)
        if cursor is None:
            newest = await self._host.store.feed(None)
            await self._host.save_value(self._key, newest[-1].cursor if newest else "")
            return
        try:
            if not isinstance(cursor, str):
                raise TypeError
            await self._host.store.feed(cursor, 1)
        except StoreUnavailable:
            raise
        except Exception:
            raise ConfigError(
                f"the state {self._key!r} must be a cursor of the events that were sent to pg-boss, got "
                f"{repr(cursor)[:80]}; delete it to send only new events (`penstock state delete {self._key}`), or "
                'set it to "" to send all events again'
            ) from None

    async def run(self) -> None:
        with self._host.store.signals.listen("events") as listener:
            while True:
                try:
                    if not await self.relay_page():
                        await listener.wait(POLL_INTERVAL_S)
                except StoreError as problem:
                    log.warning("cannot relay events to pg-boss, trying again in %.0f s: %s", RETRY_WAIT_S, problem)
                    await asyncio.sleep(RETRY_WAIT_S)
                except Exception:
                    log.exception("cannot relay events to pg-boss, trying again in %.0f s", RETRY_WAIT_S)
                    await asyncio.sleep(RETRY_WAIT_S)

    async def relay_page(self) -> int:
        """Send the events of the next page of the feed. Return how many events the page had."""
        store, cursor = self._host.store, await self._host.load_value(self._key)
        items = await store.feed(cursor, PAGE_EVENTS)
        # The feed is for people: its events are redacted. Jobs are sent with the data as emitted.
        emitted: dict[str, FeedItem] = {}
        for kind in {item.event.kind for item in items} & self._kinds.keys():
            emitted |= {item.cursor: item for item in await store.events_by_kind(kind, after=cursor, limit=PAGE_EVENTS)}
        for item in items:
            if item.event.kind in self._kinds:
                await self._send(emitted.get(item.cursor, item))
        if items:
            await self._host.save_value(self._key, items[-1].cursor)
        return len(items)

    async def _send(self, item: FeedItem) -> None:
        queue, event = self._kinds[item.event.kind], item.event
        id = str(uuid5(NAMESPACE_URL, f"penstock:{item.stream}/{event.id}"))
        try:
            await self._connections.run(lambda c: self._queues.send(c, queue, event.data, id=id))
        except PenstockError as problem:
            if isinstance(problem, StoreError) and not is_row_error(problem):
                raise
            # It would fail every time: skip it, so that later events are sent.
            log.error("cannot send event %s of %s to pg-boss, skipping it: %s", event.id, item.stream, problem)
