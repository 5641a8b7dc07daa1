"""Others who use the same database: they hold locks we need, get in each other's way with us, or set roles up strangely.
What collides is tried again by itself: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from faultkit.length import FULL
from faultkit.trouble import Load, under_way

import postgres_server
from penstock.ports.unit import Committed, Completed
from penstock.stores.postgres import PostgresStore
from penstock.testing.contracts.job_trees import KIDS, child, end, tree
from penstock.testing.contracts.samples import STREAM, apply, claim_one, event, job, unit
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

TIMES = 100 if FULL else 5
TEST_TIMEOUT_S = 60
Tell = Callable[[str], None]


@pytest.fixture(scope="module")
def own() -> Iterator[postgres_server.Server]:
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as folder:
        server = postgres_server.Server(Path(folder))
        yield server
        server.stop()


def role(own: postgres_server.Server, name: str, **settings: str) -> str:
    """The URL of a role with settings of its own, in a schema of its own."""
    own.do(f"CREATE ROLE {name} LOGIN SUPERUSER")
    for setting, value in settings.items():
        own.do(f"ALTER ROLE {name} SET {setting} = '{value}'")
    return own.url(name).replace("postgres@", f"{name}@", 1)


@asynccontextmanager
async def intruder(own: postgres_server.Server) -> AsyncIterator[Any]:
    """Another's connection. Who looks for a ring first gives way, once the ring is there: that is to be us."""
    line = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{own.port}/postgres")
    try:
        await line.execute("SET deadlock_timeout = '5s'")
        yield line
    finally:
        await line.close()


async def lock_again_and_again(own: postgres_server.Server, load: Load, schema: str) -> None:
    """Rows and tables are held for longer than anyone waits for them."""
    held = (
        f"SELECT 1 FROM {schema}.runs FOR UPDATE",
        f"LOCK TABLE {schema}.jobs IN EXCLUSIVE MODE",
        f"LOCK TABLE {schema}.events IN ACCESS EXCLUSIVE MODE",
        f"SELECT 1 FROM {schema}.streams FOR UPDATE",
        f"SELECT 1 FROM {schema}.jobs FOR UPDATE",
    )
    async with intruder(own) as line:
        for n in range(TIMES):
            await load.more(5, TEST_TIMEOUT_S)
            async with line.transaction():
                await line.execute(held[n % len(held)])
                await asyncio.sleep(0.15)  # seven times as long as they wait


async def test_locks_that_others_hold(own: postgres_server.Server, tmp_path: Path, tell: Tell) -> None:
    async with under_way(role(own, "hurried", lock_timeout="20ms"), tmp_path) as load:
        await lock_again_and_again(own, load, "hurried")
    refused = (own.folder / "postgres.log").read_text().count("lock timeout")
    tell(f"{TIMES} times locked out, {refused} statements given up, {load}")
    assert load.problems == []
    assert refused >= TIMES


