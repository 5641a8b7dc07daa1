"""An emptied schema is as new: no trigger of one table writes into another one that was emptied before it."""

from __future__ import annotations

import postgres_server
from penstock.stores.postgres import PostgresStore
from penstock.testing.clock import FakeClock
from penstock.testing.contracts.queue_admin import one_in_each_state


async def test_an_emptied_schema_has_no_rows() -> None:
    url = postgres_server.url()
    schema, one = url.rpartition("=")[2], postgres_server.server()
    store = PostgresStore(url, clock=(clock := FakeClock()))
    await store.open()
    await one_in_each_state(store, clock)
    await store.close()
    one.ask(postgres_server.EMPTY_FUNCTION)
    one.ask("SELECT public.empty_schema($1)", schema)
    tables = one.do("SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename <> 'schema_versions'", schema)
    left = {name: one.ask(f"SELECT count(*) FROM {schema}.{name}") for (name,) in tables}
    assert {name: count for name, count in left.items() if count} == {}
