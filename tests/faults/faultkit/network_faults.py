"""Faults of the connections through a proxy while work is in progress."""

from __future__ import annotations

import asyncio
import random

from penstock.testing.until import until

from .load import Load
from .proxy import Proxy

TEST_TIMEOUT_S = 60


async def lose_replies(proxy: Proxy) -> None:
    """Let requests through and drop replies until one was dropped."""
    before = proxy.replies_dropped
    proxy.drop_replies = True
    await until(lambda: proxy.replies_dropped > before, TEST_TIMEOUT_S)
    proxy.drop_replies = False


async def _cut(proxy: Proxy) -> None:
    proxy.cut_connections()


async def _delay(proxy: Proxy) -> None:
    """Delay replies, some of them until after the caller's timeout."""
    proxy.delay_s = random.Random(proxy.connections_cut + proxy.replies_dropped).choice((0.02, 0.1, 0.4))
    await asyncio.sleep(0.5)
    proxy.delay_s = 0.0


async def _refuse(proxy: Proxy) -> None:
    """Cut all connections and refuse new ones for a while."""
    proxy.refuse_connections = True
    proxy.cut_connections()
    await asyncio.sleep(0.2)
    proxy.refuse_connections = False


async def inject_network_faults(proxy: Proxy, load: Load, times: int) -> None:
    """Inject one kind of fault after the other during work."""
    rng = random.Random(9)
    kinds = (lose_replies, _cut, _delay, _refuse)
    for n in range(times):
        await load.wait_for_starts(rng.randrange(2, 8), TEST_TIMEOUT_S)
        await kinds[n % 4](proxy)
