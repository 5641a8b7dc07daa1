"""A schema of an older version is migrated with what it holds."""

from __future__ import annotations

import pytest

import postgres_server
from penstock.core.errors import StoreError
from penstock.stores.postgres import PostgresStore, migrate
from penstock.testing.contracts.samples import apply, job, unit


def add_migration(monkeypatch: pytest.MonkeyPatch, statements: str) -> int:
    """Pretend that the next version of the schema adds `statements`. Return the number of that migration."""
    known = migrate.migrations()
    number = known[-1][0] + 1
    monkeypatch.setattr(migrate, "migrations", lambda: (*known, (number, statements)))
    return number


async def test_an_older_schema_is_migrated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres_server.url()
    store = PostgresStore(url)
    await store.open()
    await apply(store, unit(jobs=[job("kept")]))
    await store.close()
    schema, server = store.address.schema, postgres_server.server()
    add_migration(
        monkeypatch, "CREATE TABLE penstock.notes (text text); INSERT INTO penstock.notes VALUES ('migrated')"
    )
    for _ in range(2):
        migrated = PostgresStore(url)
        await migrated.open()
        try:
            assert await migrated.job("kept") is not None
        finally:
            await migrated.close()
    assert server.do(f"SELECT text FROM {schema}.notes") == [("migrated",)]


async def test_an_unreleased_schema_is_refused() -> None:
    url = postgres_server.url()
    store = PostgresStore(url)
    await store.open()
    await store.close()
    postgres_server.server().run(
        f"UPDATE {store.address.schema}.schema_versions SET number = number - 7"  # as before the first release
    )
    with pytest.raises(StoreError, match=r"older version of Penstock .* use a new Postgres schema"):
        await PostgresStore(url).open()


async def test_a_failing_migration_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres_server.url()
    store = PostgresStore(url)
    await store.open()
    await store.close()
    with monkeypatch.context() as newer:
        number = add_migration(
            newer, "CREATE TABLE penstock.notes (text text); INSERT INTO penstock.missing VALUES (1)"
        )
        with pytest.raises(StoreError, match="missing"):
            await PostgresStore(url).open()
    schema, server = store.address.schema, postgres_server.server()
    assert server.do(f"SELECT to_regclass('{schema}.notes')::text") == [(None,)]
    assert server.do(f"SELECT number FROM {schema}.schema_versions WHERE number = {number}") == []
