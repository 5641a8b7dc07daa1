"""Retention: batches small enough that no commit waits long for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...ports.store import Retention
from ...ports.unit import DELIVERIES
from .address import Address
from .connection import Connection
from .events import changed, trim
from .queues import delete as delete_jobs
from .statements import Statements

ONCE_KEPT_MS = 7 * 86_400_000
UNITS_KEPT_MS = 86_400_000  # a reply lost longer ago than this is not asked for again
SMALL_ROWS = 10  # of these, so many times the batch take no longer


async def sweep(
    connection: Connection,
    sql: Statements,
    what: Retention,
    now: int | None,
    limit: int,
    namespace: str,
    touched: set[str],
) -> dict[str, int]:
    """Each kind of thing in a transaction of its own, so that no lock is kept for longer than it takes."""
    gone = {"runs": 0, "jobs": 0, "events": 0, "states": 0}
    at = now if now is not None else await connection.fetchval(sql.moment)
    async with connection.transaction():
        doomed = await _doomed(connection, sql, what, at, limit)
        if doomed:
            await _forget(connection, sql, doomed, namespace, gone)
    for (queue,) in await connection.fetch(sql.queue_names):
        async with connection.transaction():
            gone["jobs"] += await _sweep_queue(connection, sql, queue, what, limit, at, touched)
        gone["events"] += await _trim(connection, sql, f"{namespace}:queue:{queue}", what)
    gone["events"] += await _trim(connection, sql, f"{namespace}:global", what)
    gone["states"] += changed(await connection.execute(sql.expired_states, at, limit))
    await connection.execute(sql.old_keys, at, limit * SMALL_ROWS)
    await connection.execute(sql.old_holds, at)
    await connection.execute(sql.old_once, at - ONCE_KEPT_MS, limit * SMALL_ROWS)
    await connection.execute(sql.old_units, at - UNITS_KEPT_MS, limit * SMALL_ROWS)
    return gone


async def _sweep_queue(
    connection: Connection, sql: Statements, queue: str, what: Retention, limit: int, now: int, touched: set[str]
) -> int:
    gone = 0
    if what.jobs_before is not None:
        many, topics = await delete_jobs(connection, sql, now, sql.old_jobs, queue, what.jobs_before, limit)
        gone += many
        touched |= topics
    kept = what.keep_jobs if queue != DELIVERIES else _least(what.keep_jobs, what.keep_deliveries)
    if kept is not None:
        many, topics = await delete_jobs(connection, sql, now, sql.surplus_jobs, queue, kept, limit)
        gone += many
        touched |= topics
    return gone


async def _trim(connection: Connection, sql: Statements, stream: str, what: Retention) -> int:
    if what.events_before is None and what.keep_events is None:
        return 0
    return await trim(connection, sql, stream, what.keep_events, what.events_before)


def _least(*counts: int | None) -> int | None:
    return min((count for count in counts if count is not None), default=None)


async def _doomed(connection: Connection, sql: Statements, what: Retention, now: int, limit: int) -> list[str]:
    runs: list[str] = []
    if what.runs_before is not None:
        runs = [row[0] for row in await connection.fetch(sql.old_runs, what.runs_before, now, limit)]
    if what.keep_runs is not None and len(runs) < limit:
        rows = await connection.fetch(sql.surplus_runs, what.keep_runs, now, limit)
        runs += [row[0] for row in rows if row[0] not in set(runs)][: limit - len(runs)]
    return runs


async def _forget(
    connection: Connection, sql: Statements, runs: list[str], namespace: str, gone: dict[str, int]
) -> None:
    await connection.execute(sql.forget_run_memos, runs)
    gone["jobs"] += changed(await connection.execute(sql.forget_run_jobs, runs))
    triggers = [row[0] for row in await connection.fetch(sql.run_triggers, runs)]
    await connection.execute(sql.forget_run_waits, runs)
    gone["states"] += changed(await connection.execute(sql.forget_run_states, runs))
    gone["runs"] += changed(await connection.execute(sql.forget_runs, runs))
    # The streams come last, as they do in commits: nobody waits for another in a ring.
    streams = [f"{namespace}:flow:{run}" for run in runs] + [f"{namespace}:trigger:{id}" for id in triggers]
    gone["events"] += changed(await connection.execute(sql.forget_events, streams))
    await connection.execute(sql.forget_streams, streams)


async def describe(connection: Connection, sql: Statements, address: Address, ours: int) -> dict[str, Any]:
    """Facts for `doctor`: what would make a commit less than durable is among them.

    `ours` are the connections that this process has."""
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
        "connections of a process": address.uses,
        "doubts": [
            *_carelessness(synchronous, fsync),
            *(
                _crowding(limit, most, others, address.uses)
                for limit, most, used in await connection.fetch(sql.crowd)
                if most >= 0 and (others := max(used - ours, 0)) + address.uses > most
            ),
        ],
    }


def _carelessness(synchronous: str, fsync: str) -> Iterator[str]:
    if fsync == "off":
        yield "fsync is off, so a crash of the machine may lose the whole database: set it to on"
    if synchronous == "off":
        yield "synchronous_commit is off, so a crash of Postgres loses what it acknowledged last: set it to on"


def _crowding(limit: str, most: int, others: int, uses: int) -> str:
    return (
        f"{limit} is {most}, {others} are in use by others, and a process uses up to {uses}: raise it, or write a "
        "smaller pool= in the URL"
    )
