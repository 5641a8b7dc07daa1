"""Retention on Postgres does not depend on the plan that the server chooses."""

from __future__ import annotations

import pytest

import postgres_server
from penstock.ports.store import Retention
from penstock.stores.postgres import PostgresStore
from penstock.stores.postgres.connection import connect
from penstock.testing.contracts.samples import apply, event, job, run, unit

FAR = 10**15


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


async def test_a_sweep_that_is_repeated_after_a_conflict_counts_what_it_removed() -> None:
    store = PostgresStore(postgres_server.url())
    await store.open()
    try:
        events = [event(stream="nq:flow:r") for _ in range(2)]
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")], events=events))
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True, cancel_jobs=True)))
        schema, server = store.address.schema, postgres_server.server()
        server.run(  # the run is the last of what a sweep deletes with it
            f"CREATE SEQUENCE {schema}.tries;"
            f"CREATE FUNCTION {schema}.refuse_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" IF nextval('{schema}.tries') = 1 THEN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END IF;"
            " RETURN OLD; END $$;"
            f"CREATE TRIGGER refuse BEFORE DELETE ON {schema}.runs FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_once()"
        )
        removed = await store.sweep(Retention(runs_before=FAR), 10)
        assert (removed["runs"], removed["jobs"], removed["events"]) == (1, 1, 2)
    finally:
        await store.close()


@pytest.mark.parametrize("statement", ["expired_states", "expired_rates", "expired_dedupe_keys"])
async def test_a_sweep_keeps_its_limit_whatever_the_plan(statement: str) -> None:
    """A nested loop may execute the subquery again for each row. It would then skip the rows that are gone, and find others."""
    store = PostgresStore(postgres_server.url())
    await store.open()
    connection = await connect(store.address)
    try:
        schema, table = store.address.schema, statement.removeprefix("expired_")
        columns = {
            "states": "(key, value, version, expires) SELECT 's' || n, '1', 1, 1",
            "rates": "(queue, key, used, until) SELECT 'q', 'k' || n, 1, 1",
            "dedupe_keys": "(queue, key, job, until) SELECT 'q', 'k' || n, 'j', 1",
        }[table]
        await connection.execute(f"INSERT INTO {schema}.{table} {columns} FROM generate_series(1, 8) AS n")
        await connection.execute("SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off;")
        await connection.execute("SET enable_hashagg = off; SET enable_sort = off; SET enable_memoize = off")
        await connection.fetch(getattr(store._sql, statement), 2, 3)
        assert await connection.fetchval(f"SELECT count(*) FROM {schema}.{table}") == 5
    finally:
        await connection.close()
        await store.close()
