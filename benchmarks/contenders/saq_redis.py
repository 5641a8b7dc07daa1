"""SAQ on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import uvloop
from entry import Case
from saq import Queue, Worker
from tally import Tally, run_contender

CHUNK = 100


def about() -> dict[str, str]:
    return {
        "name": "SAQ",
        "version": version("saq"),
        "settings": "as installed (results kept for 10 minutes), uvloop and hiredis",
    }


class Producer:
    def __init__(self, case: Case) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.run(self._open(case.url))

    async def _open(self, url: str) -> None:
        self._queue = Queue.from_url(url)
        await self._queue.connect()

    def add(self, sent: Sequence[float]) -> None:
        self._runner.run(self._add(sent))

    async def _add(self, sent: Sequence[float]) -> None:
        for start in range(0, len(sent), CHUNK):
            await asyncio.gather(*(self._queue.enqueue("noop", sent=one) for one in sent[start : start + CHUNK]))


def work(case: Case, tally: Tally) -> None:
    async def noop(ctx: Any, *, sent: float) -> float:
        tally.hit(sent)
        return sent

    async def run() -> None:
        queue = Queue.from_url(case.url)
        await Worker(queue, functions=[("noop", noop)], concurrency=case.level).start()

    uvloop.run(run())


run_contender(about, Producer, work)
