"""In-process wake-ups by topic, for every store: a store signals what changed, and listeners read it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

ANY_TOPIC = "*"
STREAM_TOPIC = "stream:"


class TopicListener:
    """Waits for changes. A change before `wait` is not missed: the next `wait` returns at once."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._topics: set[str] = set()

    def notify(self) -> None:
        self._changed.set()

    def note(self, topic: str) -> None:
        """Wake the listener for a topic."""
        self._topics.add(topic)
        self._changed.set()

    def take_topics(self) -> set[str]:
        """Return what changed since the last call; `*` stands for any topic."""
        topics, self._topics = self._topics, set()
        return topics

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for a change. Return False if there was none within `timeout` seconds."""
        if not self._changed.is_set():
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                return False
        self._changed.clear()
        return True


class TopicSignals:
    """The listeners of each topic. Use it on one event loop; other threads go through `call_soon_threadsafe`."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[TopicListener]] = {}
        self.listeners = 0

    @contextmanager
    def listen(self, *topics: str) -> Iterator[TopicListener]:
        listener = TopicListener()
        self.listeners += 1
        for topic in topics:
            self._listeners.setdefault(topic, set()).add(listener)
        try:
            yield listener
        finally:
            self.listeners -= 1
            for topic in topics:
                others = self._listeners[topic]
                others.discard(listener)
                if not others:
                    del self._listeners[topic]

    def fire(self, topics: Iterable[str]) -> None:
        # A commit changes many topics, and hardly any has a listener.
        for topic in self._listeners.keys() & topics:
            for listener in self._listeners[topic]:
                listener.note(topic)

    def notify_all(self) -> None:
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.note(ANY_TOPIC)

    def fire_foreign(self, streams: Iterable[str]) -> None:
        """Wake the listeners of these streams, and those of every topic that is not a stream: another process has
        written, and only the streams are known."""
        changed = {STREAM_TOPIC + stream for stream in streams}
        for topic, listeners in self._listeners.items():
            if topic in changed or not topic.startswith(STREAM_TOPIC):
                for listener in listeners:
                    listener.note(topic if topic in changed else ANY_TOPIC)

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)
