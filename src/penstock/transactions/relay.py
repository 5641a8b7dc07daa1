"""The relay: delivers the rows of an outbox to the store, in order, and then deletes them.

A row is deleted only after the store has committed it, so a relay that dies loses nothing, and a row that is delivered
twice takes effect once. Every relay reads the rows it sees from the oldest on. So several relays keep the order too:
the one that delivers a row first has seen every earlier row delivered.
"""

from __future__ import annotations

import asyncio
import logging

from ..commit.committer import Build, CommitRequest, Committer
from ..core.errors import NoOutbox
from ..core.event_shapes import UNREADABLE_ERRORS
from ..ports.unit import Conflict, Receipt, Unit
from .outbox import SQL, decode_unit, exists_statement
from .relay_source import Connect, RelaySource

log = logging.getLogger("penstock.outbox")

PAGE_ROWS = 200
RECONNECT_MIN_WAIT_S = 0.2
RECONNECT_MAX_WAIT_S = 5.0


class Relay:
    """Empties the outbox of one database."""

    def __init__(self, committer: Committer, namespace: str, connect: Connect) -> None:
        self._committer = committer
        self._namespace = namespace
        self._source = RelaySource(connect)
        self._has_table = False  # on the present connection
        self._unreadable = 0  # rows of this relay that could not be decoded
        self.started = asyncio.Event()  # set after the first page

    async def run(self, every: float) -> None:
        """Deliver rows until cancelled, looking for new ones every `every` seconds. Raise if the first page fails."""
        try:
            await self._deliver_page()
            self.started.set()
            await self._poll(every)
        finally:
            await self._source.close()

    async def drain(self) -> int:
        """Deliver all rows and return how many there were, without the unreadable ones."""
        total = 0
        try:
            while count := await self._deliver_page():
                total += count
            return total - self._unreadable
        finally:
            await self._source.close()

    async def _poll(self, every: float) -> None:
        wait = every
        while True:
            await asyncio.sleep(wait)
            try:
                while await self._deliver_page():
                    pass
                wait = every
            except Exception as problem:
                wait = min(max(wait * 2, RECONNECT_MIN_WAIT_S), RECONNECT_MAX_WAIT_S)
                log.warning("cannot read or empty the outbox, trying again in %.1f s: %s", wait, problem)
                await self._source.close()
                self._has_table = False

    async def _deliver_page(self) -> int:
        source = self._source
        await self._check_table()
        rows = await source.execute(SQL.read_page, self._namespace, PAGE_ROWS)
        await source.commit()  # keep no transaction open while waiting for the store
        errors = await asyncio.gather(*(self._deliver(id, text) for id, text in rows))
        await self._delete([id for (id, _), error in zip(rows, errors, strict=True) if error is None])
        for (id, _), error in zip(rows, errors, strict=True):
            if error is not None:
                await source.execute(SQL.set_error, error, id)
                self._unreadable += 1
        await source.commit()
        return len(rows)

    async def _check_table(self) -> None:
        if not self._has_table:
            connection = await self._source.open()
            self._has_table = bool(await self._source.execute(exists_statement(connection.dialect)))
        if not self._has_table:
            raise NoOutbox(
                "this database has no table penstock_outbox; run `penstock outbox create --in URL` to create it"
            )

    async def _delete(self, ids: list[str]) -> None:
        if ids:
            placeholders = ", ".join(f"{{{n}}}" for n in range(len(ids)))
            await self._source.execute(SQL.delete.replace("(ids)", f"({placeholders})"), *ids)

    async def _deliver(self, id: str, text: str) -> str | None:
        """Commit a row's unit. Return the error of a row that cannot be decoded: it is skipped from then on."""
        try:
            unit = decode_unit(text)
        except UNREADABLE_ERRORS as problem:
            log.error("cannot decode row %s of the outbox, skipping it: %s", id, problem)
            return f"{type(problem).__name__}: {problem}"
        await self._committer.submit(CommitRequest(_unless_run_exists(unit), outlasts_outage=True))
        return None


def _unless_run_exists(unit: Unit) -> Build:
    def build(version: int, record: bytes | None) -> Unit | Receipt:
        # The run was started by an earlier delivery of this row, or by a caller with the same key.
        return Conflict(version, record) if version else unit

    return build
