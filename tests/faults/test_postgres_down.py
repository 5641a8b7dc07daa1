"""A server that cuts connections, dies and comes back while flows are under way, or has no connection or room to give."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from faultkit.length import FULL
from faultkit.trades import FLOWS, HANDLERS, TRIGGERS

import postgres_server
from penstock import App
from penstock.core.errors import StoreError, StoreUnavailable
from penstock.stores.postgres import PostgresStore
from penstock.testing.contracts.samples import apply, claim_one, event, held, job, unit
from penstock.testing.history import check, read_history

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1200)]

CUTS, CRASHES = (500, 60) if FULL else (60, 4)
Tell = Callable[[str], None]


@pytest.fixture(scope="module")
def own() -> Iterator[postgres_server.Server]:
    """A server that may be killed."""
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as folder:
        server = postgres_server.Server(Path(folder), durable=True)
        yield server
        server.stop()


@asynccontextmanager
async def flows_under_way(url: str) -> AsyncIterator[tuple[App, list[str]]]:
    """Flows are started and worked on while the body makes trouble; afterwards every one of them must be whole."""
    started: list[str] = []
    over = asyncio.Event()

    async def start(app: App) -> None:
        while not over.is_set():
            key = f"flow-{len(started)}"
            try:
                await app.start(FLOWS[len(started) % 3], {"n": len(started)}, idempotency_key=key)
            except StoreUnavailable:
                continue  # the same one again: it may have been written
            started.append(key)
            await asyncio.sleep(0.005)

    async with App(url, handlers=HANDLERS, lease="2s") as app, app.working():
        starting = asyncio.create_task(start(app))
        yield app, started
        over.set()
        await starting
        for run in started:
            assert (await app.wait(run, timeout="60s")).status == "completed"
        history = await read_history(app.store, effects=(), acknowledged=set(started), triggers=TRIGGERS)
        assert [str(violation) for violation in check(history)] == []


async def test_connections_that_are_cut(own: postgres_server.Server, tell: Tell) -> None:
    rng = random.Random(7)
    async with flows_under_way(own.url("cuts")) as (_, started):
        for _ in range(CUTS):
            await asyncio.sleep(rng.random() * 0.1)
            await asyncio.to_thread(
                own.do,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY random() LIMIT 2",
            )
    tell(f"{CUTS} cuts, {len(started)} flows, all of them whole")


async def test_a_server_that_dies_and_comes_back(own: postgres_server.Server, tell: Tell) -> None:
    rng = random.Random(8)
    async with flows_under_way(own.url("crashes")) as (_, started):
        for _ in range(CRASHES):
            await asyncio.sleep(0.5 + rng.random())
            await asyncio.to_thread(own.crash)
            await asyncio.to_thread(own.start)
    tell(f"{CRASHES} crashes, {len(started)} flows, all of them whole")


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
        one = await held(store, "j")
        assert await asyncio.to_thread(store.renew, [one], 30_000) == []
        await asyncio.to_thread(own.crash)
        with pytest.raises(StoreUnavailable):
            await asyncio.to_thread(store.renew, [one], 30_000)
        await asyncio.to_thread(own.start)
        assert await asyncio.to_thread(store.renew, [one], 30_000) == []
    finally:
        await store.close()


async def test_no_connection_left_is_said_and_got_over(own: postgres_server.Server) -> None:
    own.do("DROP ROLE IF EXISTS few")
    own.do("CREATE ROLE few LOGIN CONNECTION LIMIT 0 SUPERUSER")
    own.do("ALTER ROLE few NOSUPERUSER")
    own.do("GRANT ALL ON DATABASE postgres TO few")
    store = PostgresStore(own.url("few").replace("postgres@", "few@", 1))
    with pytest.raises(StoreUnavailable, match="too many connections"):
        await store.open()
    own.do("ALTER ROLE few CONNECTION LIMIT 5")
    await store.open()
    await apply(store, unit(events=[event()]))
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
