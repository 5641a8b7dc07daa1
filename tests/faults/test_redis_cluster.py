"""A Redis Cluster: everything of ours is in one slot, whoever of its servers is asked first."""

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
    with cluster() as them:
        yield them


async def test_names_that_would_be_spread_are_refused(servers: list[Server]) -> None:
    for url, namespace in ((_url(servers[0]), "nq"), (f"{_url(servers[0])}?prefix=bull", "{nq}")):
        with pytest.raises(ConfigError, match="put the namespace in braces"):
            await RedisStore(url, namespace=namespace).open()


async def test_a_cluster_has_one_database(servers: list[Server]) -> None:
    with pytest.raises(StoreError, match="end the URL with /0"):
        await RedisStore(f"redis://127.0.0.1:{servers[0].port}/3", namespace="{nq}").open()


@pytest.mark.parametrize("asked", range(3))
async def test_work_is_done_whichever_server_is_asked(servers: list[Server], asked: int, tmp_path: Path) -> None:
    async with run_load(_url(servers[asked]), tmp_path, namespace=f"{{n{asked}}}") as load:
        await load.wait_for_starts(10)
    assert load.problems == []
    holders = [server for server in servers if b"keys=" in server.command("INFO", "keyspace")]
    assert holders, "nothing was written"


async def test_leases_are_renewed_where_the_keys_are(servers: list[Server]) -> None:
    for n, server in enumerate(servers):
        store = RedisStore(_url(server), namespace=f"{{lease{n}}}")
        await store.open()
        try:
            one = await add_and_claim(store, "j")
            assert store.renew([one], 30_000) == []
        finally:
            await store.close()


async def test_the_setting_takes_a_namespace_in_braces(servers: list[Server]) -> None:
    async with App(_url(servers[1]), handlers=[], namespace="{shop}") as app:
        await app.emit("said", 1)
        assert [event.data for event in await app.events.read_all("{shop}:global")] == [1]


def _url(server: Server) -> str:
    return f"redis://127.0.0.1:{server.port}/0"
