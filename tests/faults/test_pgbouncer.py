"""Behind PgBouncer in transaction mode: every transaction may be another connection's, and nobody is listened to."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faultkit.trouble import under_way

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
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone looks more often than in earnest."""
    monkeypatch.setattr(polling, "MAX_IDLE_S", 0.1)
    monkeypatch.setattr(tailing, "POLL_INTERVAL_S", 0.1)


async def test_flows_through_a_pooler(pooler: PgBouncer, tmp_path: Path, tell: Callable[[str], None]) -> None:
    async with under_way(pooler.url("pooled"), tmp_path) as load:
        await load.more(60, TEST_TIMEOUT_S)
    tell(f"through PgBouncer: {load}")
    assert load.problems == []


@flow("pay")
async def pay(order: Any, ctx: Context) -> Any:
    paid = await ctx.wait.event("payment.confirmed", match={"order": order})
    return paid.data["by"]


@job(queue="sums")
def double(n: int) -> int:
    return 2 * n


async def test_jobs_and_waits_of_another_process(pooler: PgBouncer) -> None:
    """The one who asks and the one who works hear nothing of each other: they look."""
    async with (
        App(pooler.url("looked"), handlers=[pay, double]) as asking,
        App(pooler.url("looked"), handlers=[pay, double]) as other,
        other.workers.background(),
    ):
        run = await asking.start("pay", 7)
        sum = await asking.enqueue("sums", 21)
        assert await asking.jobs.result(sum, timeout=TEST_TIMEOUT_S) == 42
        await until(lambda: asking.waits(run=run), TEST_TIMEOUT_S)
        await asking.emit("payment.confirmed", {"order": 7, "by": "ann"})
        assert await asking.result(run, timeout=TEST_TIMEOUT_S) == "ann"


async def test_whatever_isolation_a_database_begins_with(pooler: PgBouncer) -> None:
    """A pooler lets no connection begin with settings of its own: each transaction brings it along."""
    server = postgres_server.server()
    server.do("DROP DATABASE IF EXISTS strict")
    server.do("CREATE DATABASE strict")
    server.do("ALTER DATABASE strict SET default_transaction_isolation = 'repeatable read'")
    connections = Connections(read_address(pooler.url("looked").replace("/postgres?", "/strict?")))
    level = await connections.run(lambda connection: connection.fetchval("SHOW transaction_isolation"))
    assert level == "read committed"
    await connections.close()


async def test_an_option_that_a_url_has_not(pooler: PgBouncer) -> None:
    """PgBouncer has words of its own for it, and would be asked for ever."""
    connections = Connections(read_address(f"{pooler.url('looked')}&shcema=mine"))
    with pytest.raises(SettingError, match="no option 'shcema': did you mean 'schema'"):
        await connections.run(lambda connection: connection.fetchval("SELECT 1"))
    await connections.close()
