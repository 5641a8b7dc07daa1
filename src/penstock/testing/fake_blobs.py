"""The blob store of a FakeContext: in memory, without a loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..blobs.memory import MemoryObjects
from ..context.blobs import BlobView, SyncBlobView
from ..core.blob_keys import check_blob_key
from ..core.clock import Clock
from ..core.durations import Duration, to_ms
from ..ports.blobs import Blob, BlobData


class FakeBlobs(BlobView):
    """Blobs of one test. Keys and contents are checked as usual."""

    def __init__(
        self, clock: Clock, run: Callable[[Coroutine[Any, Any, Any]], Any], first: Mapping[str, BlobData]
    ) -> None:
        super().__init__(MemoryObjects(clock))
        self._clock = clock
        for key, data in first.items():
            run(self.put(key, read_now(data)))

    async def url(self, key: str, *, expires: Duration = "15m", method: str = "GET") -> str:
        """Return a URL that shows what was asked for."""
        due = (self._clock.now_ms() + to_ms(expires)) // 1000
        return f"https://blobs.test/{quote(check_blob_key(key))}?method={method}&expires={due}"


class FakeSyncBlobs(SyncBlobView):
    """Blobs for `def` steps, without a loop or a thread."""

    def __init__(self, view: BlobView, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._view = view
        self._run = run

    def put(self, key: str, data: BlobData, *, content_type: str | None = None) -> Blob:
        """Put a blob at once, and return it."""
        return super().put(key, read_now(data), content_type=content_type)

    def _wait(self, work: Any) -> Any:
        return self._run(work)


def read_now(data: Any) -> BlobData:
    """Return data that needs no thread to be read."""
    if isinstance(data, Path):
        return data.read_bytes()
    if hasattr(data, "read"):
        return bytes(data.read())
    if isinstance(data, Iterable) and not isinstance(data, bytes | bytearray | memoryview | str | dict):
        return b"".join(data)
    return data  # type: ignore[no-any-return]
