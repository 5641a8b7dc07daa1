"""A server that has no connection left: it is said what to do, and what is running goes on as soon as there is room."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from faultkit.length import FULL
from faultkit.trouble import under_way

import postgres_server
from penstock.core.errors import StoreUnavailable
from penstock.stores.postgres import PostgresStore
from penstock.testing.contracts.samples import add_and_claim, apply, event, unit
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

TIMES = 20 if FULL else 2
MAX_CONNECTIONS = 12  # three of them are the administrators'
TEST_TIMEOUT_S = 60
Tell = Callable[[str], None]


@pytest.fixture(scope="module")
def own() -> Iterator[postgres_server.Server]:
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as folder:
        server = postgres_server.Server(
            Path(folder), f"max_connections={MAX_CONNECTIONS}", "superuser_reserved_connections=3"
        )
        yield server
        server.stop()


def role(own: postgres_server.Server, name: str, places: int = -1) -> str:
    """The URL of a role that limits hold for, in a schema of its own."""
    own.do(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT {places}")
    own.do(f"GRANT ALL ON DATABASE postgres TO {name}")
    return own.url(name).replace("postgres@", f"{name}@", 1)


@asynccontextmanager
async def crowd(url: str) -> AsyncIterator[None]:
    """Takes every place there is."""
    async with AsyncExitStack() as lines:
        try:
            while True:
                line = await asyncpg.connect(url.partition("?")[0])
                lines.push_async_callback(line.close)
        except asyncpg.TooManyConnectionsError:
            yield


async def test_no_place_at_the_start_is_said(own: postgres_server.Server) -> None:
    url = role(own, "late")
    store = PostgresStore(url)
    async with crowd(url):
        with pytest.raises(StoreUnavailable, match=r"no connection left .*uses up to 7: raise max_connections"):
            await store.open()
    await store.open()
    await apply(store, unit(events=[event()]))
    await store.close()


async def test_what_runs_goes_on_when_there_is_room_again(
    own: postgres_server.Server, tmp_path: Path, tell: Tell
) -> None:
    longest = 0.0
    async with under_way(role(own, "worker"), tmp_path) as load:
        for _ in range(TIMES):
            await load.more(5, TEST_TIMEOUT_S)
            refused = load.refused
            await asyncio.to_thread(own.do, "ALTER ROLE worker CONNECTION LIMIT 0")
            await asyncio.to_thread(
                own.do, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'"
            )
            await until(lambda refused=refused: load.refused > refused, TEST_TIMEOUT_S)  # type: ignore[misc]
            await asyncio.to_thread(own.do, "ALTER ROLE worker CONNECTION LIMIT -1")
            longest = max(longest, await load.back(TEST_TIMEOUT_S))
    tell(f"{TIMES} times no place, {load}; at the latest work went on after {longest:.1f} s")
    assert load.problems == []


async def test_fewer_places_than_we_would_use_are_shared(
    own: postgres_server.Server, tmp_path: Path, tell: Tell
) -> None:
    """One to commit, one to listen, one for the leases: the others of the pool are done without."""
    async with under_way(role(own, "modest", 3), tmp_path) as load:
        await load.more(20, TEST_TIMEOUT_S)
        await asyncio.gather(*(load.app.store.runs() for _ in range(30)))  # one after the other
    turned_away = (own.folder / "postgres.log").read_text().count('too many connections for role "modest"')
    tell(f"turned away {turned_away} times, {load}")
    assert load.problems == []
    assert turned_away


async def test_leases_have_a_place_before_reads(own: postgres_server.Server) -> None:
    """The pool has taken what there was, and then the first lease is to be renewed."""
    store = PostgresStore(role(own, "keeping", 3))
    await store.open()
    try:
        mine = await add_and_claim(store, "j")
        await until(lambda: _many(own, "keeping") == 2, TEST_TIMEOUT_S)  # it listens
        async with asyncio.TaskGroup() as reading:
            for _ in range(2):
                reading.create_task(store._connections.run(lambda c: c.execute("SELECT pg_sleep(0.2)")))
        assert _many(own, "keeping") == 3
        assert await asyncio.to_thread(store.renew, [mine], 30_000) == []
        assert _many(own, "keeping") == 3
    finally:
        await store.close()


def _many(own: postgres_server.Server, role: str) -> int:
    return len(own.do("SELECT 1 FROM pg_stat_activity WHERE usename = $1", role))


async def test_doctors_compare_what_a_process_uses(own: postgres_server.Server) -> None:
    assert await doubts(role(own, "roomy")) == []
    (scarce,) = await doubts(role(own, "scarce", 6))
    assert scarce.startswith(
        "the CONNECTION LIMIT of role scarce is 6, 0 are in use by others, and a process uses up to 7"
    )
    (many,) = await doubts(own.url("many", pool="20"))
    assert many.startswith(
        f"max_connections is {MAX_CONNECTIONS - 3}, 0 are in use by others, and a process uses up to 22"
    )


async def doubts(url: str) -> list[str]:
    store = PostgresStore(url)
    await store.open()
    try:
        found: list[str] = (await store.describe())["doubts"]
        return [doubt for doubt in found if "a process uses" in doubt]  # the server of tests writes carelessly
    finally:
        await store.close()
