"""In-process wake-ups by topic, shared by every store: a store says what changed, listeners look for themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class TopicListener:
    """One party's ear. A change before `wait` is not missed: it is remembered until the next wait."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        self._changed.set()

    async def wait(self, timeout: float | None = None) -> bool:
        if not self._changed.is_set():
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                return False
        self._changed.clear()
        return True


class TopicSignals:
    """Who listens to what. Used on one event loop; other threads go through `call_soon_threadsafe`."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[TopicListener]] = {}

    @contextmanager
    def listen(self, *topics: str) -> Iterator[TopicListener]:
        listener = TopicListener()
        for topic in topics:
            self._listeners.setdefault(topic, set()).add(listener)
        try:
            yield listener
        finally:
            for topic in topics:
                left = self._listeners[topic]
                left.discard(listener)
                if not left:
                    del self._listeners[topic]

    def fire(self, topics: Iterable[str]) -> None:
        # A commit touches many topics, of which hardly any has a listener.
        for topic in self._listeners.keys() & topics:
            for listener in self._listeners[topic]:
                listener.notify()

    def notify_all(self) -> None:
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.notify()

    @property
    def silent(self) -> bool:
        return not self._listeners
