"""A Redis Cluster: all our keys are in one slot, and any node of the URL leads to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from faultkit.load import run_load

from penstock import App
from penstock.core.errors import ConfigError, StoreError
from penstock.stores.redis import RedisStore
from penstock.testing.contracts.samples import add_and_claim
from redis_groups import cluster
from redis_server import Server

pytestmark = [pytest.mark.xdist_group("faults")]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    with cluster() as nodes:
        yield nodes


async def test_names_without_a_hash_tag_are_refused(servers: list[Server]) -> None:
    for url, namespace in ((_url(servers[0]), "nq"), (f"{_url(servers[0])}?prefix=bull", "{nq}")):
        with pytest.raises(ConfigError, match="Give all keys the same hash tag: set PENSTOCK_NAMESPACE"):
            await RedisStore(url, namespace=namespace).open()


async def test_a_cluster_has_one_database(servers: list[Server]) -> None:
    with pytest.raises(StoreError, match="end the URL with /0"):
        await RedisStore(f"redis://127.0.0.1:{servers[0].port}/3", namespace="{nq}").open()


@pytest.mark.spec("002-7.5")
@pytest.mark.parametrize("node", range(3))
async def test_any_node_leads_to_our_slot(servers: list[Server], node: int, tmp_path: Path) -> None:
    async with run_load(_url(servers[node]), tmp_path, namespace=f"{{n{node}}}") as load:
        await load.wait_for_starts(10)
    assert load.problems == []
    holders = [server for server in servers if b"keys=" in server.command("INFO", "keyspace")]
    assert holders, "nothing was written"


async def test_leases_are_renewed_on_the_node_of_our_slot(servers: list[Server]) -> None:
    for n, server in enumerate(servers):
        store = RedisStore(_url(server), namespace=f"{{lease{n}}}")
        await store.open()
        try:
            one = await add_and_claim(store, "j")
            assert store.renew([one], 30_000) == []
        finally:
            await store.close()


async def test_an_app_with_a_namespace_in_braces(servers: list[Server]) -> None:
    async with App(_url(servers[1]), handlers=[], namespace="{shop}") as app:
        await app.emit("ping", 1)
        assert [event.data for event in await app.events.read_all("{shop}:global")] == [1]


def _url(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}/0"
