"""Objects in memory, for tests and for one process. They are lost when it ends."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from heapq import nsmallest

from ..core.clock import Clock, SystemClock
from ..ports.blobs import ObjectFacts

CHUNK_BYTES = 2**20


class MemoryObjects:
    """An object store in the memory of this process."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._objects: dict[str, tuple[ObjectFacts, bytes]] = {}
        self._puts = 0

    async def put(self, path: str, data: bytes | AsyncIterable[bytes], content_type: str | None = None) -> str | None:  # noqa: ARG002
        content = data if isinstance(data, bytes) else b"".join([bytes(chunk) async for chunk in data])
        self._puts += 1
        facts = ObjectFacts(path, len(content), self._clock.now_ms(), str(self._puts))
        self._objects[path] = (facts, content)
        return facts.tag

    async def open(self, path: str) -> MemoryReader | None:
        found = self._objects.get(path)
        return None if found is None else MemoryReader(*found)

    async def head(self, path: str) -> ObjectFacts | None:
        found = self._objects.get(path)
        return None if found is None else found[0]

    async def delete(self, path: str) -> None:
        self._objects.pop(path, None)

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 100) -> list[ObjectFacts]:
        found = (facts for facts, _ in self._objects.values() if facts.path.startswith(prefix))
        return nsmallest(limit, (one for one in found if after is None or one.path > after), key=lambda one: one.path)

    async def sign(self, _method: str, _path: str, _expires_s: int) -> str | None:
        return None


class MemoryReader:
    """One object."""

    def __init__(self, facts: ObjectFacts, content: bytes) -> None:
        self.facts = facts
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), CHUNK_BYTES):
            yield self._content[start : start + CHUNK_BYTES]
