"""arq on Redis. It polls for jobs every 500 ms by default, which would hide everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import uvloop
from arq import Worker, create_pool, func
from arq.connections import RedisSettings
from entry import Case
from tally import Tally, run_contender

CHUNK = 100
POLL = 0.01


def about() -> dict[str, str]:
    return {
        "name": "arq",
        "version": version("arq"),
        "settings": f"results kept for an hour as installed, poll_delay {POLL * 1000:.0f} ms instead of 500, "
        "uvloop and hiredis",
    }


class Producer:
    def __init__(self, case: Case) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._pool = self._runner.run(create_pool(RedisSettings.from_dsn(case.url)))

    def add(self, sent: Sequence[float]) -> None:
        self._runner.run(self._add(sent))

    async def _add(self, sent: Sequence[float]) -> None:
        for start in range(0, len(sent), CHUNK):
            await asyncio.gather(*(self._pool.enqueue_job("noop", one) for one in sent[start : start + CHUNK]))


def work(case: Case, tally: Tally) -> None:
    async def noop(ctx: Any, sent: float) -> float:
        tally.hit(sent)
        return sent

    async def run() -> None:
        worker = Worker(
            functions=[func(noop, name="noop")],
            redis_settings=RedisSettings.from_dsn(case.url),
            max_jobs=case.level,
            poll_delay=POLL,
            handle_signals=False,
        )
        await worker.async_run()

    uvloop.run(run())


run_contender(about, Producer, work)
