"""streaq on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version

import uvloop
from coredis import Redis
from entry import Case
from streaq import Worker
from tally import Tally, run_contender


def about() -> dict[str, str]:
    return {
        "name": "streaq",
        "version": version("streaq"),
        "settings": "as installed (results kept for 5 minutes), uvloop; jobs added by enqueue_many",
    }


def engine(case: Case, tally: Tally | None = None) -> Worker:
    worker = Worker(redis_url=case.url, concurrency=case.level, handle_signals=False)

    @worker.task(name="noop")
    async def noop(sent: float) -> float:
        if tally is not None:
            tally.hit(sent)
        return sent

    worker.noop = noop
    return worker


async def _check(url: str) -> None:
    client = Redis.from_url(url)
    async with client:
        server = str((await client.info("server"))["redis_version"])
    if int(server.partition(".")[0]) < 7:
        raise SystemExit(f"streaq needs Redis 7 or newer (it uses functions), this one is {server}")


class Producer:
    def __init__(self, case: Case) -> None:
        self._case = case
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.run(_check(case.url))

    def add(self, sent: Sequence[float]) -> None:
        self._runner.run(self._add(sent))

    async def _add(self, sent: Sequence[float]) -> None:
        async with engine(self._case) as worker:
            await worker.enqueue_many([worker.noop.enqueue(one) for one in sent])


def work(case: Case, tally: Tally) -> None:
    async def run() -> None:
        await engine(case, tally).run_async()

    uvloop.run(run())


run_contender(about, Producer, work)
