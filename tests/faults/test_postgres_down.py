"""A server that cuts connections, dies and comes back while flows are under way, or refuses us."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faultkit.length import FULL
from faultkit.trouble import under_way

import postgres_server
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.postgres import PostgresStore
from penstock.testing.contracts.samples import add_and_claim, apply, claim_one, event, job, unit

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1200)]

CUTS, CRASHES = (500, 60) if FULL else (20, 6)
TEST_TIMEOUT_S = 60
Tell = Callable[[str], None]


def _quick_place() -> str | None:
    memory = Path("/dev/shm")
    return str(memory) if not FULL and memory.is_dir() and shutil.disk_usage(memory).free > 2**30 else None


@pytest.fixture(scope="module")
def own() -> Iterator[postgres_server.Server]:
    """A server that may be killed. In memory if there is enough: each of its recoveries begins with an fsync of every
    file, and what a process that dies leaves in files is the same."""
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-", dir=_quick_place()) as folder:
        server = postgres_server.Server(Path(folder), durable=True)
        yield server
        server.stop()


async def test_connections_that_are_cut(own: postgres_server.Server, tmp_path: Path, tell: Tell) -> None:
    rng, longest = random.Random(7), 0.0
    async with under_way(own.url("cuts"), tmp_path) as load:
        for _ in range(CUTS):
            await asyncio.sleep(rng.random() * 0.05)  # anywhere in a commit
            await asyncio.to_thread(
                own.do,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY random() LIMIT 2",
            )
            longest = max(longest, await load.back(TEST_TIMEOUT_S))
    tell(f"{CUTS} times two connections cut, {load}; at the latest work went on after {longest:.1f} s")
    assert load.problems == []


async def test_a_server_that_dies_and_comes_back(own: postgres_server.Server, tmp_path: Path, tell: Tell) -> None:
    rng, longest = random.Random(8), 0.0
    async with under_way(own.url("crashes"), tmp_path) as load:
        for _ in range(CRASHES):
            await load.more(rng.randrange(2, 12), TEST_TIMEOUT_S)
            await asyncio.to_thread(own.crash)
            await asyncio.to_thread(own.start)
            longest = max(longest, await load.back(TEST_TIMEOUT_S))
    tell(f"{CRASHES} crashes, {load}; at the latest work went on after {longest:.1f} s")
    assert load.problems == []


async def test_wake_ups_are_heard_again_after_the_listener_was_cut(own: postgres_server.Server) -> None:
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


async def test_a_role_that_may_not_is_told_what_it_needs(own: postgres_server.Server) -> None:
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


async def test_a_server_that_is_not_there(own: postgres_server.Server) -> None:
    store = PostgresStore(f"postgresql://ann:hunter2@127.0.0.1:{postgres_server.free_port()}/shop")
    with pytest.raises(StoreUnavailable, match="is the server running") as problem:
        await store.open()
    assert "hunter2" not in str(problem.value)
    await store.close()


async def test_the_schema_is_created_once_by_many(own: postgres_server.Server) -> None:
    stores = [PostgresStore(own.url("many")) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        await store.close()


async def test_a_schema_of_a_newer_version_is_refused(own: postgres_server.Server) -> None:
    store = PostgresStore(own.url("newer"))
    await store.open()
    await store.close()
    own.do("INSERT INTO newer.versions (number) VALUES (9999)")
    with pytest.raises(StoreError, match="newer Penstock"):
        await PostgresStore(own.url("newer")).open()


async def test_without_leave_to_migrate_nothing_is_created(own: postgres_server.Server) -> None:
    with pytest.raises(StoreError, match="penstock migrate"):
        await PostgresStore(own.url("untouched", migrate="no")).open()
    assert own.do("SELECT 1 FROM pg_namespace WHERE nspname = 'untouched'") == []
