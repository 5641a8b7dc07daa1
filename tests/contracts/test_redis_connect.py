"""Redis URLs, opening a store, and the errors when it cannot be opened."""

from __future__ import annotations

from pathlib import Path

import pytest

import redis_server
from penstock.core.errors import ConfigError, SettingError, StoreError, StoreUnavailable
from penstock.ports.unit import NewJob, Unit
from penstock.stores.redis import RedisStore, scripts
from penstock.stores.redis.address import Address, parse


@pytest.mark.spec("000-3.7")
@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://host", Address((("host", 6379),))),
        ("redis://host:7000/3", Address((("host", 7000),), db=3)),
        ("redis://:p%40ss@host/1", Address((("host", 6379),), password="p@ss", db=1)),
        ("rediss://ann:pw@host?ca=a.pem", Address((("host", 6379),), "ann", "pw", tls=True, ca="a.pem")),
        ("redis://[::1]:7000", Address((("::1", 7000),))),
        ("redis+sentinel://a,b:1/main/2", Address((("a", 26379), ("b", 1)), db=2, master="main")),
        ("redis+sentinel://a/m?sentinel_password=s", Address((("a", 26379),), master="m", sentinel_password="s")),
        ("redis://host?prefix=jobs", Address((("host", 6379),), queue_prefix="jobs")),
    ],
)
def test_parse_url(url: str, address: Address) -> None:
    assert parse(url) == address


@pytest.mark.parametrize("url", ["redis://host:x", "redis://host/x", "redis+sentinel://host", "redis://"])
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(SettingError, match="use redis://"):
        parse(url)


async def test_no_server_on_the_port() -> None:
    with pytest.raises(StoreUnavailable, match="check that the server is running"):
        await RedisStore(f"redis://127.0.0.1:{redis_server.free_port()}").open()


@pytest.mark.spec("002-8.3")
async def test_user_and_password(tmp_path: Path) -> None:
    server = redis_server.Server(tmp_path)
    server.command("ACL", "SETUSER", "ann", "on", ">right", "~*", "&*", "+@all")
    server.command("ACL", "SETUSER", "default", "off")
    try:
        good, bad = f"redis://ann:right@127.0.0.1:{server.port}", f"redis://ann:wrong@127.0.0.1:{server.port}"
        store = RedisStore(good)
        await store.open()
        assert await store.queues() == []
        await store.close()
        for url in (bad, f"redis://127.0.0.1:{server.port}"):
            with pytest.raises(StoreError, match="check the user, the password and the ACL") as problem:
                await RedisStore(url).open()
            assert "wrong@" not in str(problem.value)
    finally:
        server.stop()


@pytest.mark.spec("002-8.7")
async def test_describe_warns_about_eviction_and_missing_aof(tmp_path: Path) -> None:
    server = redis_server.Server(tmp_path, "--maxmemory-policy", "allkeys-lru")
    store = RedisStore(server.url())
    try:
        await store.open()
        first, second = (await store.describe())["doubts"]
        assert "allkeys-lru" in first
        assert "appendonly" in second
    finally:
        await store.close()
        server.stop()


@pytest.mark.parametrize(("truncated", "warnings"), [("yes", 1), ("no", 0)])
async def test_describe_warns_about_aof_load_truncated(tmp_path: Path, truncated: str, warnings: int) -> None:
    server = redis_server.Server(tmp_path, "--appendonly", "yes", "--aof-load-truncated", truncated)
    store = RedisStore(server.url())
    try:
        await store.open()
        found = (await store.describe())["doubts"]
        assert len(found) == warnings
        assert all("redis-check-aof --fix" in text for text in found)
    finally:
        await store.close()
        server.stop()


@pytest.mark.spec("000-3.7")
def test_unknown_url_options_are_refused() -> None:
    with pytest.raises(SettingError, match="unknown option 'prefx' in a Redis URL; the options are ca, db, prefix"):
        parse("redis://host/0?prefx=jobs")
    with pytest.raises(SettingError, match="unknown option 'prefx' in a Redis URL"):
        parse("redis://host/0?prefx")
    assert parse("redis://host/0?prefix=").queue_prefix is None


def test_untested_bullmq_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scripts.FILES, "pause-7", "0" * 16)
    with pytest.raises(ConfigError, match=r"pause-7.lua of bullmq 3\.4\.4 differs from the tested version"):
        scripts._bullmq_file("pause-7")


async def test_job_ids_that_are_bullmq_keys() -> None:
    store = RedisStore(redis_server.url())
    await store.open()
    try:
        for id in ("wait", "active", "meta", "id"):
            await store.commit([Unit(id=f"u-{id}", jobs=[NewJob(id, "q", "n", b"1")])])
        assert [row.id for row in await store.jobs("q", (await store.job("wait")).state)] == [
            "wait",
            "active",
            "meta",
            "id",
        ]  # type: ignore[union-attr]
    finally:
        await store.close()
