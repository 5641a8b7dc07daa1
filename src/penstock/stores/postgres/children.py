"""Parents and children. Units that concern them have a transaction of several calls, so that all others keep the one
function they need."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import asyncpg
import msgspec

from ...ports.store import ChildRow, ChildState
from ...ports.unit import (
    Cancelled,
    ClaimBatch,
    ClaimRequest,
    CommitReply,
    Committed,
    Completed,
    Dead,
    NewJob,
    Receipt,
    Refused,
    Unit,
)
from ..child_keys import child_key, error_text
from ..sql_files import Queries
from .commit import transact
from .connection import Connection
from .keeping import what_stays
from .statements import CANCELLED, COMPLETED, FAILED, Statements

_KIN = Queries(__package__, "kin.sql")
STATES = (ChildState.UNPROCESSED, ChildState.PROCESSED, ChildState.IGNORED, ChildState.FAILED)


@lru_cache(maxsize=8)
def _statements(sql: Statements) -> Any:
    """kin.sql in the schema of the store."""
    return type("Kin", (), {name: sql.placed(text) for name, text in vars(_KIN).items()})


def concern(units: Sequence[Unit]) -> bool:
    """Whether one of the units has to do with parents or children."""
    return any(unit.parent is not None or not unit.children_settled or _adds(unit.jobs) for unit in units)


def _adds(jobs: Sequence[NewJob]) -> bool:
    return any(job.waits_for_children or job.parent is not None for job in jobs)


async def transact_families(
    connection: Connection,
    sql: Statements,
    now: int | None,
    units: Sequence[Unit],
    ask: ClaimRequest | None,
    touched: set[str],
) -> CommitReply:
    """What `transact` does, with parents told of their children before work is handed out."""
    async with connection.transaction():
        family = _Family(connection, sql, units)
        await family.judge()
        kept = family.kept()
        receipts = (await transact(connection, sql, now, kept, None, touched)).receipts
        await family.write(now, kept, receipts, touched)
        await family.tidy(now, receipts)
        work = ClaimBatch()
        if ask is not None:
            work = (await transact(connection, sql, now, (), ask, touched)).claimed
        return CommitReply(family.receipts(receipts), work)


class _Family:
    """The units of one call, and what is known of each before the others are written."""

    def __init__(self, connection: Connection, sql: Statements, units: Sequence[Unit]) -> None:
        self._connection = connection
        self._sql = _statements(sql)
        self._units = units
        self._refused: dict[int, Refused] = {}
        self._known: set[int] = set()  # trees that are there already
        self._stays: dict[int, tuple[Any, ...]] = {}  # by place among what is applied: see `tidy`

    async def judge(self) -> None:
        """Takes the locks, then looks: whoever tells a parent of a child, or completes one, holds the parent's row."""
        trees = {n: unit for n, unit in enumerate(self._units) if unit.jobs and unit.jobs[0].waits_for_children}
        concerned = {unit.parent for unit in self._units if unit.parent is not None}
        ending = {n: unit.claim for n, unit in enumerate(self._units) if _completes_parent(unit)}
        concerned |= {claim.job for claim in ending.values() if claim is not None}
        await self._connection.execute(self._sql.lock_parents, sorted(concerned))
        await self._judge_trees(trees)
        handles = [claim.handle for claim in ending.values() if claim is not None]
        unsettled = {row[0] for row in await self._connection.fetch(self._sql.unsettled, handles)} if handles else set()
        for n, claim in ending.items():
            if claim is not None and claim.handle in unsettled:
                self._refused[n] = Refused("children", claim.job)

    async def _judge_trees(self, trees: dict[int, Unit]) -> None:
        ids = [job.id for unit in trees.values() for job in unit.jobs]
        there = {row[0] for row in await self._connection.fetch(self._sql.existing, ids)} if ids else set()
        for n, unit in trees.items():
            if unit.jobs[0].id in there:
                self._known.add(n)
                continue
            clash = next((job.id for job in unit.jobs if job.id in there), None)
            if clash is not None:
                self._refused[n] = Refused("job", clash)
            else:
                there |= {job.id for job in unit.jobs}

    def kept(self) -> list[Unit]:
        """What is left to be applied."""
        kept = [
            msgspec.structs.replace(unit, jobs=[]) if n in self._known else unit
            for n, unit in enumerate(self._units)
            if n not in self._refused
        ]
        return [self._without_keep(n, unit) for n, unit in enumerate(kept)]

    def _without_keep(self, n: int, unit: Unit) -> Unit:
        stays = what_stays(unit) if unit.parent is not None else None
        if stays is None:
            return unit
        self._stays[n] = stays
        return msgspec.structs.replace(unit, outcome=msgspec.structs.replace(unit.outcome, keep=None))  # type: ignore[type-var]

    async def tidy(self, now: int | None, receipts: list[Receipt]) -> None:
        """Removes children that are not to stay. Their parents have heard of them by now: a child that is gone before
        is one that nobody waits for."""
        rows = [stays for n, stays in self._stays.items() if _applied(receipts[n])]
        if rows:
            count = len(rows)
            columns = map(list, zip(*rows, strict=True))
            await self._connection.execute(self._sql.keep, now, [0] * count, list(range(1, count + 1)), *columns)

    async def write(self, now: int | None, kept: list[Unit], receipts: list[Receipt], touched: set[str]) -> None:
        ends: list[tuple[Any, ...]] = []
        for unit, receipt in zip(kept, receipts, strict=True):
            if isinstance(receipt, Committed) and not receipt.repeated:
                await self._add(unit, receipt)
                if unit.parent is not None and (end := _end(unit)) is not None:
                    ends.append(end)
        if ends:
            woken = await self._connection.fetchval(self._sql.tell, now, *map(list, zip(*ends, strict=True)))
            touched.update(f"queue:{queue}" for queue in woken)

    async def _add(self, unit: Unit, receipt: Committed) -> None:
        new = [job for job, added in zip(unit.jobs, receipt.added, strict=True) if added]
        if not _adds(new):
            return
        if unit.jobs[0].waits_for_children and len(new) < len(unit.jobs):
            # Someone has added one of these ids since we looked, perhaps the root: the whole call is made again.
            raise asyncpg.SerializationError("another has added a job of this tree")
        rows = [(job.parent, job) for job in new if job.parent is not None]
        for parent, job in rows:
            if parent.replaces is not None:
                await self._connection.execute(self._sql.replace, job.id, job.queue, parent.id, parent.replaces)
        born = [(p.id, job.id, job.queue, p.on_failure.value) for p, job in rows if p.replaces is None]
        if born:
            await self._connection.execute(self._sql.adopt, *map(list, zip(*born, strict=True)))
        await self._connection.execute(self._sql.park, [job.id for job in new if job.waits_for_children])

    def receipts(self, receipts: list[Receipt]) -> list[Receipt]:
        """One for each unit that was handed in."""
        applied = iter(receipts)
        found: list[Receipt] = []
        for n, unit in enumerate(self._units):
            receipt = self._refused[n] if n in self._refused else next(applied)
            if n in self._known and isinstance(receipt, Committed):
                receipt = msgspec.structs.replace(receipt, added=[False] * len(unit.jobs))
            found.append(receipt)
        return found


