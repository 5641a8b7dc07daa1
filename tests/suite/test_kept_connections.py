"""A test leaves its connections to Postgres to the next one, and nothing else."""

from __future__ import annotations

import asyncio
import socket

import kept_connections
import postgres_server
from penstock.stores.postgres import PostgresStore
from penstock.stores.postgres.connection import Connections


async def read_pid() -> int:
    store = PostgresStore(postgres_server.prepared_url())
    await store.open()
    pid = await store._connections.run(lambda c: c.fetchval("SELECT pg_backend_pid()"))
    await store.close()
    return int(pid)


async def test_a_connection_is_kept_as_new() -> None:
    await read_pid()  # it may create the schema
    url = postgres_server.prepared_url()
    one = Connections(PostgresStore(url).address)
    one.acquire()
    pid = await one.run(lambda c: c.fetchval("SELECT pg_backend_pid()"))
    await one.run(lambda c: c.execute("SET work_mem = '1234kB'; SELECT pg_advisory_lock(17)"))
    await one.close()
    two = Connections(PostgresStore(url).address)
    two.acquire()
    asked = "SELECT pg_backend_pid(), current_setting('work_mem') = '1234kB', (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"
    assert tuple(await two.run(lambda c: c.fetchrow(asked))) == (pid, False, 0)
    await two.close()


async def test_a_connection_that_was_cut_is_not_used_again() -> None:
    pid = await read_pid()
    postgres_server.server().do("SELECT pg_terminate_backend($1)", pid)
    assert await read_pid() != pid


async def test_a_new_schema_takes_new_connections() -> None:
    pid = await read_pid()
    postgres_server.url()
    assert await read_pid() != pid


async def test_the_loop_ends_what_is_left() -> None:
    """Use another loop, as this one is in use."""
    loop = kept_connections.KeptLoop()
    ours, theirs = socket.socketpair()
    called: list[str] = []

    def run() -> None:
        loop.add_reader(ours, called.append, "reader")
        loop.call_soon(called.append, "soon")
        loop.call_later(0, called.append, "later")
        theirs.send(b"x")
        loop.close()
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0.001))
        assert called == []
        assert loop.run_until_complete(loop.run_in_executor(None, lambda: 1)) == 1
        loop.run_until_complete(loop.shutdown_default_executor())

    with ours, theirs:
        await asyncio.to_thread(run)
    asyncio.SelectorEventLoop.close(loop)


async def test_a_test_runs_on_the_kept_loop() -> None:
    assert asyncio.get_running_loop() is kept_connections._loop


def test_only_one_at_a_time_uses_the_loop() -> None:
    first, second = kept_connections.open_loop(), kept_connections.open_loop()
    assert second is not first
    second.close()
    first.close()
    assert kept_connections.open_loop() is first
    first.close()
