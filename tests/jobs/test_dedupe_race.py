"""Keys that several processes ask for at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock import job


@job(queue="q")
async def work(input: Any) -> Any:
    return input


async def test_one_job_for_a_key_that_many_ask_for(shared: Callable[..., Any]) -> None:
    async with shared(work) as one, shared(work) as two, shared(work) as three:
        for key in ("ada", "bob", "eve", "kim", "lea"):
            asks = [a.enqueue("q", n, dedupe=key) for n in range(5) for a in (one, two, three)]
            assert len(set(await asyncio.gather(*asks))) == 1
        assert await one.count_waiting("q") == 5
