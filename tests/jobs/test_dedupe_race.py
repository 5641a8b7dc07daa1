"""Deduplication when several processes enqueue with one key at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock import job


@job(queue="q")
async def work(input: Any) -> Any:
    return input


async def test_concurrent_enqueues_with_one_dedupe_key_add_one_job(shared: Callable[..., Any]) -> None:
    async with shared(work) as one, shared(work) as two, shared(work) as three:
        for key in ("ada", "bob", "eve", "kim", "lea"):
            asks = [a.enqueue("q", n, dedupe=key) for n in range(5) for a in (one, two, three)]
            assert len(set(await asyncio.gather(*asks))) == 1
        assert await one.count_waiting("q") == 5
