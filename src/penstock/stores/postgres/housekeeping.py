"""Retention in batches small enough that no commit waits long for them, and facts for `penstock doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...ports.store import Retention
from ...ports.unit import DELIVERIES
from .address import Address
from .admin import delete as delete_jobs
from .connection import Connection
from .events import row_count, trim
from .statements import Statements

ONCE_KEPT_MS = 7 * 86_400_000
UNITS_KEPT_MS = 86_400_000  # no commit is repeated later than this after its reply was lost
SMALL_ROWS_FACTOR = 10  # a batch of small rows may be this many times larger


async def sweep(
    connection: Connection,
    sql: Statements,
    what: Retention,
    now: int | None,
    limit: int,
    namespace: str,
    touched: set[str],
) -> dict[str, int]:
    """Delete one batch, each kind in its own transaction, so that no lock is held longer than needed."""
    removed = {"runs": 0, "jobs": 0, "events": 0, "states": 0}
    at = now if now is not None else await connection.fetchval(sql.now_ms)
    async with connection.transaction():
        expired = await _expired_runs(connection, sql, what, at, limit)
        if expired:
            await _forget(connection, sql, expired, namespace, removed)
    for (queue,) in await connection.fetch(sql.queue_names):
        async with connection.transaction():
            removed["jobs"] += await _sweep_queue(connection, sql, queue, what, limit, at, touched)
        removed["events"] += await _trim(connection, sql, f"{namespace}:queue:{queue}", what)
    removed["events"] += await _trim(connection, sql, f"{namespace}:global", what)
    removed["states"] += row_count(await connection.execute(sql.expired_states, at, limit))
    await connection.execute(sql.expired_dedupe_keys, at, limit * SMALL_ROWS_FACTOR)
    await connection.execute(sql.expired_holds, at)
    await connection.execute(sql.old_once_keys, at - ONCE_KEPT_MS, limit * SMALL_ROWS_FACTOR)
    await connection.execute(sql.old_applied_units, at - UNITS_KEPT_MS, limit * SMALL_ROWS_FACTOR)
    return removed


async def _sweep_queue(
    connection: Connection, sql: Statements, queue: str, what: Retention, limit: int, now: int, touched: set[str]
) -> int:
    removed = 0
    if what.jobs_before is not None:
        count, topics = await delete_jobs(connection, sql, now, sql.old_jobs, queue, what.jobs_before, limit)
        removed += count
        touched |= topics
    keep = what.keep_jobs if queue != DELIVERIES else _min(what.keep_jobs, what.keep_deliveries)
    if keep is not None:
        count, topics = await delete_jobs(connection, sql, now, sql.surplus_jobs, queue, keep, limit)
        removed += count
        touched |= topics
    return removed


async def _trim(connection: Connection, sql: Statements, stream: str, what: Retention) -> int:
    if what.events_before is None and what.keep_events is None:
        return 0
    return await trim(connection, sql, stream, what.keep_events, what.events_before)


def _min(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


async def _expired_runs(connection: Connection, sql: Statements, what: Retention, now: int, limit: int) -> list[str]:
    runs: list[str] = []
    if what.runs_before is not None:
        runs = [row[0] for row in await connection.fetch(sql.old_runs, what.runs_before, now, limit)]
    if what.keep_runs is not None and len(runs) < limit:
        rows = await connection.fetch(sql.surplus_runs, what.keep_runs, now, limit)
        runs += [row[0] for row in rows if row[0] not in set(runs)][: limit - len(runs)]
    return runs


async def _forget(
    connection: Connection, sql: Statements, runs: list[str], namespace: str, removed: dict[str, int]
) -> None:
    await connection.execute(sql.forget_run_memos, runs)
    removed["jobs"] += row_count(await connection.execute(sql.forget_run_jobs, runs))
    triggers = [row[0] for row in await connection.fetch(sql.run_triggers, runs)]
    await connection.execute(sql.forget_run_waits, runs)
    removed["states"] += row_count(await connection.execute(sql.forget_run_states, runs))
    forgotten = await connection.fetch(sql.forget_runs, runs)
    removed["runs"] += len(forgotten)
    # The streams come last, as in commits: the same lock order avoids deadlocks.
    streams = [f"{namespace}:{kind}:{run}" for run, kind in forgotten] + [
        f"{namespace}:trigger:{id}" for id in triggers
    ]
    removed["events"] += row_count(await connection.execute(sql.forget_events, streams))
    await connection.execute(sql.forget_streams, streams)


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
        yield "fsync is off: a crash of the machine may lose the whole database; set it to on"
    if synchronous == "off":
        yield "synchronous_commit is off: a crash of Postgres loses the last acknowledged commits; set it to on"


def _connection_warning(limit: str, most: int, others: int, needed: int) -> str:
    return (
        f"{limit} is {most}, others use {others}, and a process uses up to {needed}: raise it, or set a smaller pool= "
        "in the URL"
    )
