"""A page of the waits for an event reads as many waits as it returns, however many wait for the event."""

from __future__ import annotations

import re
from pathlib import Path

import apsw

import postgres_server
from penstock.stores.postgres import PostgresStore
from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite.statements import ADMIN

PAGE = 200
WAITS = """
INSERT INTO {schema}.waits (id, run, scope, kind, state, body, job, topic, key, stamp, created)
SELECT 'w' || lpad(n::text, 6, '0'), 'r', 's', 'event', 'pending', '{{}}', 'j' || n, 'go', 'k' || n % 2, 1, 1
FROM generate_series(1, 4000) AS n;
INSERT INTO {schema}.waits (id, run, scope, kind, state, body, job, topic, key, stamp, created)
SELECT 'w' || lpad((n / 10)::text, 6, '0') || '-' || n, 'r', 's', 'event', 'resolved', '{{}}', 'j' || n, 'go', 'k0', 1, 1
FROM generate_series(1, 40000) AS n;
ANALYZE {schema}.waits;
"""


async def test_sqlite_reads_in_the_order_of_the_index(tmp_path: Path) -> None:
    path = tmp_path / "waits.db"
    store = SqliteStore(str(path))
    await store.open()
    await store.close()
    connection = apsw.Connection(str(path))
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {ADMIN.waits_for_topic_and_key}", (None,) * 5)]
    connection.close()
    assert [step for step in plan if "waits_by_topic (topic=? AND key=? AND id>?)" in step] == plan


async def test_postgres_reads_a_page_of_each_key() -> None:
    store = PostgresStore(postgres_server.url())
    await store.open()
    try:
        server, name = postgres_server.server(), store.address.schema
        server.run(WAITS.format(schema=name))
        query = store._sql.waits_for_topic_and_keys
        for place, value in {1: "'go'", 2: "ARRAY['k0', 'k1']", 3: "'w001000'", 4: PAGE, 5: 9}.items():
            query = query.replace(f"${place}", str(value))
        plan = "\n".join(row[0] for row in server.do(f"EXPLAIN (ANALYZE, TIMING OFF) {query}"))
        read = [int(found) for found in re.findall(r"waits_by_topic.*\(actual rows=(\d+)", plan)]
        assert read == [PAGE], plan  # of each of the two keys
        rows = await store.waits_for_topic("go", ["k0", "k1"], after="w001000", limit=PAGE)
        assert [row.id for row in rows] == [f"w{n:06}" for n in range(1001, 1001 + PAGE)]
    finally:
        await store.close()
