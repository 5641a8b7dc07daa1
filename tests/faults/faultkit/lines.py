"""What can happen to the lines through a proxy while work is under way."""

from __future__ import annotations

import asyncio
import random

from penstock.testing.until import until

from .proxy import Proxy
from .trouble import Load

TEST_TIMEOUT_S = 60


async def swallow(proxy: Proxy) -> None:
    """Requests get through, their replies do not."""
    before = proxy.swallowed
    proxy.swallow = True
    await until(lambda: proxy.swallowed > before, TEST_TIMEOUT_S)
    proxy.swallow = False


async def _drop(proxy: Proxy) -> None:
    proxy.drop()


async def _delay(proxy: Proxy) -> None:
    """Replies come late, some of them after they have been given up."""
    proxy.delay = random.Random(proxy.cut + proxy.swallowed).choice((0.02, 0.1, 0.4))
    await asyncio.sleep(0.5)
    proxy.delay = 0.0


async def _refuse(proxy: Proxy) -> None:
    """Lines are cut and nobody gets through for a while."""
    proxy.refuse = True
    proxy.drop()
    await asyncio.sleep(0.2)
    proxy.refuse = False


async def make_trouble(proxy: Proxy, load: Load, times: int) -> None:
    """One kind of trouble after the other, in the middle of work."""
    rng = random.Random(9)
    kinds = (swallow, _drop, _delay, _refuse)
    for n in range(times):
        await load.more(rng.randrange(2, 8), TEST_TIMEOUT_S)
        await kinds[n % 4](proxy)
