"""Retention on Postgres does not depend on the plan that the server chooses."""

from __future__ import annotations

import postgres_server
from penstock.ports.store import Retention
from penstock.stores.postgres import PostgresStore


async def test_retention_removes_the_oldest_jobs_first_whatever_the_plan() -> None:
    store = PostgresStore(postgres_server.url())
    await store.open()
    try:
        schema, server = store.address.schema, postgres_server.server()
        server.run(
            f"INSERT INTO {schema}.queues (name) VALUES ('q');"
            f"INSERT INTO {schema}.jobs (pk, id, queue, name, state, priority, due, created, finished, opts, payload)"
            " SELECT n, 'j' || n, 'q', 'name', 4 + n % 3, 0, 0, n, n, '{}', '1' FROM generate_series(1, 6) AS n"
            " ORDER BY n DESC;"  # a sequential scan finds the newest first
            f"ANALYZE {schema}.jobs"
        )
        assert (await store.sweep(Retention(keep_jobs=1), 2))["jobs"] == 2
        left = [row[0] for row in server.do(f"SELECT id FROM {schema}.jobs ORDER BY pk")]
        assert left == ["j3", "j4", "j5", "j6"]
    finally:
        await store.close()
