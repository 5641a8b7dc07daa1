"""Absurd on Postgres: tasks and steps in stored procedures, with polling."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import absurdctl
import psycopg
import uvloop
from absurd_sdk import AsyncAbsurd
from entry import Case
from tally import Tally, run_contender

POLL = 0.01  # seconds; installed: 0.25


def about() -> dict[str, str]:
    return {
        "name": "Absurd",
        "version": version("absurd-sdk"),
        "settings": f"AsyncAbsurd, uvloop, polling every {POLL * 1000:.0f} ms instead of 250; one call per spawn",
    }


class Producer:
    def __init__(self, case: Case) -> None:
        with psycopg.connect(case.url, autocommit=True) as connection:
            connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
            connection.execute("SELECT absurd.create_queue('noop')")
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._absurd = AsyncAbsurd(case.url, queue_name="noop")

    def add(self, sent: Sequence[float]) -> None:
        self._runner.run(self._add(sent))

    async def _add(self, sent: Sequence[float]) -> None:
        for one in sent:
            await self._absurd.spawn("noop", {"sent": one}, queue="noop")


def work(case: Case, tally: Tally) -> None:
    async def run() -> None:
        absurd = AsyncAbsurd(case.url, queue_name="noop")

        @absurd.register_task("noop", queue="noop")
        async def noop(params: Any, ctx: Any) -> float:
            tally.hit(params["sent"])
            return float(params["sent"])

        await absurd.workers.start(concurrency=case.level, poll_interval=POLL)

    uvloop.run(run())


run_contender(about, Producer, work)
