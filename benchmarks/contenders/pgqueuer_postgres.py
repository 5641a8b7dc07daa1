"""PgQueuer on Postgres: batches, LISTEN/NOTIFY, asyncpg."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version

import asyncpg
import uvloop
from entry import Case
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from tally import Tally, run_contender


def about() -> dict[str, str]:
    return {
        "name": "PgQueuer",
        "version": version("pgqueuer"),
        "settings": "asyncpg, uvloop, batches as large as the concurrency, at most two in progress, its "
        "minimum; finished jobs logged as installed",
    }


class Producer:
    def __init__(self, case: Case) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._runner.run(self._open(case.url))

    async def _open(self, url: str) -> None:
        self._queries = Queries(AsyncpgDriver(await asyncpg.connect(url)))
        await self._queries.install()

    def add(self, sent: Sequence[float]) -> None:
        payloads = [repr(one).encode() for one in sent]
        self._runner.run(self._queries.enqueue(["noop"] * len(sent), payloads, [0] * len(sent)))


def work(case: Case, tally: Tally) -> None:
    async def run() -> None:
        engine = PgQueuer.from_asyncpg_connection(await asyncpg.connect(case.url))

        @engine.entrypoint("noop")
        async def noop(job: Job) -> None:
            tally.hit(float(job.payload or b"0"))

        await engine.run(batch_size=case.level, max_concurrent_tasks=2 * case.level)

    uvloop.run(run())


run_contender(about, Producer, work)
