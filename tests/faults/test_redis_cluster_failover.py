"""The master of our slot dies: its replica takes over, work continues, and no unit is half lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit.load import run_load

from redis_groups import cluster
from redis_server import Server

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(300)]
NAMESPACE = "{nq}"


async def test_a_cluster_failover_during_work(tmp_path: Path, show: Callable[[str], None]) -> None:
    with cluster(replicas=True) as servers:
        url = f"redis://{','.join(f'127.0.0.1:{server.port}' for server in servers[:3])}/0"
        async with run_load(url, tmp_path, namespace=NAMESPACE, may_lose_writes=True, pace=0.05) as load:
            await load.wait_for_starts(10)
            master = _holder(servers[:3])
            master.kill()
            await load.wait_for_starts(20)
            await load.wait_for_renewal()
        show(f"a failover, {load}")
        assert load.problems == []
        assert _holder(servers[3:]) is servers[servers.index(master) + 3]


def _holder(servers: list[Server]) -> Server:
    """Return the server that has our keys."""
    (one,) = [server for server in servers if b"keys=" in server.command("INFO", "keyspace")]
    return one
