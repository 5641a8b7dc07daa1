"""Removes values that nobody refers to any more, and uploads that no commit followed."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...core.clock import Clock
from ...core.references import REFERENCES
from ...ports.blobs import ObjectFacts, ObjectStore
from ...ports.store import StateRow, Store
from ...ports.unit import Committed, StateWrite, Unit
from .units import FENCES, JOB, RUN
from .values import FENCE_MS, FRESH_MS, VALUES

log = logging.getLogger("penstock.blobs")
PAGE = 200


class ValueSweeper:
    """Compares references with those who own them, and values with references, a page at each call."""

    def __init__(
        self, store: Store, objects: ObjectStore, clock: Clock, new_unit_id: Callable[[], str], grace_ms: int
    ) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock
        self._unit_id = new_unit_id
        self._grace_ms = grace_ms
        self._last_reference: str | None = None
        self._last_value: str | None = None

    async def sweep(self) -> dict[str, int]:
        """Look at one page of references and one of values, and return how many of each were removed."""
        return {"references": await self._sweep_references(), "values": await self._sweep_values()}

    async def sweep_all(self) -> dict[str, int]:
        """Look at all references and all values once."""
        self._last_reference = self._last_value = None
        total = {"references": 0, "values": 0}
        while True:
            total["references"] += await self._sweep_references()
            if self._last_reference is None:
                break
        while True:
            total["values"] += await self._sweep_values()
            if self._last_value is None:
                return total

    async def _sweep_references(self) -> int:
        rows = await self._store.states(REFERENCES, after=self._last_reference, limit=PAGE)
        self._last_reference = rows[-1].key if len(rows) == PAGE else None
        return sum([await self._remove_reference(row) for row in rows])

    async def _remove_reference(self, row: StateRow) -> bool:
        """Remove a reference whose owner is gone. If it was written again meanwhile, it stays."""
        kind, _, id = row.key.removeprefix(REFERENCES).partition("/")[2].partition(":")
        if not await self._is_gone(kind, id, int(row.value)):
            return False
        return await self._write(StateWrite(row.key, None, row.version))

    async def _is_gone(self, kind: str, id: str, at: int) -> bool:
        if kind == RUN:
            return await self._store.run(id) is None
        if kind == JOB:
            return await self._store.job(id) is None
        # A stream loses its oldest events. A reference is written shortly before its event gets its time.
        first = await self._store.read(id, limit=1)
        return not first or int(first[0].id.partition("-")[0]) > at + self._grace_ms

    async def _sweep_values(self) -> int:
        found = await self._objects.list(VALUES, after=self._last_value, limit=PAGE)
        self._last_value = found[-1].path if len(found) == PAGE else None
        return sum([await self._remove_value(facts) for facts in found])

    async def _remove_value(self, facts: ObjectFacts) -> bool:
        name, now = facts.path.removeprefix(VALUES), self._clock.now_ms()
        if facts.modified_ms > now - self._grace_ms or await self._is_referenced(name):
            return False  # in use, or its commit is on the way
        # From here on no commit can refer to it. One that did so before is found by the second look.
        if not await self._write(StateWrite(FENCES + name, b"1", 0, now + FENCE_MS)):
            return False  # another sweep deletes it
        if await self._is_referenced(name) or self._clock.now_ms() > now + FRESH_MS:
            await self._write(StateWrite(FENCES + name, None))
            return False
        await self._objects.delete(facts.path)
        log.info("removed value %s with %d bytes, which nobody refers to", name[:12], facts.size)
        return True

    async def _is_referenced(self, name: str) -> bool:
        return bool(await self._store.states(f"{REFERENCES}{name}/", limit=1))

    async def _write(self, write: StateWrite) -> bool:
        unit = Unit(self._unit_id(), state=[write])
        return isinstance((await self._store.commit([unit])).receipts[0], Committed)
