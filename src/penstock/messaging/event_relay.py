"""Send events as messages to the queues of another system.

A commit writes the event, and the relay sends the message. The relay saves its cursor after the messages are sent. The
id of a message is derived from its event, so a system that knows ids does not add a message twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from uuid import NAMESPACE_URL, uuid5

from ..core.errors import ConfigError, PenstockError, StoreError, StoreUnavailable
from ..ports.bridge import BridgeHost
from ..ports.store import FeedItem

log = logging.getLogger("penstock.messaging")
PAGE_EVENTS = 500
POLL_INTERVAL_S = 1.0
RETRY_WAIT_S = 1.0  # after an error


def job_id_of(item: FeedItem) -> str:
    """Return the id of the message of an event, the same each time."""
    return str(uuid5(NAMESPACE_URL, f"penstock:{item.stream}/{item.event.id}"))


class EventRelay:
    """Sends events of some kinds to queues.

    `send` sends one event to a queue. `may_skip` says which errors the same event would raise each time.
    """

    def __init__(
        self,
        kinds: Mapping[str, str],
        host: BridgeHost,
        key: str,
        send: Callable[[str, FeedItem], Awaitable[None]],
        may_skip: Callable[[PenstockError], bool] = lambda problem: not isinstance(problem, StoreError),
    ) -> None:
        self._kinds = kinds
        self._host = host
        self._key = key
        self._send = send
        self._may_skip = may_skip

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
                f"the state key {self._key!r} must contain the cursor of the last event sent, got "
                f"{repr(cursor)[:80]}. To send only new events, delete the key (`penstock state delete {self._key}`). "
                'To send all events again, set it to ""'
            ) from None

    async def run(self, stopping: asyncio.Event) -> None:
        """Send events until stopped."""
        with self._host.store.signals.listen("events") as listener:
            while not stopping.is_set():
                try:
                    if not await self.relay_page():
                        await listener.wait(POLL_INTERVAL_S)
                except StoreError as problem:
                    log.warning("cannot relay events, trying again in %.0f s: %s", RETRY_WAIT_S, problem)
                    await asyncio.sleep(RETRY_WAIT_S)
                except Exception:
                    log.exception("cannot relay events, trying again in %.0f s", RETRY_WAIT_S)
                    await asyncio.sleep(RETRY_WAIT_S)

    async def relay_page(self) -> int:
        """Send the events of the next page of the feed. Return how many events the page had."""
        store, cursor = self._host.store, await self._host.load_value(self._key)
        items = await store.feed(cursor, PAGE_EVENTS)
        # The feed is for people: its events are redacted. Messages are sent with the data as emitted.
        emitted: dict[str, FeedItem] = {}
        for kind in {item.event.kind for item in items} & self._kinds.keys():
            emitted |= {item.cursor: item for item in await store.events_by_kind(kind, after=cursor, limit=PAGE_EVENTS)}
        for item in items:
            if item.event.kind in self._kinds:
                await self._send_one(emitted.get(item.cursor, item))
        if items:
            await self._host.save_value(self._key, items[-1].cursor)
        return len(items)

    async def _send_one(self, item: FeedItem) -> None:
        try:
            await self._send(self._kinds[item.event.kind], item)
        except PenstockError as problem:
            if not self._may_skip(problem):
                raise
            # It would fail every time: skip it, so that later events are sent.
            log.error("cannot send event %s of %s, skipping it: %s", item.event.id, item.stream, problem)
