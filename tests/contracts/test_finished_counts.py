"""Finished jobs are counted when they end: reading the counts reads no job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

import postgres_server
from penstock.ports.store import Retention
from penstock.ports.unit import Completed
from penstock.stores.postgres import PostgresStore, housekeeping
from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite.statements import ADMIN
from penstock.testing.contracts.queue_counts import check_counts
from penstock.testing.contracts.samples import add, apply, claim, job, unit


async def finish(store: SqliteStore | PostgresStore, count: int) -> None:
    """Add and complete jobs, one in each commit."""
    await add(store, *(job(f"j{n}", "a") for n in range(count)))
    for one in await claim(store, "a", limit=count):
        await apply(store, unit(claim=one, outcome=Completed()))


@pytest.fixture
async def postgres() -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_server.prepared_url())
    await store.open()
    yield store
    await store.close()


async def test_sqlite_reads_counts_without_a_job(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(str(path))
    await store.open()
    await store.close()
    connection = apsw.Connection(str(path))
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {ADMIN.count_finished}")]
    connection.close()
    assert plan == ["SCAN finished_counts"]


FINISHED = """
INSERT INTO {schema}.jobs (pk, id, queue, name, state, priority, due, created, finished, opts, payload)
SELECT n, 'j' || n, 'a', 'name', CASE WHEN n % 100 = 0 THEN n / 100 % 4 ELSE 4 END, 0, 0, n, n, '{{}}',
       to_json(repeat('x', 500)) FROM generate_series(1, 4000) AS n;
INSERT INTO {schema}.queues (name) VALUES ('a'), ('empty');
INSERT INTO {schema}.finished_counts (queue, state, n) VALUES ('a', 4, 3960);
ANALYZE {schema}.jobs;
"""


async def test_postgres_reads_counts_without_a_finished_job(postgres: PostgresStore) -> None:
    server, name = postgres_server.server(), postgres.address.schema
    server.run(FINISHED.format(schema=name))
    [(query,)] = server.do(f"SELECT prosrc FROM pg_proc WHERE oid = '{name}.count_queues'::regproc")
    plan = "\n".join(row[0] for row in server.do(f"EXPLAIN {query}"))
    assert "jobs_waiting" in plan, plan
    for slow in ("jobs_finished", "steps_finished", "Seq Scan on jobs"):
        assert slow not in plan, plan
    counts = {row.name: row.counts for row in await postgres.queues()}
    assert (counts["a"]["completed"], counts["a"]["waiting"], sum(counts["empty"].values())) == (3960, 10, 0)


async def test_sweeps_merge_the_rows_of_a_count(postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    server, name = postgres_server.server(), postgres.address.schema
    monkeypatch.setattr(
        postgres._sql, "merge_finished_counts", postgres._sql.merge_finished_counts.replace("1000", "3")
    )
    await finish(postgres, 8)
    await asyncio.gather(*(postgres.sweep(Retention()) for _ in range(4)))  # two at once merge no row twice
    assert server.do(f"SELECT queue, state, n FROM {name}.finished_counts") == [("a", 4, 8)]
    await postgres.sweep(Retention(keep_jobs=2))
    await check_counts(postgres, "after jobs were deleted")


async def test_a_merge_reads_a_bounded_number_of_rows(postgres: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    server, name = postgres_server.server(), postgres.address.schema
    statement = postgres._sql.merge_finished_counts.replace("1000", "3")
    monkeypatch.setattr(postgres._sql, "merge_finished_counts", statement)
    monkeypatch.setattr(housekeeping, "MAX_MERGED_ROWS", 4)
    server.do(f"INSERT INTO {name}.finished_counts (queue, state, n) SELECT 'a', 4, 1 FROM generate_series(1, 10)")
    left = []
    for _ in range(4):
        await postgres.sweep(Retention())
        left.append(server.do(f"SELECT count(*), sum(n) FROM {name}.finished_counts")[0])
    assert [tuple(row) for row in left] == [(7, 10), (4, 10), (1, 10), (1, 10)]
