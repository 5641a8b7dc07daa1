"""Retention in batches small enough that no commit waits long for them, and facts for `penstock doctor`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from ...ports.monitoring import RATES_KEPT_MS
from ...ports.store import Retention
from ...ports.unit import DELIVERIES
from ..batches import MAX_LEASE_MS, SweepBatch
from .address import Address
from .admin import delete as delete_jobs
from .connection import Connection
from .events import row_count, trim
from .statements import Statements

ONCE_KEPT_MS = 7 * 86_400_000
UNITS_KEPT_MS = 86_400_000  # no commit is repeated later than this after its reply was lost
MAX_MERGED_ROWS = 5_000  # of the counts of finished jobs, in one batch
LAST_ID, LAST_PK = "\U0010ffff", 2**62


async def sweep(
    connection: Connection,
    sql: Statements,
    what: Retention,
    now: int | None,
    batch: SweepBatch,
    namespace: str,
    touched: set[str],
) -> None:
    """Delete one batch, oldest first, each kind in its own transaction, so that no lock is held longer than needed."""
    if connection.is_in_transaction():  # then all of it is one transaction, and an earlier try removed nothing
        batch.reset()
    at = now if now is not None else await connection.fetchval(sql.now_ms)
    await _sweep_runs(connection, sql, what, at, batch, namespace)
    streams = [f"{namespace}:global"]
    for (queue,) in await connection.fetch(sql.queue_names):
        async with _counted_transaction(connection, batch):
            touched |= await _sweep_queue(connection, sql, queue, what, at, batch)
        streams.append(f"{namespace}:queue:{queue}")
    for stream in streams:
        count = await trim(connection, sql, stream, what.keep_events, what.events_before, batch.room("events"))
        batch.add("events", count)
    await _delete(connection, sql.expired_states, at, batch, "states")
    await _delete(connection, sql.expired_dedupe_keys, at, batch, "others")
    await _delete(connection, sql.expired_rates, at, batch, "others")
    await _delete(connection, sql.expired_holds, at, batch, "others")
    await _delete(connection, sql.expired_workers, at, batch, "others")
    await _delete(connection, sql.old_once_keys, at - ONCE_KEPT_MS, batch, "others")
    await _delete(connection, sql.old_applied_units, at - UNITS_KEPT_MS, batch, "others")
    await _delete(connection, sql.old_counts, at - RATES_KEPT_MS, batch, "others")
    await connection.execute(sql.merge_finished_counts, MAX_MERGED_ROWS)


@asynccontextmanager
async def _counted_transaction(connection: Connection, batch: SweepBatch) -> AsyncIterator[None]:
    """Count what a transaction removes only if it commits: after a conflict, the sweep is repeated."""
    before = batch.removed.copy()
    try:
        async with connection.transaction():
            yield
    except BaseException:
        batch.removed = before
        raise


async def _delete(connection: Connection, statement: str, which: object, batch: SweepBatch, kind: str) -> bool:
    """Delete as many rows as the batch has room for. Return whether that may have been all of them."""
    room = batch.room(kind)
    count = row_count(await connection.execute(statement, which, room))
    batch.add(kind, count)
    return count < room


async def _sweep_queue(
    connection: Connection, sql: Statements, queue: str, what: Retention, now: int, batch: SweepBatch
) -> set[str]:
    # Rows with impossible times would stay for ever.
    await connection.execute(sql.expire_damaged_leases, queue, now, now + MAX_LEASE_MS)
    await connection.execute(sql.date_finished_jobs, queue)
    last = ((what.jobs_before or 0) - 1, LAST_PK)
    counts = (what.keep_jobs, what.keep_deliveries if queue == DELIVERIES else None)
    keep = min((count for count in counts if count is not None), default=None)
    if keep is not None and (surplus := await connection.fetchrow(sql.last_surplus_job, queue, keep)):
        last = max(last, (surplus[0], surplus[1]))
    count, topics = await delete_jobs(connection, sql, now, sql.old_jobs, queue, *last, batch.room("jobs"))
    batch.add("jobs", count)
    return topics


async def _sweep_runs(
    connection: Connection, sql: Statements, what: Retention, now: int, batch: SweepBatch, namespace: str
) -> None:
    last = ((what.runs_before or 0) - 1, LAST_ID)
    if what.keep_runs is not None and (surplus := await connection.fetchrow(sql.last_surplus_run, what.keep_runs)):
        last = max(last, (surplus[0], surplus[1]))
    async with _counted_transaction(connection, batch):
        found = await connection.fetch(sql.old_runs, *last, now, batch.room("runs"))
        if found:
            await _forget(connection, sql, [row[0] for row in found], batch, namespace)


async def _forget(connection: Connection, sql: Statements, runs: list[str], batch: SweepBatch, namespace: str) -> None:
    """Delete what runs own, then the runs. If the batch is full, the next one continues."""
    jobs = await connection.fetch(sql.run_jobs, runs, room := batch.room("jobs"))
    await connection.execute(sql.forget_memos, [row[1] for row in jobs])
    await connection.execute(sql.forget_jobs, [row[0] for row in jobs])
    batch.add("jobs", len(jobs))
    if len(jobs) == room or not await _delete(connection, sql.forget_run_states, runs, batch, "states"):
        return
    # The streams come last, as in commits: the same lock order avoids deadlocks.
    streams = [f"{namespace}:{kind}:{run}" for run, kind in await connection.fetch(sql.run_kinds, runs)]
    streams += [f"{namespace}:trigger:{row[0]}" for row in await connection.fetch(sql.run_triggers, runs)]
    if not await _delete(connection, sql.forget_events, streams, batch, "events"):
        return
    await connection.execute(sql.forget_run_waits, runs)
    await connection.execute(sql.forget_run_keys, runs)
    await connection.execute(sql.forget_runs, runs)
    await connection.execute(sql.forget_streams, streams)
    batch.add("runs", len(runs))


async def describe(connection: Connection, sql: Statements, address: Address, own_connections: int) -> dict[str, Any]:
    """Return facts for `penstock doctor`, with settings that make commits less durable."""
    row = await connection.fetchrow(sql.facts, sql.schema)
    assert row is not None
    version, encoding, size, synchronous, fsync = row
    return {
        "store": "postgres",
        "path": address.shown,
        "postgres": version,
        "encoding": encoding,
        "bytes": size,
        "synchronous_commit": synchronous,
        "fsync": fsync,
        "connections of a process": address.max_connections,
        "doubts": [
            *_durability_warnings(synchronous, fsync),
            *(
                _connection_warning(limit, most, others, address.max_connections)
                for limit, most, used in await connection.fetch(sql.connection_limits)
                if most >= 0 and (others := max(used - own_connections, 0)) + address.max_connections > most
            ),
        ],
    }


def _durability_warnings(synchronous: str, fsync: str) -> Iterator[str]:
    if fsync == "off":
        yield "fsync is off, so a crash of the machine may lose the whole database; set it to on"
    if synchronous == "off":
        yield "synchronous_commit is off, so a crash of Postgres loses the last acknowledged commits; set it to on"


def _connection_warning(limit: str, most: int, others: int, needed: int) -> str:
    return (
        f"{limit} is {most}, other programs use {others}, and a process uses up to {needed}; raise the limit, or "
        "set a smaller pool= in the URL"
    )
