"""Runs are found by correlation id, tags and parents through an index: no store reads the other runs."""

from __future__ import annotations

from pathlib import Path

import apsw
import redis

import postgres_server
import redis_server
from penstock.stores.postgres import PostgresStore
from penstock.stores.redis import RedisStore
from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite.statements import ADMIN
from penstock.testing.contracts.samples import apply, run, unit


async def test_sqlite_searches_the_index_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    store = SqliteStore(str(path))
    await store.open()
    await store.close()
    connection = apsw.Connection(str(path))
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {ADMIN.runs_by_keys}", (None,) * 8)]
    connection.close()
    assert plan[0].startswith("SEARCH k USING PRIMARY KEY (key=?"), plan
    assert any(step == "SEARCH r USING PRIMARY KEY (id=?)" for step in plan), plan
    assert any(step.startswith("SEARCH x USING PRIMARY KEY (key=? AND created=? AND run=?)") for step in plan), plan
    assert not any(step.startswith(("SCAN k", "SCAN r", "SCAN x", "USE TEMP B-TREE")) for step in plan), plan


RUNS = """
INSERT INTO {schema}.runs (id, version, flow, status, closed, created, updated, record, kind, paused, unit)
SELECT 'r' || n, 1, 'f', 'running', false, n, n, '', 'flow', false, 'u' FROM generate_series(1, 4000) AS n;
INSERT INTO {schema}.run_keys (key, created, run) SELECT 'k' || n % 1000, n, 'r' || n FROM generate_series(1, 4000) AS n;
ANALYZE {schema}.runs; ANALYZE {schema}.run_keys;
"""


async def test_postgres_searches_the_index_of_keys() -> None:
    store = PostgresStore(postgres_server.url())
    await store.open()
    try:
        server, name = postgres_server.server(), store.address.schema
        server.run(RUNS.format(schema=name))
        query = store._sql.runs_by_keys
        for place, value in {
            1: "'k7'",
            2: "ARRAY['k7']",
            3: "NULL",
            4: "NULL",
            5: 0,
            6: 9_999,
            7: "'z'",
            8: 50,
        }.items():
            query = query.replace(f"${place}", str(value))
        plan = "\n".join(row[0] for row in server.do(f"EXPLAIN {query}"))
        assert "run_keys_pkey" in plan, plan
        assert "runs_pkey" in plan, plan
        assert "Seq Scan" not in plan, plan
    finally:
        await store.close()


async def test_redis_reads_no_other_run() -> None:
    """The number of commands does not depend on how many runs there are without the key."""
    url = redis_server.url()
    store, observer = RedisStore(url), redis.Redis.from_url(url)
    await store.open()
    try:
        counts = []
        for first in (0, 100):
            for n in range(first, first + 100):
                await apply(store, unit(run=run(f"r{n}", keys=["c-all", *(["c-one"] if n == 0 else [])])))
            before = count_reads(observer)
            assert [row.id for row in await store.runs(keys=["c-one"])] == ["r0"]
            counts.append(count_reads(observer) - before)
        assert 0 < counts[0] == counts[1] < 30
    finally:
        observer.close()
        await store.close()


def count_reads(observer: redis.Redis) -> int:
    """Return how many commands that read the server has executed, those inside scripts included."""
    stats = observer.info("commandstats")
    reads = (
        "zrevrange",
        "zrange",
        "zrevrangebyscore",
        "zrangebyscore",
        "hmget",
        "hgetall",
        "hget",
        "get",
        "scan",
        "keys",
    )
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in reads)
