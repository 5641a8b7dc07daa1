"""PgBouncer in transaction mode: each transaction may use another connection, and nothing is notified."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faultkit.load import run_load

import postgres_server
from penstock import App, Context, flow, job
from penstock.core.errors import SettingError
from penstock.stores import tail as tailing
from penstock.stores.postgres.address import read_address
from penstock.stores.postgres.connection import Connections
from penstock.testing.until import until
from penstock.worker import polling
from pgbouncer_server import PgBouncer

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(300)]
TEST_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def pooler() -> Iterator[PgBouncer]:
    with tempfile.TemporaryDirectory(prefix="penstock-pgbouncer-") as folder:
        Path(folder).chmod(0o755)
        one = PgBouncer(postgres_server.server(), Path(folder))
        yield one
        one.stop()


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll more often than in production."""
    monkeypatch.setattr(polling, "MAX_IDLE_S", 0.1)
    monkeypatch.setattr(tailing, "POLL_INTERVAL_S", 0.1)


async def test_flows_through_a_pooler(pooler: PgBouncer, tmp_path: Path, show: Callable[[str], None]) -> None:
    async with run_load(pooler.url("pooled"), tmp_path) as load:
        await load.wait_for_starts(60, TEST_TIMEOUT_S)
    show(f"through PgBouncer: {load}")
    assert load.problems == []


@flow("pay")
async def pay(order: Any, ctx: Context) -> Any:
    paid = await ctx.wait.event("payment.confirmed", match={"order": order})
    return paid.data["by"]


@job(queue="sums")
def double(n: int) -> int:
    return 2 * n


@pytest.mark.spec("000-7.13")
async def test_jobs_and_waits_of_another_process(pooler: PgBouncer) -> None:
    """The client and the worker do not notify each other: they poll."""
    async with (
        App(pooler.url("polled"), handlers=[pay, double]) as client,
        App(pooler.url("polled"), handlers=[pay, double]) as worker_app,
        worker_app.workers.background(),
    ):
        run = await client.start("pay", 7)
        sum = await client.enqueue("sums", 21)
        assert await client.jobs.result(sum, timeout=TEST_TIMEOUT_S) == 42
        await until(lambda: client.waits.list(run=run), TEST_TIMEOUT_S)
        await client.emit("payment.confirmed", {"order": 7, "by": "ann"})
        assert await client.result(run, timeout=TEST_TIMEOUT_S) == "ann"


async def test_the_default_isolation_of_a_database_does_not_matter(pooler: PgBouncer) -> None:
    """A pooler passes on no session settings: each transaction sets its isolation."""
    server = postgres_server.server()
    server.do("DROP DATABASE IF EXISTS strict")
    server.do("CREATE DATABASE strict")
    server.do("ALTER DATABASE strict SET default_transaction_isolation = 'repeatable read'")
    connections = Connections(read_address(pooler.url("polled").replace("/postgres?", "/strict?")))
    level = await connections.run(lambda connection: connection.fetchval("SHOW transaction_isolation"))
    assert level == "read committed"
    await connections.close()


async def test_an_unknown_option(pooler: PgBouncer) -> None:
    """PgBouncer reports it in other words than Postgres. It must not be retried for ever."""
    connections = Connections(read_address(f"{pooler.url('polled')}&shcema=mine"))
    with pytest.raises(SettingError, match="unknown option 'shcema' in a Postgres URL; did you mean 'schema'"):
        await connections.run(lambda connection: connection.fetchval("SELECT 1"))
    await connections.close()
