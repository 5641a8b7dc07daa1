"""Failovers by sentinels: work continues, and no unit is half lost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faultkit.config import FULL
from faultkit.load import run_load

from penstock.core.errors import StoreUnavailable
from penstock.stores.redis import RedisStore
from penstock.stores.redis.address import parse
from penstock.stores.redis.sentinels import find_master
from penstock.testing.until import until
from redis_groups import NAME, SentinelGroup, ask

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(300)]
SWITCHES = 1 if FULL else 0  # planned failovers, before the master is killed


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    one = SentinelGroup(tmp_path)
    try:
        yield one
    finally:
        one.stop()


async def test_a_sentinel_failover_during_work(
    group: SentinelGroup, tmp_path: Path, show: Callable[[str], None]
) -> None:
    async with run_load(group.url(), tmp_path, may_lose_writes=True, pace=0.05) as load:
        for _ in range(SWITCHES):
            await load.wait_for_starts(10)
            await _fail_over(group)
        await load.wait_for_starts(10)
        group.servers[group.master()].kill()
        await load.wait_for_starts(20)
        await load.wait_for_renewal()
    show(f"{SWITCHES + 1} failovers, {load}")
    assert load.problems == []
    await _check_errors(group)


async def _fail_over(group: SentinelGroup) -> None:
    """Promote the replica, and make the master its replica."""
    before = group.master()

    async def is_accepted() -> bool:  # refused while a sentinel does not know the replica
        return await asyncio.to_thread(ask, group.sentinels[0].port, "SENTINEL", "FAILOVER", NAME) == b"+OK\r\n"

    await until(is_accepted, 60)
    await until(lambda: group.master() != before and group.is_stable(), 60)


async def _check_errors(group: SentinelGroup) -> None:
    """Check the errors for an unknown name, and with one or all sentinels gone."""
    with pytest.raises(StoreUnavailable, match=r"\(other\) \(ERR No such master"):
        await RedisStore(group.url().replace(f"/{NAME}/", "/other/")).open()
    group.sentinels[0].stop()  # the others answer
    masters = await asyncio.gather(*(find_master(parse(group.url())) for _ in range(5)))
    assert len(set(masters)) == 1
    gc.collect()  # warns about connections that were not closed
    store = RedisStore(group.url())
    await store.open()
    await store.close()
    for one in group.sentinels[1:]:
        one.stop()
    with pytest.raises(StoreUnavailable, match="check that the sentinels are running"):
        await RedisStore(group.url()).open()
