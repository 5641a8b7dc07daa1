"""The relay: delivers the rows of an outbox to the store, in order, and then deletes them.

A row is deleted only after the store has committed it, so a relay that dies loses nothing, and a row that is delivered
twice takes effect once. Every relay reads the rows it sees from the oldest on. So several relays keep the order too:
the one that delivers a row first has seen every earlier row delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..commit.committer import Build, CommitRequest, Committer
from ..core.errors import BadArgument, NoOutbox, StoreError, StoreUnavailable
from ..ports.unit import Conflict, Receipt, Refused, Unit
from .outbox import SQL, decode_unit, exists_statement
from .outbox_database import Connect, RelaySource

log = logging.getLogger("penstock.outbox")

PAGE_ROWS = 200
PAGE_BYTES = 4 * 2**20
MAX_ERROR_CHARS = 2000
RECONNECT_MIN_WAIT_S = 0.2
RECONNECT_MAX_WAIT_S = 5.0
PROBE = "outbox-probe"
ALREADY_APPLIED = "duplicate"  # the store refuses a unit whose key was used


class FailedRow(NamedTuple):
    """A row that cannot be delivered and was set aside."""

    seq: int  # its number in the outbox
    id: str
    summary: str
    error: str


class Relay:
    """Empties the outbox of one database."""

    def __init__(self, committer: Committer, namespace: str, connect: Connect) -> None:
        self._committer = committer
        self._namespace = namespace
        self._source = RelaySource(connect)
        self._dialect = ""  # of the present connection, once its table was found
        self._set_aside = 0  # rows that this relay could not deliver
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
        """Deliver all rows and return how many there were, without those that were set aside."""
        total = 0
        try:
            while count := await self._deliver_page():
                total += count
            return total - self._set_aside
        finally:
            await self._source.close()

    async def failed(self, after: int, limit: int) -> list[FailedRow]:
        """Return rows that were set aside, oldest first."""
        try:
            await self._check_table()
            read = getattr(SQL, f"read_failed_{self._dialect}")
            rows = await self._source.execute(read, self._namespace, after, limit)
            return [FailedRow(seq, *map(_to_text, texts)) for seq, *texts in rows]
        finally:
            await self._source.close()

    async def count_waiting(self) -> int:
        """Return how many rows wait to be delivered."""
        try:
            await self._check_table()
            return int((await self._source.execute(SQL.count_waiting, self._namespace))[0][0])
        finally:
            await self._source.close()

    async def retry(self, seqs: Iterable[int] | None) -> None:
        """Let the relay deliver rows again that were set aside, all or some."""
        try:
            await self._check_table()
            if seqs is None:
                await self._source.execute(SQL.clear_errors, self._namespace)
            for seq in seqs or ():
                await self._source.execute(SQL.clear_error, self._namespace, seq)
            await self._source.commit()
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
                self._dialect = ""

    async def _deliver_page(self) -> int:
        source = self._source
        await self._check_table()
        read = getattr(SQL, f"read_page_{self._dialect}")
        rows = await source.execute(read, self._namespace, PAGE_ROWS, PAGE_BYTES)
        await source.commit()  # keep no transaction open while waiting for the store
        found = await asyncio.gather(*(self._deliver(row[2]) for row in rows), return_exceptions=True)
        await self._delete([seq for (seq, *_), problem in zip(rows, found, strict=True) if problem is None])
        failed = [(row, problem) for row, problem in zip(rows, found, strict=True) if problem is not None]
        for row, problem in failed:
            if not await self._is_about_row(problem, has_delivered=len(failed) < len(rows)):
                raise problem
            await self._set_row_aside(row, problem)
        await source.commit()
        return len(rows)

    async def _is_about_row(self, problem: BaseException, *, has_delivered: bool) -> bool:
        """Return whether only this row cannot be written. The store may refuse all of them, or be away."""
        if isinstance(problem, StoreUnavailable) or not isinstance(problem, Exception):
            return False
        if has_delivered or not isinstance(problem, StoreError):
            return True
        probe = Unit(PROBE, once_key=PROBE)
        await self._committer.submit(CommitRequest(lambda _v, _r: probe))
        return True

    async def _set_row_aside(self, row: tuple[Any, ...], problem: BaseException) -> None:
        self._set_aside += 1
        seq, id, _ = row
        error = _to_text(f"{type(problem).__name__}: {problem}")[:MAX_ERROR_CHARS]
        log.error("cannot deliver row %s of the outbox (id %s), setting it aside: %s", seq, _to_text(id), error)
        await self._source.execute(SQL.set_error, error, seq)

    async def _check_table(self) -> None:
        if self._dialect:
            return
        dialect = (await self._source.open()).dialect
        if not await self._source.execute(exists_statement(dialect)):
            raise NoOutbox(
                "this database has no table penstock_outbox; run `penstock outbox create --in URL` to create it"
            )
        try:
            await self._source.execute(SQL.has_columns)
        except Exception as problem:
            raise NoOutbox(
                f"the table penstock_outbox cannot be read ({problem}); it needs the columns that `penstock outbox "
                f"sql --dialect {dialect}` prints, and the right to read them"
            ) from problem
        self._dialect = dialect

    async def _delete(self, seqs: list[int]) -> None:
        if seqs:
            placeholders = ", ".join(f"{{{n}}}" for n in range(len(seqs)))
            await self._source.execute(SQL.delete.replace("(seqs)", f"({placeholders})"), *seqs)

    async def _deliver(self, text: Any) -> None:
        """Commit a row's unit. Raise for one that cannot be decoded or written."""
        unit = decode_unit(text)
        receipt = await self._committer.submit(CommitRequest(_unless_run_exists(unit), outlasts_outage=True))
        if isinstance(receipt, Refused) and receipt.why != ALREADY_APPLIED:
            raise BadArgument(f"the store refused the row ({receipt.why} {receipt.key!r}), and would do so every time")


def _to_text(value: Any) -> str:
    """Return text that can be shown and stored, whatever a row had."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _unless_run_exists(unit: Unit) -> Build:
    def build(version: int, record: bytes | None) -> Unit | Receipt:
        # The run was started by an earlier delivery of this row, or by a caller with the same key.
        return Conflict(version, record) if version else unit

    return build
