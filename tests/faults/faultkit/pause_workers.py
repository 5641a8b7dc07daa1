"""The pause suite as a function: stop a worker process for three leases, then continue it, while the other works."""

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
from .fleet import Fleet, WorkerProcess
from .worker_flows import HANDLERS

LEASE_S = 0.5
MAX_ROUNDS = 4  # of all pauses, while no late commit was tried


class PauseReport(msgspec.Struct):
    """What happened, and the violations found."""

    pauses: int = 0
    jobs: int = 0
    completed: int = 0
    executions: int = 0
    late_fenced: int = 0  # commits of an attempt after a later attempt had started
    late_committed: int = 0
    seconds: float = 0.0
    violations: list[str] = []

    def __str__(self) -> str:
        return (
            f"{self.pauses} pauses of three leases, {self.jobs} jobs, {self.executions} executions, {self.completed} completed; "
            f"late commits: {self.late_fenced} fenced, {self.late_committed} accepted; {self.seconds:.0f} s"
        )


async def pause_workers(
    backend: Backend, folder: Path, *, pauses: int, jobs: int, seed: int, mutant: str | None = None
) -> PauseReport:
    """Run two workers; stop each in turn during a job, until the other has started that job again."""
    rng = random.Random(seed)
    started = time.monotonic()
    arguments = ("--queues", "held", *(("--mutant", mutant) if mutant else ()))
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        with Fleet(backend.url(folder), folder, lease=f"{LEASE_S}s", arguments=arguments) as fleet:
            feeder = _JobFeeder(app, fleet, jobs // pauses)
            for _ in range(2):
                fleet.start_worker()
            for worker in fleet.working:
                await feeder.wait_for_job(worker)
            done = 0
            # A worker that continues may notice its lost leases before its handlers end. Then it tries no late commit.
            while done < pauses or (done < MAX_ROUNDS * pauses and not _count_late(fleet, feeder.started())):
                await _pause(fleet.working[done % 2], feeder, rng)
                done += 1
            await _wait_until_drained(app, 30)
            await asyncio.sleep(LEASE_S)  # the worker that was stopped last has sent its commits
        ids = feeder.ids
        history = await read_history(app.store, effects=fleet.effects.read(), acknowledged=ids)
        counts = await app.queues.counts("held")
    late = _count_late(fleet, [(0, effect.job, effect.attempt) for effect in history.effects])
    return PauseReport(
        done, len(ids), counts["completed"], len(history.effects), late["fenced"], late["committed"],
        time.monotonic() - started, [str(violation) for violation in check(history)],
    )  # fmt: skip


def _count_late(fleet: Fleet, attempts: list[tuple[int, str, int]]) -> Counter[str]:
    """Count the receipts of attempts after which a later one of the same job had started, by their kind."""
    newest: Counter[str] = Counter()
    for _, job, attempt in attempts:
        newest[job] = max(newest[job], attempt)
    lines = [line.split() for line in fleet.receipts.read_text().splitlines()] if fleet.receipts.exists() else []
    return Counter(kind for _, job, attempt, kind in lines if int(attempt) < newest[job])


class _JobFeeder:
    """Adds jobs until a given worker is running one."""

    def __init__(self, app: App, fleet: Fleet, jobs: int) -> None:
        self._app = app
        self._fleet = fleet
        self._jobs = jobs
        self.ids: list[str] = []

    def started(self) -> list[tuple[int, str, int]]:
        """Return process, job and attempt of every started attempt."""
        lines = self._fleet.started.read_text().splitlines() if self._fleet.started.exists() else []
        return [(int(pid), job, int(attempt)) for pid, job, attempt in map(str.split, lines)]

    async def wait_for_job(self, worker: WorkerProcess) -> tuple[str, int]:
        """Return the job and attempt that this worker has just started."""
        before = len(self.started())

        def seen() -> list[tuple[str, int]]:
            return [(job, attempt) for pid, job, attempt in self.started()[before:] if pid == worker.pid]

        for _ in range(60):
            self.ids += await self._app.jobs.enqueue_many("held", [len(self.ids) + n for n in range(self._jobs)])
            with suppress(AssertionError):  # the other worker took all of them
                found: list[tuple[str, int]] = await until(seen, 1)
                return found[-1]
        raise AssertionError(f"worker {worker.pid} takes no jobs: {self._fleet.log.read_text()[-500:]}")


async def _pause(victim: WorkerProcess, feeder: _JobFeeder, rng: random.Random) -> None:
    job, attempt = await feeder.wait_for_job(victim)
    await asyncio.sleep(rng.uniform(0, 0.25))  # of the 0.4 s that the job takes
    victim.send(signal.SIGSTOP)
    await asyncio.sleep(3 * LEASE_S)
    # With a timeout: it may have recorded the job just before, or be stopped during a write to the file.
    with suppress(AssertionError):
        await until(lambda: any(again[1] == job and again[2] > attempt for again in feeder.started()), 5)
    victim.send(signal.SIGCONT)


async def _wait_until_drained(app: App, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        counts = await app.queues.counts("held")
        if not counts["waiting"] + counts["delayed"] + counts["active"]:
            return
        await asyncio.sleep(0.05)
