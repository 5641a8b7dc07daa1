"""Other sessions of the same database: they hold locks, cause deadlocks and change the defaults of roles. Conflicting
commits are repeated: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from faultkit.config import FULL
from faultkit.load import Load, run_load

import postgres_server
from penstock.ports.unit import Committed, Completed
from penstock.stores.postgres import PostgresStore
from penstock.testing.contracts.job_trees import KIDS, child, end, tree
from penstock.testing.contracts.samples import STREAM, apply, claim_one, event, job, unit
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

TIMES = 100 if FULL else 5
TEST_TIMEOUT_S = 60
Show = Callable[[str], None]


@pytest.fixture(scope="module")
def own() -> Iterator[postgres_server.Server]:
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as folder:
        server = postgres_server.Server(Path(folder))
        yield server
        server.stop()


def role(own: postgres_server.Server, name: str, **settings: str) -> str:
    """Create a role with settings. Return its URL, with its own schema."""
    own.do(f"CREATE ROLE {name} LOGIN SUPERUSER")
    for setting, value in settings.items():
        own.do(f"ALTER ROLE {name} SET {setting} = '{value}'")
    return own.url(name).replace("postgres@", f"{name}@", 1)


@asynccontextmanager
async def other_session(own: postgres_server.Server) -> AsyncIterator[Any]:
    """Open a connection with a long deadlock timeout: of two in a deadlock, the store detects it first and gives way."""
    session = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{own.port}/postgres")
    try:
        await session.execute("SET deadlock_timeout = '5s'")
        yield session
    finally:
        await session.close()


async def lock_repeatedly(own: postgres_server.Server, load: Load, schema: str) -> None:
    """Hold rows and tables for longer than the lock timeout."""
    held = (
        f"SELECT 1 FROM {schema}.runs FOR UPDATE",
        f"LOCK TABLE {schema}.jobs IN EXCLUSIVE MODE",
        f"LOCK TABLE {schema}.events IN ACCESS EXCLUSIVE MODE",
        f"SELECT 1 FROM {schema}.streams FOR UPDATE",
        f"SELECT 1 FROM {schema}.jobs FOR UPDATE",
    )
    async with other_session(own) as session:
        for n in range(TIMES):
            await load.wait_for_starts(5, TEST_TIMEOUT_S)
            async with session.transaction():
                await session.execute(held[n % len(held)])
                await asyncio.sleep(0.15)  # seven times the lock timeout


async def test_locks_held_by_other_sessions(own: postgres_server.Server, tmp_path: Path, show: Show) -> None:
    async with run_load(role(own, "hurried", lock_timeout="20ms"), tmp_path) as load:
        await lock_repeatedly(own, load, "hurried")
    refused = (own.folder / "postgres.log").read_text().count("lock timeout")
    show(f"{TIMES} times locked, {refused} lock timeouts, {load}")
    assert load.problems == []
    assert refused >= TIMES


async def test_concurrent_migrations_with_a_short_lock_timeout(own: postgres_server.Server) -> None:
    """One store creates the schema, the others time out and try again until it is there."""
    url = role(own, "starters", lock_timeout="5ms")
    stores = [PostgresStore(url) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        await store.close()


async def cause_deadlocks(own: postgres_server.Server, load: Load, schema: str) -> None:
    """Lock streams, then jobs. Commits lock them in the opposite order, so one of the two must give way."""

    async def lock(session: Any) -> None:
        async with session.transaction():
            await session.execute(f"SELECT 1 FROM {schema}.streams FOR UPDATE")
            await until(
                lambda: _are_blocked(session, 1), TEST_TIMEOUT_S
            )  # a commit has locked its jobs and waits for these
            await session.execute(f"SELECT 1 FROM {schema}.jobs WHERE state < 4 FOR UPDATE")

    async with other_session(own) as session:
        for _ in range(TIMES):
            await load.wait_for_starts(5, TEST_TIMEOUT_S)
            with suppress(asyncpg.DeadlockDetectedError):
                await lock(session)


async def test_deadlocks(own: postgres_server.Server, tmp_path: Path, show: Show) -> None:
    async with run_load(role(own, "entangled", deadlock_timeout="200ms"), tmp_path) as load:
        await cause_deadlocks(own, load, "entangled")
    deadlocks = (own.folder / "postgres.log").read_text().count("deadlock detected")
    show(f"{TIMES} times, {deadlocks} deadlocks, {load}")
    assert load.problems == []
    assert deadlocks >= TIMES // 2


async def test_a_commit_that_loses_a_deadlock_is_repeated(own: postgres_server.Server) -> None:
    store = PostgresStore(role(own, "ring", deadlock_timeout="200ms"))
    await store.open()
    try:
        await apply(store, unit(jobs=[job("j")], events=[event()]))
        ending = unit(claim=await claim_one(store), outcome=Completed(b"1"), events=[event("order.done")])
        async with other_session(own) as session:
            async with session.transaction():
                await session.execute("SELECT 1 FROM ring.streams FOR UPDATE")
                committing = asyncio.create_task(apply(store, ending))
                await until(lambda: _are_blocked(session, 1), TEST_TIMEOUT_S)
                await session.execute("SELECT 1 FROM ring.jobs FOR UPDATE")  # a deadlock: one of the two must give way
            assert isinstance(await committing, Committed)
        assert "deadlock detected" in (own.folder / "postgres.log").read_text()
        assert [e.kind for e in await store.read(STREAM)].count("order.done") == 1
    finally:
        await store.close()


FAIL_EVERY_THIRD = """
CREATE SEQUENCE {schema}.failures;
CREATE FUNCTION {schema}.fail_every_third() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF nextval('{schema}.failures') % 3 = 0 THEN
    RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER fail_every_third AFTER INSERT ON {schema}.events FOR EACH STATEMENT EXECUTE FUNCTION {schema}.fail_every_third();
