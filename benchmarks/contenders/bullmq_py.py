"""BullMQ for Python: the package's Queue and Worker, on Redis or Postgres depending on the URL."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import uvloop
from bullmq import Queue, Worker
from entry import Case
from tally import Tally, run_contender

CHUNK = 500


def about() -> dict[str, str]:
    return {
        "name": "bullmq (Python)",
        "version": version("bullmq"),
        "settings": "its own Worker, finished jobs kept, uvloop and hiredis, no socket timeout; jobs added by addBulk",
    }


def options(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme.startswith("postgres"):
        return {"backend": "postgres", "connection": url}
    # With redis-py's own timeout of 5 s an idle worker misses its wake-ups.
    return {"connection": {"host": parts.hostname, "port": parts.port, "db": 0, "socket_timeout": None}}


class Producer:
    def __init__(self, case: Case) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.run(self._open(case.url))

    async def _open(self, url: str) -> None:
        self._queue = Queue("noop", options(url))

    def add(self, sent: Sequence[float]) -> None:
        self._runner.run(self._add(sent))

    async def _add(self, sent: Sequence[float]) -> None:
        for start in range(0, len(sent), CHUNK):
            await self._queue.addBulk([{"name": "noop", "data": {"sent": one}} for one in sent[start : start + CHUNK]])


def work(case: Case, tally: Tally) -> None:
    async def noop(job: Any, token: str) -> float:
        tally.hit(job.data["sent"])
        return float(job.data["sent"])

    async def run() -> None:
        Worker("noop", noop, {**options(case.url), "concurrency": case.level})
        await asyncio.Event().wait()

    uvloop.run(run())


run_contender(about, Producer, work)