def _applied(receipt: Receipt) -> bool:
    return isinstance(receipt, Committed) and not receipt.repeated


def _completes_parent(unit: Unit) -> bool:
    return not unit.children_settled and unit.claim is not None and isinstance(unit.outcome, Completed)


def _end(unit: Unit) -> tuple[Any, ...] | None:
    """How a child ended, as tell_parents is told; None if it has not."""
    assert unit.claim is not None
    place = (unit.parent, unit.claim.job)
    match unit.outcome:
        case Completed(result=result):
            return *place, COMPLETED, b"null" if result is None else result, None
        case Dead(error=error):
            return *place, FAILED, None, error_text(error)
        case Cancelled():
            return *place, CANCELLED, None, None
        case _:
            return None


async def dropped(connection: Connection, sql: Statements, now: int | None, ids: list[str]) -> set[str]:
    """Jobs were deleted: nobody waits for them any more. Gives the topics of parents that can go on."""
    woken = await connection.fetchval(_statements(sql).drop, now, ids)
    return {f"queue:{queue}" for queue in woken}


async def forget(connection: Connection, sql: Statements, scopes: list[str]) -> None:
    """What children gave goes with the last job that could read it."""
    await connection.execute(_statements(sql).forget, scopes)


async def retried(connection: Connection, sql: Statements, id: str) -> None:
    """A failed job was put back: its parent waits for it again, and it for its own children that are not done."""
    await connection.execute(_statements(sql).wait_again, id)
    await connection.execute(_statements(sql).wait_for_children, id)


async def children(connection: Connection, sql: Statements, id: str) -> list[ChildRow]:
    rows = await connection.fetch(_statements(sql).children, id)
    return sorted((_row(*row) for row in rows), key=lambda row: row.key)


def _row(queue: str, child: str, state: int, value: bytes | None, why: str | None) -> ChildRow:
    ignored = STATES[state] is ChildState.IGNORED
    return ChildRow(child_key(queue, child), queue, child, STATES[state], value, why if ignored else None)
