"""The pause suite as a function: workers stopped for three leases and continued, while jobs go on elsewhere."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock import App
from penstock.testing.history import check, read_history
from penstock.testing.until import until

from .backends import Backend
from .fleet import Fleet, Workman
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
    """Two workers; now one, now the other stands still in the middle of a job, until the other has begun that job anew."""
    rng = random.Random(seed)
    began = time.monotonic()
    arguments = ("--queues", "held", *(("--mutant", mutant) if mutant else ()))
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        with Fleet(backend.url(folder), folder, lease=f"{LEASE}s", arguments=arguments) as fleet:
            rounds = _Rounds(app, fleet, jobs // pauses)
            for _ in range(2):
                fleet.hire()
            for workman in fleet.working:
                await rounds.held_by(workman)
            for n in range(pauses):
                await _pause(fleet.working[n % 2], rounds, rng)
            await _drained(app, 30)
            await asyncio.sleep(LEASE)  # those that stood still last have had their say
        ids = rounds.ids
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


class _Rounds:
    """Jobs that are added until a worker is seen in the middle of one."""

    def __init__(self, app: App, fleet: Fleet, jobs: int) -> None:
        self._app = app
        self._fleet = fleet
        self._jobs = jobs
        self.ids: list[str] = []

    def begun(self) -> list[tuple[int, str, int]]:
        """Process, job and attempt of all that began."""
        lines = self._fleet.begun.read_text().splitlines() if self._fleet.begun.exists() else []
        return [(int(pid), job, int(attempt)) for pid, job, attempt in map(str.split, lines)]

    async def held_by(self, workman: Workman) -> tuple[str, int]:
        """The job and attempt that this one has just begun."""
        before = len(self.begun())

        def seen() -> list[tuple[str, int]]:
            return [(job, attempt) for pid, job, attempt in self.begun()[before:] if pid == workman.pid]

        for _ in range(60):
            self.ids += await self._app.jobs.enqueue_many("held", [len(self.ids) + n for n in range(self._jobs)])
            with suppress(AssertionError):  # the other one had them all
                found: list[tuple[str, int]] = await until(seen, 1)
                return found[-1]
        raise AssertionError(f"worker {workman.pid} takes no jobs: {self._fleet.log.read_text()[-500:]}")


async def _pause(victim: Workman, rounds: _Rounds, rng: random.Random) -> None:
    job, attempt = await rounds.held_by(victim)
    await asyncio.sleep(rng.uniform(0, 0.25))  # of the 0.4 s that the job takes
    victim.send(signal.SIGSTOP)
    await asyncio.sleep(3 * LEASE)
    # Not for ever: it may have recorded the job just before, or stand still in the middle of a write to the file.
    with suppress(AssertionError):
        await until(lambda: any(again[1] == job and again[2] > attempt for again in rounds.begun()), 5)
    victim.send(signal.SIGCONT)


async def _drained(app: App, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        counts = await app.queues.counts("held")
        if not counts["waiting"] + counts["delayed"] + counts["active"]:
            return
        await asyncio.sleep(0.05)