async def test_many_that_begin_at_once_and_do_not_wait_long(own: postgres_server.Server) -> None:
    """One of them creates the schema, and the others give up waiting for it: again and again, until it is there."""
    url = role(own, "starters", lock_timeout="5ms")
    stores = [PostgresStore(url) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    for store in stores:
        await store.close()


async def meet_in_a_ring(own: postgres_server.Server, load: Load, schema: str) -> None:
    """Locks streams, then jobs, where commits go the other way round: one of the two has to be given up."""

    async def meet(line: Any) -> None:
        async with line.transaction():
            await line.execute(f"SELECT 1 FROM {schema}.streams FOR UPDATE")
            await until(lambda: _many_wait(line, 1), TEST_TIMEOUT_S)  # a commit has its jobs and wants these
            await line.execute(f"SELECT 1 FROM {schema}.jobs WHERE state < 4 FOR UPDATE")

    async with intruder(own) as line:
        for _ in range(TIMES):
            await load.more(5, TEST_TIMEOUT_S)
            with suppress(asyncpg.DeadlockDetectedError):
                await meet(line)


async def test_deadlocks(own: postgres_server.Server, tmp_path: Path, tell: Tell) -> None:
    async with under_way(role(own, "entangled", deadlock_timeout="200ms"), tmp_path) as load:
        await meet_in_a_ring(own, load, "entangled")
    deadlocks = (own.folder / "postgres.log").read_text().count("deadlock detected")
    tell(f"{TIMES} rings, {deadlocks} deadlocks, {load}")
    assert load.problems == []
    assert deadlocks >= TIMES // 2


async def test_a_commit_that_is_given_up_for_a_deadlock_is_made_again(own: postgres_server.Server) -> None:
    store = PostgresStore(role(own, "ring", deadlock_timeout="200ms"))
    await store.open()
    try:
        await apply(store, unit(jobs=[job("j")], events=[event()]))
        ending = unit(claim=await claim_one(store), outcome=Completed(b"1"), events=[event("order.done")])
        async with intruder(own) as line:
            async with line.transaction():
                await line.execute("SELECT 1 FROM ring.streams FOR UPDATE")
                committing = asyncio.create_task(apply(store, ending))
                await until(lambda: _many_wait(line, 1), TEST_TIMEOUT_S)
                await line.execute("SELECT 1 FROM ring.jobs FOR UPDATE")  # now one of the two has to give way
            assert isinstance(await committing, Committed)
        assert "deadlock detected" in (own.folder / "postgres.log").read_text()
        assert [e.kind for e in await store.read(STREAM)].count("order.done") == 1
    finally:
        await store.close()


STUMBLE = """
CREATE SEQUENCE {schema}.stumbles;
CREATE FUNCTION {schema}.stumble() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF nextval('{schema}.stumbles') % 3 = 0 THEN
    RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER stumble AFTER INSERT ON {schema}.events FOR EACH STATEMENT EXECUTE FUNCTION {schema}.stumble();
"""


async def test_serialization_failures(own: postgres_server.Server, tmp_path: Path, tell: Tell) -> None:
    """At our level there are none, but a trigger of others, or a proxy, may answer so: every third write here."""
    async with under_way(own.url("stumbling"), tmp_path) as load:
        await asyncio.to_thread(own.run, STUMBLE.format(schema="stumbling"))
        await load.more(10 * TIMES, TEST_TIMEOUT_S)
    stumbles = own.do("SELECT last_value / 3 FROM stumbling.stumbles")[0][0]
    tell(f"{stumbles} serialization failures, {load}")
    assert load.problems == []
    assert stumbles >= TIMES


async def test_a_server_that_only_lets_us_read(own: postgres_server.Server, tmp_path: Path, tell: Tell) -> None:
    """As after a failover, until the connection leads to the new one, or when somebody guards a disk that fills up."""
    async with under_way(role(own, "reader"), tmp_path) as load:
        await load.more(5, TEST_TIMEOUT_S)
        refused = load.refused
        await asyncio.to_thread(own.do, "ALTER ROLE reader SET default_transaction_read_only = on")
        await asyncio.to_thread(
            own.do, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'reader'"
        )
        await until(lambda: load.refused > refused, TEST_TIMEOUT_S)
        await asyncio.to_thread(own.do, "ALTER ROLE reader RESET ALL")
        await load.more(5, TEST_TIMEOUT_S)
    tell(f"read only for a while, {load}")
    assert load.problems == []


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
async def test_whatever_isolation_a_role_begins_with(own: postgres_server.Server, level: str) -> None:
    """Two children end at the same time in two processes: the second must see the first, or nobody wakes the parent."""
    url = role(own, level.split()[0], default_transaction_isolation=level)
    one, two = PostgresStore(url), PostgresStore(url)
    await one.open()
    await two.open()
    try:
        await apply(one, unit(jobs=tree(child("a"), child("b"))))
        ends = [end(await claim_one(store, KIDS), Completed(b"1")) for store in (one, two)]
        async with asyncio.TaskGroup() as committing, intruder(own) as line, line.transaction():
            await line.execute(f"SELECT 1 FROM {one.address.schema}.jobs WHERE id = 'p' FOR UPDATE")
            for store, ending in zip((one, two), ends, strict=True):
                committing.create_task(apply(store, ending))
            await until(lambda: _many_wait(line, 2), TEST_TIMEOUT_S)
        assert (await claim_one(one)).job == "p"
    finally:
        await one.close()
        await two.close()


async def _many_wait(line: Any, many: int) -> bool:
    return bool(await line.fetchval("SELECT count(DISTINCT pid) >= $1 FROM pg_locks WHERE NOT granted", many))
