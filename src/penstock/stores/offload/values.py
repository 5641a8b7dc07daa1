"""Large values in the blob store, by the hash of their bytes: equal values exist once."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Iterable

from ...core.clock import Clock
from ...core.errors import BlobCorrupt, BlobUnavailable
from ...core.references import REFERENCES, fill_references, find_references
from ...ports.blobs import ObjectStore
from ...ports.store import State
from .parts import MIN_PART_BYTES, SeenParts
from .units import FENCES, LargeValue

VALUES = "values/"
TRIES = 3
PAUSE_S = 0.1
CACHE_BYTES = 32 * 2**20
AT_ONCE = 8
# A value that was seen or uploaded is committed within FRESH_MS, or seen again. Who deletes one raises a fence that
# stands longer: so a commit that refers to it is either found by the deletion or refused by the fence.
FRESH_MS, FENCE_MS = 10 * 60_000, 60 * 60_000
MAX_FRESH = 10_000


class Values:
    """Uploads and reads values."""

    def __init__(self, objects: ObjectStore, state: State, clock: Clock) -> None:
        self._objects = objects
        self._state = state
        self._clock = clock
        self._fresh: OrderedDict[str, int] = OrderedDict()  # when a name was last known to be in the blob store
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.seen = SeenParts()

    async def upload(self, values: Iterable[LargeValue]) -> dict[str, str]:
        """Make sure that each object is in the blob store, and return its name by its digest."""
        wanted = {one.digest: one.data for one in values}
        names = await asyncio.gather(*(self._upload(digest, data) for digest, data in wanted.items()))
        return dict(zip(wanted, names, strict=True))

    def forget(self, names: Iterable[str]) -> None:
        """Look at these again before the next commit: a commit was refused by a fence."""
        for name in names:
            self._fresh.pop(name, None)

    async def fill(self, data: bytes) -> bytes:
        """Return a JSON document with its values. References to values that are gone stay."""
        if not (names := find_references(data)):
            return data
        return fill_references(data, await self.read(names))

    async def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the values that exist, by name."""
        wanted = list(names)
        found = await asyncio.gather(*map(self._read, wanted))
        return {name: data for name, data in zip(wanted, found, strict=True) if data is not None}

    async def _upload(self, digest: str, data: bytes) -> str:
        now = self._clock.now_ms()
        if self._fresh.get(digest, -FRESH_MS) > now - FRESH_MS:
            return digest
        # Equal bytes under this name are being deleted: these get a name of their own.
        is_fenced = await self._state.state(FENCES + digest) is not None
        name = f"{digest}-{secrets.token_hex(4)}" if is_fenced else digest
        if not await self._state.states(f"{REFERENCES}{name}/", limit=1):
            await self._put(name, data)
        self._fresh[name] = now
        if len(self._fresh) > MAX_FRESH:
            self._fresh.popitem(last=False)
        self._remember(name, data)
        return name

    async def _put(self, name: str, data: bytes) -> None:
        for tries in range(1, TRIES + 1):
            try:
                async with self._slots:
                    await self._objects.put(VALUES + name, data, "application/json")
                return
            except BlobUnavailable:
                if tries == TRIES:
                    raise
                await asyncio.sleep(PAUSE_S * 2**tries)

    async def _read(self, name: str) -> bytes | None:
        if (known := self._cache.get(name)) is not None:
            self._cache.move_to_end(name)
            return known
        async with self._slots:
            reader = await self._objects.open(VALUES + name)
            if reader is None:
                return None
            data = b"".join([chunk async for chunk in reader])
        if hashlib.sha256(data).hexdigest() != name[:64]:
            raise BlobCorrupt(f"the stored value {name[:12]}… is damaged: its hash is another one")
        self._remember(name, data)
        self.seen.add([name[:64]])
        if len(data) > 2 * MIN_PART_BYTES:
            self.seen.add_value(data)
        return data

    def _remember(self, name: str, data: bytes) -> None:
        """Keep a value for the next read: a handler that continues reads its memos again."""
        if name in self._cache or len(data) > CACHE_BYTES // 4:
            return
        self._cache[name] = data
        self._cached_bytes += len(data)
        while self._cached_bytes > CACHE_BYTES:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)
