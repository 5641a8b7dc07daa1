"""Two worker processes on one store, none killed: no call may fail because the store is locked."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec

from penstock import App
from penstock.testing.history import check, read_history

from .backends import Backend
from .fleet import Fleet
from .worker_flows import FLOWS, HANDLERS, TRIGGERS


class RaceReport(msgspec.Struct):
    """What happened, and the violations found."""

    flows: int
    refusals: int  # store calls of workers that failed
    seconds: float
    violations: list[str]

    def __str__(self) -> str:
        return f"{self.flows} flows by two processes, {self.refusals} refusals, {self.seconds:.1f} s"


async def race_workers(backend: Backend, folder: Path, *, flows: int, mutant: str | None = None) -> RaceReport:
    """Run flows with two worker processes and read the history."""
    started = time.monotonic()
    arguments = ("--mutant", mutant) if mutant else ()
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        with Fleet(backend.url(folder), folder, lease="30s", arguments=arguments, step_ms=4) as fleet:
            for _ in range(2):
                fleet.start_worker()
            ids = await asyncio.gather(*(app.start(FLOWS[n % 3], {"n": n}) for n in range(flows)))
            deadline = time.monotonic() + 60
            while await app.runs.list(status="open", limit=1) and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
        history = await read_history(
            app.store, effects=fleet.effects.read(), acknowledged=ids, triggers=TRIGGERS, is_undisturbed=True
        )
    refusals = sum(map(fleet.count_logged, ("the store is unavailable", "cannot claim", "could not renew")))
    return RaceReport(len(ids), refusals, time.monotonic() - started, [str(violation) for violation in check(history)])
