"""Which Redis is opened, how, and what is said when it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

import redis_server
from penstock.core.errors import ConfigError, SettingError, StoreError, StoreUnavailable
from penstock.ports.unit import NewJob, Unit
from penstock.stores.redis import RedisStore, scripts
from penstock.stores.redis.address import Address, parse


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
def test_addresses(url: str, address: Address) -> None:
    assert parse(url) == address


@pytest.mark.parametrize("url", ["redis://host:x", "redis://host/x", "redis+sentinel://host", "redis://"])
def test_urls_that_cannot_be_read(url: str) -> None:
    with pytest.raises(SettingError, match="write redis://"):
        parse(url)


async def test_nobody_there() -> None:
    with pytest.raises(StoreUnavailable, match="is it running"):
        await RedisStore(f"redis://127.0.0.1:{redis_server.free_port()}").open()


async def test_a_password_that_is_asked_for(tmp_path: Path) -> None:
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
            with pytest.raises(StoreError, match="check user, password and ACL") as problem:
                await RedisStore(url).open()
            assert "wrong@" not in str(problem.value)
    finally:
        server.stop()


async def test_what_a_doctor_doubts(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("truncated", "doubts"), [("yes", 1), ("no", 0)])
async def test_a_doctor_knows_what_a_log_may_end_in(tmp_path: Path, truncated: str, doubts: int) -> None:
    server = redis_server.Server(tmp_path, "--appendonly", "yes", "--aof-load-truncated", truncated)
    store = RedisStore(server.url())
    try:
        await store.open()
        found = (await store.describe())["doubts"]
        assert len(found) == doubts
        assert all("redis-check-aof --fix" in doubt for doubt in found)
    finally:
        await store.close()
        server.stop()


def test_an_option_that_a_url_has_not() -> None:
    with pytest.raises(SettingError, match="no option 'prefx'; the options are ca, db, prefix"):
        parse("redis://host/0?prefx=jobs")
    with pytest.raises(SettingError, match="no option 'prefx'"):
        parse("redis://host/0?prefx")
    assert parse("redis://host/0?prefix=").queue_prefix is None


def test_files_that_are_not_the_tested_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scripts.FILES, "pause-7", "0" * 16)
    with pytest.raises(ConfigError, match=r"pause-7.lua of bullmq 3\.4\.4 is not the one"):
        scripts._bullmq_file("pause-7")


async def test_ids_that_are_words_of_bullmq() -> None:
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
