"""Where a Postgres store may be, and what is said if it cannot be there."""

from __future__ import annotations

import pytest

import postgres_server
from penstock import App, job
from penstock.core.errors import StoreError
from penstock.stores.postgres import PostgresStore


@job(queue="mail")
async def send(to: str) -> str:
    return f"sent to {to}"


@pytest.mark.parametrize("schema", ["user", "order"])
async def test_a_schema_may_have_a_word_of_sql_as_its_name(schema: str) -> None:
    place, _, _ = postgres_server.url().partition("?")
    async with App(f"{place}?schema={schema}", handlers=[send]) as app, app.working():
        assert await app.job_result(await app.enqueue("mail", "ada"), timeout="20s") == "sent to ada"


async def test_a_database_that_is_not_there() -> None:
    place, _, _ = postgres_server.url().partition("?")
    store = PostgresStore(f"{place}_missing")
    with pytest.raises(StoreError, match=r'database "postgres_missing" does not exist. Create it \(`createdb NAME`\)'):
        await store.open()
