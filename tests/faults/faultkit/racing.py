"""Two processes on one file, nobody killed: nobody may be told that the file is locked."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec

from penstock import App
from penstock.testing.history import check, read_history

from .backends import Backend
from .fleet import Fleet
from .trades import FLOWS, HANDLERS, TRIGGERS


class Report(msgspec.Struct):
    flows: int
    refusals: int  # times a worker was told that the store does not answer
    seconds: float
    violations: list[str]

    def __str__(self) -> str:
        return f"{self.flows} flows by two processes, {self.refusals} refusals, {self.seconds:.1f} s"


async def race_workers(backend: Backend, folder: Path, *, flows: int, mutant: str | None = None) -> Report:
    began = time.monotonic()
    arguments = ("--mutant", mutant) if mutant else ()
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        with Fleet(backend.url(folder), folder, lease="30s", arguments=arguments, step_ms=4) as fleet:
            for _ in range(2):
                fleet.hire()
            ids = await asyncio.gather(*(app.start(FLOWS[n % 3], {"n": n}) for n in range(flows)))
            deadline = time.monotonic() + 60
            while await app.store.runs(status="running", limit=1) and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
        history = await read_history(
            app.store, effects=fleet.effects.read(), acknowledged=ids, triggers=TRIGGERS, is_undisturbed=True
        )
    refusals = fleet.logged("the store is unavailable") + fleet.logged("cannot claim") + fleet.logged("could not renew")
    return Report(len(ids), refusals, time.monotonic() - began, [str(violation) for violation in check(history)])
