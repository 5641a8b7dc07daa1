"""taskiq on Redis streams: the broker of taskiq-redis that acknowledges, with its result backend."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version

import uvloop
from entry import Case
from tally import Tally, run_contender
from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

CHUNK = 100


def about() -> dict[str, str]:
    return {
        "name": "taskiq",
        "version": version("taskiq"),
        "settings": f"RedisStreamBroker of taskiq-redis {version('taskiq-redis')}, results kept, uvloop and hiredis, "
        "max_async_tasks as the concurrency",
    }


def broker(url: str, tally: Tally | None = None) -> RedisStreamBroker:
    one = RedisStreamBroker(url).with_result_backend(RedisAsyncResultBackend(url))

    @one.task(task_name="noop")
    async def noop(sent: float) -> float:
        if tally is not None:
            tally.hit(sent)
        return sent

    return one


class Producer:
    def __init__(self, case: Case) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._broker = broker(case.url)
        self._runner.run(self._broker.startup())

    def add(self, sent: Sequence[float]) -> None:
        self._runner.run(self._add(sent))

    async def _add(self, sent: Sequence[float]) -> None:
        task = self._broker.find_task("noop")
        for start in range(0, len(sent), CHUNK):
            await asyncio.gather(*(task.kiq(one) for one in sent[start : start + CHUNK]))


def work(case: Case, tally: Tally) -> None:
    async def run() -> None:
        one = broker(case.url, tally)
        one.is_worker_process = True
        await run_receiver_task(one, max_async_tasks=case.level, run_startup=True)

    uvloop.run(run())


run_contender(about, Producer, work)
