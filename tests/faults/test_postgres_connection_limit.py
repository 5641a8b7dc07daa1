"""A server that has no connection left: the error names the fix, and running work continues once one is free."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from faultkit.config import FULL
from faultkit.load import run_load

import postgres_server
from penstock.core.errors import StoreUnavailable
from penstock.stores.postgres import PostgresStore
from penstock.testing.contracts.samples import add_and_claim, apply, event, unit
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

TIMES = 20 if FULL else 2
MAX_CONNECTIONS = 12  # three of them are reserved for superusers
TEST_TIMEOUT_S = 60
Show = Callable[[str], None]


@pytest.fixture(scope="module")
def own() -> Iterator[postgres_server.Server]:
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as folder:
        server = postgres_server.Server(
            Path(folder), f"max_connections={MAX_CONNECTIONS}", "superuser_reserved_connections=3"
        )
        yield server
        server.stop()


def role(own: postgres_server.Server, name: str, limit: int = -1) -> str:
    """Create a role with a connection limit. Return its URL, with its own schema."""
    own.do(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT {limit}")
    own.do(f"GRANT ALL ON DATABASE postgres TO {name}")
    return own.url(name).replace("postgres@", f"{name}@", 1)


@asynccontextmanager
async def use_up_connections(url: str) -> AsyncIterator[None]:
    """Open every connection that the server accepts."""
    async with AsyncExitStack() as opened:
        try:
            while True:
                connection = await asyncpg.connect(url.partition("?")[0])
                opened.push_async_callback(connection.close)
        except asyncpg.TooManyConnectionsError:
            yield


async def test_no_connection_at_startup_names_the_fix(own: postgres_server.Server) -> None:
    url = role(own, "late")
    store = PostgresStore(url)
    async with use_up_connections(url):
        with pytest.raises(StoreUnavailable, match=r"no free connections .*uses up to 7. Raise max_connections"):
            await store.open()
    await store.open()
    await apply(store, unit(events=[event()]))
    await store.close()


async def test_running_work_continues_when_connections_are_free_again(
    own: postgres_server.Server, tmp_path: Path, show: Show
) -> None:
    longest = 0.0
    async with run_load(role(own, "worker"), tmp_path) as load:
        for _ in range(TIMES):
            await load.wait_for_starts(5, TEST_TIMEOUT_S)
            refused = load.refused
            await asyncio.to_thread(own.do, "ALTER ROLE worker CONNECTION LIMIT 0")
            await asyncio.to_thread(
                own.do, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'"
            )
            await until(lambda refused=refused: load.refused > refused, TEST_TIMEOUT_S)  # type: ignore[misc]
            await asyncio.to_thread(own.do, "ALTER ROLE worker CONNECTION LIMIT -1")
            longest = max(longest, await load.wait_for_recovery(TEST_TIMEOUT_S))
    show(f"{TIMES} times no connection, {load}; work continued within {longest:.1f} s")
    assert load.problems == []


async def test_a_limit_below_the_pool_size_is_enough(own: postgres_server.Server, tmp_path: Path, show: Show) -> None:
    """One connection commits, one listens, one renews leases: the pool does without the others."""
    async with run_load(role(own, "modest", 3), tmp_path) as load:
        await load.wait_for_starts(20, TEST_TIMEOUT_S)
        await asyncio.gather(*(load.app.store.runs() for _ in range(30)))  # one after the other
    rejected = (own.folder / "postgres.log").read_text().count('too many connections for role "modest"')
    show(f"rejected {rejected} times, {load}")
    assert load.problems == []
    assert rejected


async def test_leases_take_a_connection_from_the_pool(own: postgres_server.Server) -> None:
    """The pool has used up the limit when the first lease must be renewed."""
    store = PostgresStore(role(own, "renewing", 3))
    await store.open()
    try:
        mine = await add_and_claim(store, "j")
        await until(lambda: _count(own, "renewing") == 2, TEST_TIMEOUT_S)  # it listens
        async with asyncio.TaskGroup() as reading:
            for _ in range(2):
                reading.create_task(store._connections.run(lambda c: c.execute("SELECT pg_sleep(0.2)")))
        assert _count(own, "renewing") == 3
        assert await asyncio.to_thread(store.renew, [mine], 30_000) == []
        assert _count(own, "renewing") == 3
    finally:
        await store.close()


def _count(own: postgres_server.Server, role: str) -> int:
    return len(own.do("SELECT 1 FROM pg_stat_activity WHERE usename = $1", role))


async def test_doctor_compares_the_limits_with_what_a_process_uses(own: postgres_server.Server) -> None:
    assert await connection_warnings(role(own, "roomy")) == []
    (scarce,) = await connection_warnings(role(own, "scarce", 6))
    assert scarce.startswith(
        "the CONNECTION LIMIT of role scarce is 6, other programs use 0, and a process uses up to 7"
    )
    (many,) = await connection_warnings(own.url("many", pool="20"))
    assert many.startswith(
        f"max_connections is {MAX_CONNECTIONS - 3}, other programs use 0, and a process uses up to 22"
    )


async def connection_warnings(url: str) -> list[str]:
    store = PostgresStore(url)
    await store.open()
    try:
        found: list[str] = (await store.describe())["doubts"]
        return [text for text in found if "a process uses" in text]  # the test server also warns about fsync
    finally:
        await store.close()
