"""TLS with a private certificate authority, an ACL user with minimal rights, and separate databases."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from faultkit.load import run_load
from faultkit.proxy import Proxy

from certificate_authority import Authority
from penstock.core.errors import SettingError, StoreError
from penstock.stores.redis import RedisStore
from penstock.testing.contracts.samples import add_and_claim
from redis_server import Server

pytestmark = [pytest.mark.xdist_group("faults")]

# The rights that docs/redis.md lists.
RIGHTS = (
    "resetchannels ~nq:* ~bull:* &nq:live:* -@all +@read +@write +@connection +@pubsub +@scripting +select +info +time"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    one = Server(tmp_path)
    try:
        yield one
    finally:
        one.stop()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.spec("002-8.3")
async def test_work_over_tls(server: Server, authority: Authority, tmp_path: Path) -> None:
    async with Proxy(server.port, authority.context()) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}/0?ca={authority.file}"
        async with run_load(url, tmp_path, lease="1s") as load:
            await load.wait_for_starts(20)
            proxy.cut_connections()
            await load.wait_for_starts(20)
        store = RedisStore(url)
        await store.open()
        one = await add_and_claim(store, "j")
        assert await asyncio.to_thread(store.renew, [one], 30_000) == []  # renewals use their own connection
        await store.close()
    assert load.problems == []


async def test_an_untrusted_certificate_is_refused(server: Server, authority: Authority) -> None:
    async with Proxy(server.port, authority.context()) as proxy:
        with pytest.raises(StoreError, match=r"not trusted .*\?ca=FILE"):
            await RedisStore(f"rediss://127.0.0.1:{proxy.port}/0").open()


async def test_a_missing_ca_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is not a file of certificates"):
        await RedisStore(f"rediss://127.0.0.1/0?ca={tmp_path / 'none.pem'}").open()


@pytest.mark.spec("002-8.6")
async def test_a_user_with_the_documented_rights(server: Server, tmp_path: Path) -> None:
    assert server.command("ACL", "SETUSER", "ann", "on", ">p:w@d", *RIGHTS.split()) == b"+OK\r\n"
    server.command("ACL", "SETUSER", "default", "off")
    url = f"redis://ann:p%3Aw%40d@127.0.0.1:{server.port}/7"
    async with run_load(url, tmp_path) as load:
        await load.wait_for_starts(20)
    assert load.problems == []


@pytest.mark.spec("002-8.6")
@pytest.mark.parametrize("missing", ["~bull:*", "~nq:*", "&nq:live:*", "+@scripting", "+@write"])
async def test_a_missing_right_is_reported_before_the_first_write(server: Server, missing: str) -> None:
    rights = [right for right in RIGHTS.split() if right != missing]
    server.command("ACL", "SETUSER", "ann", "on", ">pw", *rights)
    with pytest.raises(StoreError, match="check the user, the password and the ACL"):
        await RedisStore(f"redis://ann:pw@127.0.0.1:{server.port}/0").open()


async def test_databases_are_separate(server: Server) -> None:
    one, other = (RedisStore(f"redis://127.0.0.1:{server.port}/{n}") for n in (3, 4))
    await one.open()
    await other.open()
    try:
        await add_and_claim(one, "j")
        assert await one.job("j") is not None
        assert await other.job("j") is None
    finally:
        await one.close()
        await other.close()
