"""A master that fails, and sentinels that make another one: work goes on, and what is lost is lost as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faultkit.config import FULL
from faultkit.load import run_load

from penstock.core.errors import StoreUnavailable
from penstock.stores.redis import RedisStore
from penstock.testing.until import until
from redis_groups import NAME, Watched, ask

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(300)]
SWITCHES = 1 if FULL else 0  # by an administrator's word, after the one by force


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    one = Watched(tmp_path)
    try:
        yield one
    finally:
        one.stop()


async def test_a_failover_in_the_middle_of_work(watched: Watched, tmp_path: Path, show: Callable[[str], None]) -> None:
    async with run_load(watched.url(), tmp_path, may_lose_writes=True, pace=0.05) as load:
        for _ in range(SWITCHES):
            await load.wait_for_starts(10)
            await _switch(watched)
        await load.wait_for_starts(10)
        watched.servers[watched.master()].kill()
        await load.wait_for_starts(20)
        await load.wait_for_renewal()
    show(f"{SWITCHES + 1} failovers, {load}")
    assert load.problems == []
    await _cannot_help(watched)


async def _switch(watched: Watched) -> None:
    """The replica is made master, and the master its replica."""
    before = watched.master()

    async def agreed() -> bool:  # a sentinel may not know yet that the replica is a good one
        return await asyncio.to_thread(ask, watched.sentinels[0].port, "SENTINEL", "FAILOVER", NAME) == b"+OK\r\n"

    await until(agreed, 60)
    await until(lambda: watched.master() != before and watched.steady(), 60)


async def _cannot_help(watched: Watched) -> None:
    """What is said when sentinels do not know the name, and when one or all of them are gone."""
    with pytest.raises(StoreUnavailable, match="No master found for 'other'"):
        await RedisStore(watched.url().replace(f"/{NAME}/", "/other/")).open()
    watched.sentinels[0].stop()  # the others are asked
    store = RedisStore(watched.url())
    await store.open()
    await store.close()
    for one in watched.sentinels[1:]:
        one.stop()
    with pytest.raises(StoreUnavailable, match="check that its sentinels run"):
        await RedisStore(watched.url()).open()
