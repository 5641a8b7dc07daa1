"""Procrastinate on Postgres: LISTEN/NOTIFY, psycopg."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version

import uvloop
from entry import Case
from procrastinate import App, PsycopgConnector
from tally import Tally, run_contender

CHUNK = 1000


def about() -> dict[str, str]:
    return {
        "name": "Procrastinate",
        "version": version("procrastinate"),
        "settings": "as installed (finished jobs kept, LISTEN/NOTIFY), uvloop; jobs added by batch_defer",
    }


def engine(url: str, tally: Tally | None = None) -> App:
    app = App(connector=PsycopgConnector(conninfo=url))

    @app.task(name="noop")
    async def noop(sent: float) -> float:
        if tally is not None:
            tally.hit(sent)
        return sent

    return app


class Producer:
    def __init__(self, case: Case) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._app = engine(case.url)
        self._runner.run(self._open())

    async def _open(self) -> None:
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()

    def add(self, sent: Sequence[float]) -> None:
        self._runner.run(self._add(sent))

    async def _add(self, sent: Sequence[float]) -> None:
        task = self._app.tasks["noop"]
        for start in range(0, len(sent), CHUNK):
            await task.batch_defer_async(*({"sent": one} for one in sent[start : start + CHUNK]))


def work(case: Case, tally: Tally) -> None:
    async def run() -> None:
        app = engine(case.url, tally)
        async with app.open_async():
            await app.run_worker_async(concurrency=case.level, install_signal_handlers=False)

    uvloop.run(run())


run_contender(about, Producer, work)
