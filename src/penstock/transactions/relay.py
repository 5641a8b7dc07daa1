"""The relay: hands what is in an outbox over to the store, in order, and takes it out.

It hands over first and takes out afterwards, so nothing is lost whenever it ends; what is handed over twice has its
effect once. Each relay goes through the rows it sees from the oldest on, so several of them keep the order too: whoever
is the first to hand over a row has seen every row before it handed over.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from ..commit.committer import CommitRequest, Committer
from ..core.errors import NoOutbox
from ..ports.unit import Conflict, Receipt, Unit
from .outbox import SQL, presence, unit_of
from .relay_source import Connect, Place

log = logging.getLogger("penstock.outbox")

PAGE = 200
LONGEST_WAIT = 5.0  # seconds between two tries to reach the database


class Relay:
    """Empties the outbox of one database."""

    def __init__(self, committer: Committer, namespace: str, connect: Connect) -> None:
        self._committer = committer
        self._namespace = namespace
        self._place = Place(connect)
        self._there = False  # the table, on the present connection
        self._set_aside = 0  # rows nobody could read
        self.begun = asyncio.Event()  # once it has been through the outbox

    async def run(self, every: float) -> None:
        """Goes on until it is cancelled; looks every so many seconds. What is wrong from the beginning is raised."""
        try:
            await self._turn()
            self.begun.set()
            await self._go_on(every)
        finally:
            await self._place.close()

    async def drain(self) -> int:
        """Hands over all there is and gives how many rows it was, those set aside not counted."""
        total = 0
        try:
            while count := await self._turn():
                total += count
            return total - self._set_aside
        finally:
            await self._place.close()

    async def _go_on(self, every: float) -> None:
        wait = every
        while True:
            await asyncio.sleep(wait)
            try:
                while await self._turn():
                    pass
                wait = every
            except Exception as problem:
                log.warning("the outbox cannot be read or emptied, trying again: %s", problem)
                await self._place.close()
                self._there = False
                wait = min(max(wait, 0.1) * 2, LONGEST_WAIT)

    async def _turn(self) -> int:
        """One page: read, hand over, take out."""
        place = self._place
        await self._check_there()
        rows = await place.run(SQL.waiting, self._namespace, PAGE)
        await place.finish()  # no transaction stays open while the store is waited for
        problems = await asyncio.gather(*(self._hand_over(id, text) for id, text in rows))
        await self._take_out([id for (id, _), problem in zip(rows, problems, strict=True) if problem is None])
        for (id, _), problem in zip(rows, problems, strict=True):
            if problem is not None:
                await place.run(SQL.set_aside, problem, id)
                self._set_aside += 1
        await place.finish()
        return len(rows)

    async def _check_there(self) -> None:
        if not self._there:
            line = await self._place.open()
            self._there = bool(await self._place.run(presence(line.dialect)))
        if not self._there:
            raise NoOutbox("this database has no table penstock_outbox: `penstock outbox create --in URL` makes it")

    async def _take_out(self, ids: list[str]) -> None:
        if ids:
            marks = ", ".join(f"{{{n}}}" for n in range(len(ids)))
            await self._place.run(SQL.gone.replace("(ids)", f"({marks})"), *ids)

    async def _hand_over(self, id: str, text: str) -> str | None:
        """Gives what is wrong with a row that nobody can read: it is set aside, and those after it go on."""
        try:
            unit = unit_of(text)
        except msgspec.MsgspecError as problem:
            log.error("row %s of the outbox cannot be read and is set aside: %s", id, problem)
            return f"{type(problem).__name__}: {problem}"
        await self._committer.submit(CommitRequest(_as_it_is(unit), outlasts_outage=True))
        return None


def _as_it_is(unit: Unit) -> Any:
    def build(version: int, record: bytes | None) -> Unit | Receipt:
        # A run that is there already was started by this row before, or by someone with the same key.
        return Conflict(version, record) if version else unit

    return build
