"""Counting the jobs of queues reads indexes, not rows."""

from __future__ import annotations

from typing import Any

import postgres_server
from penstock.stores.postgres import PostgresStore
from penstock.testing.until import until

FINISHED = """
INSERT INTO {schema}.jobs (pk, id, queue, name, state, priority, due, created, finished, opts, payload)
SELECT n, 'j' || n, 'q' || n % 3, 'name', CASE WHEN n % 100 = 0 THEN n / 100 % 4 ELSE 4 END, 0, 0, n, n, '{{}}',
       to_json(repeat('x', 500)) FROM generate_series(1, 4000) AS n;
INSERT INTO {schema}.queues (name) VALUES ('q0'), ('q1'), ('q2'), ('empty');
"""


async def test_counts_read_no_row_of_a_finished_job() -> None:
    store = PostgresStore(postgres_server.url())
    await store.open()
    try:
        schema, server = store.address.schema, postgres_server.server()
        server.run(FINISHED.format(schema=schema))

        def is_vacuumed() -> bool:
            """Return whether all pages are marked visible: an open transaction elsewhere may prevent it."""
            server.do(f"VACUUM ANALYZE {schema}.jobs")
            [(pages, visible)] = server.do(
                f"SELECT relpages, relallvisible FROM pg_class WHERE oid = '{schema}.jobs'::regclass"
            )
            return bool(pages == visible)

        await until(is_vacuumed, 30)
        plan = "\n".join(row[0] for row in server.do(f"EXPLAIN {store._sql.queues.rstrip().rstrip(';')}"))
        assert "Index Only Scan using jobs_finished" in plan
        assert "Seq Scan on jobs" not in plan
        counts: dict[str, Any] = {row.name: row.counts for row in await store.queues()}
        assert sum(counts[name]["completed"] for name in ("q0", "q1", "q2")) == 3960
        assert (
            sum(counts[name][state] for name in counts for state in ("waiting", "delayed", "active", "suspended")) == 40
        )
        assert set(counts["empty"].values()) == {0}
    finally:
        await store.close()
