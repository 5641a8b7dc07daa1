"""Which URLs a Postgres store accepts, and the errors for those it does not."""

from __future__ import annotations

import pytest

import postgres_server
from penstock import App, job
from penstock.core.errors import SettingError, StoreError
from penstock.stores.postgres import PostgresStore


@job(queue="mail")
async def send(to: str) -> str:
    return f"sent to {to}"


@pytest.mark.parametrize("schema", ["user", "order"])
async def test_a_schema_may_be_named_like_a_keyword(schema: str) -> None:
    server, _, _ = postgres_server.url().partition("?")
    async with App(f"{server}?schema={schema}", handlers=[send]) as app, app.workers.background():
        assert await app.jobs.result(await app.enqueue("mail", "ada"), timeout="20s") == "sent to ada"


async def test_a_missing_database() -> None:
    server, _, _ = postgres_server.url().partition("?")
    store = PostgresStore(f"{server}_missing")
    with pytest.raises(
        StoreError, match=r'database "postgres_missing" does not exist. Create the database \(`createdb NAME`\)'
    ):
        await store.open()


@pytest.mark.spec("000-3.7")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "foo=bar",
            r"unknown option 'foo' in a Postgres URL; use an option of Penstock \(schema, pool, pooling, migrate\) or of the driver .*sslmode.* of the server",
        ),
        ("shcema=mine", r"unknown option 'shcema' in a Postgres URL; did you mean 'schema'\?"),
        ("sslmod=require", r"unknown option 'sslmod' in a Postgres URL; did you mean 'sslmode'\?"),
        ("statement_timeout=soon", 'rejected statement_timeout=soon: .*"soon"; fix the URL'),
        ("wal_level=minimal", "rejected wal_level=minimal"),
        ("sslmode=perhaps", "must be one of: disable, .* fix the URL"),
    ],
)
async def test_an_unknown_or_invalid_option(option: str, message: str) -> None:
    server, _, _ = postgres_server.url().partition("?")
    store = PostgresStore(f"{server}?{option}")
    with pytest.raises(SettingError, match=message):
        await store.open()
    await store.close()


@pytest.mark.spec("000-3.7")
async def test_options_of_the_driver_and_of_the_server() -> None:
    options = "statement_timeout=50000&application_name=shop&sslmode=prefer&mine.colour=red"
    async with App(f"{postgres_server.url()}&{options}", handlers=[send]) as app:
        assert await app.runs.list() == []
