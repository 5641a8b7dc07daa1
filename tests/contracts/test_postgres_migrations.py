"""A schema of an older version is migrated with what it holds."""

from __future__ import annotations

import postgres_server
from penstock.ports.store import Retention
from penstock.stores.postgres import PostgresStore
from penstock.testing.contracts.samples import apply, run, unit


async def test_runs_that_ended_before_the_migration_are_swept() -> None:
    url = postgres_server.url()
    store = PostgresStore(url)
    await store.open()
    await apply(store, unit(run=run("ended", status="completed", closed=True)))
    await apply(store, unit(run=run("open")))
    await store.close()
    schema, server = store.address.schema, postgres_server.server()
    server.run(f"""
        ALTER TABLE {schema}.runs DROP COLUMN ended;
        CREATE INDEX runs_closed ON {schema}.runs (created, id) WHERE closed;
        DROP INDEX {schema}.jobs_ended, {schema}.rates_by_end, {schema}.dedupe_keys_expiring;
        DELETE FROM {schema}.schema_versions WHERE number = 3""")
    migrated = PostgresStore(url)
    await migrated.open()
    try:
        assert (await migrated.sweep(Retention(runs_before=10**15)))["runs"] == 1
        assert [row.id for row in await migrated.runs()] == ["open"]
    finally:
        await migrated.close()