"""


async def test_serialization_failures(own: postgres_server.Server, tmp_path: Path, show: Show) -> None:
    """Our isolation level has none, but a user's trigger or a proxy may raise one: every third write here."""
    async with run_load(own.url("failing"), tmp_path) as load:
        await asyncio.to_thread(own.run, FAIL_EVERY_THIRD.format(schema="failing"))
        await load.wait_for_starts(10 * TIMES, TEST_TIMEOUT_S)
    failures = own.do("SELECT last_value / 3 FROM failing.failures")[0][0]
    show(f"{failures} serialization failures, {load}")
    assert load.problems == []
    assert failures >= TIMES


async def test_a_read_only_server(own: postgres_server.Server, tmp_path: Path, show: Show) -> None:
    """As after a failover, until the connection leads to the new primary, or when an administrator protects a full disk."""
    async with run_load(role(own, "reader"), tmp_path) as load:
        await load.wait_for_starts(5, TEST_TIMEOUT_S)
        refused = load.refused
        await asyncio.to_thread(own.do, "ALTER ROLE reader SET default_transaction_read_only = on")
        await asyncio.to_thread(
            own.do, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'"
        )
        await until(lambda: load.refused > refused, TEST_TIMEOUT_S)
        await asyncio.to_thread(own.do, "ALTER ROLE reader RESET ALL")
        await load.wait_for_starts(5, TEST_TIMEOUT_S)
    show(f"read-only for a while, {load}")
    assert load.problems == []


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
async def test_the_default_isolation_of_a_role_does_not_matter(own: postgres_server.Server, level: str) -> None:
    """Two children end at the same time in two processes: the second must see the first, or the parent never wakes."""
    url = role(own, level.split()[0], default_transaction_isolation=level)
    one, two = PostgresStore(url), PostgresStore(url)
    await one.open()
    await two.open()
    try:
        await apply(one, unit(jobs=tree(child("a"), child("b"))))
        ends = [end(await claim_one(store, KIDS), Completed(b"1")) for store in (one, two)]
        async with asyncio.TaskGroup() as committing, other_session(own) as session, session.transaction():
            await session.execute(f"SELECT 1 FROM {one.address.schema}.jobs WHERE id = 'p' FOR UPDATE")
            for store, ending in zip((one, two), ends, strict=True):
                committing.create_task(apply(store, ending))
            await until(lambda: _are_blocked(session, 2), TEST_TIMEOUT_S)
        assert (await claim_one(one)).job == "p"
    finally:
        await one.close()
        await two.close()


async def _are_blocked(session: Any, count: int) -> bool:
    return bool(await session.fetchval("SELECT count(DISTINCT pid) >= $1 FROM pg_locks WHERE NOT granted", count))
