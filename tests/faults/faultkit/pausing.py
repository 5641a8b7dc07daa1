"""The pause suite as a function: workers stopped for three leases and continued, while jobs go on elsewhere."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from pathlib import Path

import msgspec

from penstock import App
from penstock.testing.history import check, read_history

from .backends import Backend
from .fleet import Fleet
from .trades import HANDLERS

LEASE = 0.5


class Report(msgspec.Struct):
    pauses: int = 0
    jobs: int = 0
    completed: int = 0
    executions: int = 0
    late_fenced: int = 0  # ends of attempts that were sent after another attempt had begun
    late_committed: int = 0
    seconds: float = 0.0
    violations: list[str] = []

    def __str__(self) -> str:
        return (
            f"{self.pauses} pauses of three leases, {self.jobs} jobs, {self.executions} executions, {self.completed} completed; "
            f"late commits: {self.late_fenced} refused, {self.late_committed} taken; {self.seconds:.0f} s"
        )


async def pause_workers(
    backend: Backend, folder: Path, *, pauses: int, jobs: int, seed: int, mutant: str | None = None
) -> Report:
    """Two workers; now one, now the other stands still for three leases."""
    rng = random.Random(seed)
    began = time.monotonic()
    arguments = ("--queues", "held", *(("--mutant", mutant) if mutant else ()))
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        with Fleet(backend.url(folder), folder, lease=f"{LEASE}s", arguments=arguments) as fleet:
            for _ in range(2):
                fleet.hire()
            ids: list[str] = []
            for n in range(pauses):
                ids += await app.enqueue_many("held", list(range(jobs * n // pauses, jobs * (n + 1) // pauses)))
                victim = fleet.working[n % 2]
                await asyncio.sleep(rng.uniform(0.05, 0.35))
                victim.send(signal.SIGSTOP)
                await asyncio.sleep(3 * LEASE)
                victim.send(signal.SIGCONT)
            await _drained(app, 30)
            await asyncio.sleep(LEASE)  # those that stood still last have had their say
        history = await read_history(app.store, effects=fleet.effects.read(), acknowledged=ids)
        counts = await app.queues.counts("held")
    newest: Counter[str] = Counter()
    for effect in history.effects:
        newest[effect.job] = max(newest[effect.job], effect.attempt)
    lines = [line.split() for line in fleet.receipts.read_text().splitlines()]
    late = Counter(kind for _, job, attempt, kind in lines if int(attempt) < newest[job])
    return Report(
        pauses, len(ids), counts["completed"], len(history.effects), late["fenced"], late["committed"],
        time.monotonic() - began, [str(violation) for violation in check(history)],
    )  # fmt: skip


async def _drained(app: App, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        counts = await app.queues.counts("held")
        if not counts["waiting"] + counts["delayed"] + counts["active"]:
            return
        await asyncio.sleep(0.05)
