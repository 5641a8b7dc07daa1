"""A server that cuts connections, crashes and restarts while flows run, or refuses the role."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faultkit.config import FULL
from faultkit.load import run_load

import postgres_server
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.postgres import PostgresStore, migrate
from penstock.stores.postgres.statements import migrations
from penstock.testing.contracts.samples import add_and_claim, apply, claim_one, event, job, unit

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1200)]

CUTS, CRASHES = (500, 60) if FULL else (20, 6)
TEST_TIMEOUT_S = 60
Show = Callable[[str], None]


def _fast_folder() -> str | None:
    memory = Path("/dev/shm")
    return str(memory) if not FULL and memory.is_dir() and shutil.disk_usage(memory).free > 2**30 else None


@pytest.fixture(scope="module")
def own() -> Iterator[postgres_server.Server]:
    """A server that may be killed. Its files are in memory if there is enough: each recovery starts with an fsync of
    every file, and a killed process leaves the same files behind."""
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-", dir=_fast_folder()) as folder:
        server = postgres_server.Server(Path(folder), durable=True)
        yield server
        server.stop()


async def test_connections_that_are_cut(own: postgres_server.Server, tmp_path: Path, show: Show) -> None:
    rng, longest = random.Random(7), 0.0
    async with run_load(own.url("cuts"), tmp_path) as load:
        for _ in range(CUTS):
            await asyncio.sleep(rng.random() * 0.05)  # anywhere in a commit
            await asyncio.to_thread(
                own.do,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY random() LIMIT 2",
            )
            longest = max(longest, await load.wait_for_recovery(TEST_TIMEOUT_S))
    show(f"{CUTS} times two connections cut, {load}; work continued within {longest:.1f} s")
    assert load.problems == []


async def test_a_server_that_crashes_and_restarts(own: postgres_server.Server, tmp_path: Path, show: Show) -> None:
    rng, longest = random.Random(8), 0.0
    async with run_load(own.url("crashes"), tmp_path) as load:
        for _ in range(CRASHES):
            await load.wait_for_starts(rng.randrange(2, 12), TEST_TIMEOUT_S)
            await asyncio.to_thread(own.crash)
            await asyncio.to_thread(own.start)
            longest = max(longest, await load.wait_for_recovery(TEST_TIMEOUT_S))
    show(f"{CRASHES} crashes, {load}; work continued within {longest:.1f} s")
    assert load.problems == []


async def test_wake_ups_arrive_again_after_the_listening_connection_was_cut(own: postgres_server.Server) -> None:
    one, two = PostgresStore(own.url("wakes")), PostgresStore(own.url("wakes"))
    await one.open()
    await two.open()
    try:
        for n in range(5):
            with two.signals.listen("queue:orders") as listener:
                await apply(one, unit(jobs=[job(f"j{n}")]))
                assert await listener.wait(20)
                await asyncio.to_thread(
                    own.do, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                    " AND backend_type = 'client backend' AND query LIKE '%LISTEN%'",
                )  # fmt: skip
    finally:
        await one.close()
        await two.close()


async def test_leases_are_renewed_on_a_new_connection(own: postgres_server.Server) -> None:
    store = PostgresStore(own.url("leases"))
    await store.open()
    try:
        one = await add_and_claim(store, "j")
        assert await asyncio.to_thread(store.renew, [one], 30_000) == []
        await asyncio.to_thread(own.crash)
        with pytest.raises(StoreUnavailable):
            await asyncio.to_thread(store.renew, [one], 30_000)
        await asyncio.to_thread(own.start)
        assert await asyncio.to_thread(store.renew, [one], 30_000) == []
    finally:
        await store.close()


async def test_the_error_names_the_rights_a_role_lacks(own: postgres_server.Server) -> None:
    owner = PostgresStore(own.url("ruled"))
    await owner.open()
    await owner.close()
    own.do("DROP ROLE IF EXISTS worker")
    own.do("CREATE ROLE worker LOGIN")
    mine = own.url("ruled").replace("postgres@", "worker@", 1)
    with pytest.raises(StoreError, match="USAGE on the schema ruled") as problem:
        await _open_and_claim(mine)
    assert not isinstance(problem.value, StoreUnavailable)
    own.do("GRANT USAGE ON SCHEMA ruled TO worker")
    own.do("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ruled TO worker")
    own.do("GRANT USAGE ON ALL SEQUENCES IN SCHEMA ruled TO worker")
    await _open_and_claim(mine)  # the role creates nothing


async def _open_and_claim(url: str) -> None:
    store = PostgresStore(url)
    try:
        await store.open()
        await apply(store, unit(jobs=[job(f"j-{os.urandom(4).hex()}")], events=[event()]))
        await claim_one(store)
    finally:
        await store.close()


async def test_an_unreachable_server(own: postgres_server.Server) -> None:
    store = PostgresStore(f"postgresql://ann:hunter2@127.0.0.1:{postgres_server.free_port()}/shop")
    with pytest.raises(StoreUnavailable, match="check that the server is running") as problem:
        await store.open()
    assert "hunter2" not in str(problem.value)
    await store.close()


async def test_concurrent_migrations_create_the_schema_once(own: postgres_server.Server) -> None:
    stores = [PostgresStore(own.url("many")) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        await store.close()


async def test_migrate_returns_the_applied_numbers_and_then_none(own: postgres_server.Server) -> None:
    store = PostgresStore(own.url("numbered"))
    assert await store.migrate() == [number for number, _ in migrations()]
    assert await store.migrate() == []
    await store.close()


async def test_a_migration_creates_every_function_again(
    own: postgres_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions have no numbers of their own: a later migration replaces those of an earlier version."""
    store = PostgresStore(own.url("updated"))
    await store.migrate()
    own.run(
        "CREATE OR REPLACE FUNCTION updated.now_ms(override bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint'"
    )
    assert await store.migrate() == []
    assert own.do("SELECT updated.now_ms(NULL)")[0][0] == 7
    later = [*migrations(), (9000, "SELECT 1")]
    monkeypatch.setattr(migrate, "migrations", lambda: later)
    assert await store.migrate() == [9000]
    assert own.do("SELECT updated.now_ms(NULL)")[0][0] > 7
    await store.close()


async def test_a_schema_of_a_newer_version_is_refused(own: postgres_server.Server) -> None:
    store = PostgresStore(own.url("newer"))
    await store.open()
    await store.close()
    own.do("INSERT INTO newer.schema_versions (number) VALUES (9999)")
    with pytest.raises(StoreError, match="newer version of Penstock"):
        await PostgresStore(own.url("newer")).open()


async def test_with_migrate_no_nothing_is_created(own: postgres_server.Server) -> None:
    with pytest.raises(StoreError, match="penstock migrate"):
        await PostgresStore(own.url("untouched", migrate="no")).open()
    assert own.do("SELECT 1 FROM pg_namespace WHERE nspname = 'untouched'") == []
