"""The poison suite as a function: one job kills every worker that runs it, and the others must still complete."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec

from penstock import App
from penstock.ports.unit import JobState
from penstock.testing.history import check, read_history

from .backends import Backend
from .fleet import Fleet
from .worker_flows import HANDLERS

SLOW_JOBS = 8  # of the good jobs: they take longer than the poison job needs to run again


class PoisonReport(msgspec.Struct):
    """What happened, and the violations found."""

    goods: int
    completed: int = 0  # good jobs
    executions: int = 0  # of the poison job
    letter: str = ""  # the error code of its dead letter
    seconds: float = 0.0
    violations: list[str] = []

    def __str__(self) -> str:
        return (
            f"the poison job ran {self.executions} times, its dead letter has the code {self.letter or 'none'}, "
            f"{self.completed} of {self.goods} good jobs completed, {self.seconds:.1f} s"
        )


async def poison_workers(
    backend: Backend,
    folder: Path,
    *,
    goods: int,
    max_crashes: int,
    workers: int = 2,
    mutant: str | None = None,
    seconds: float = 60,
) -> PoisonReport:
    """Run workers and replace each that dies. The good jobs take long enough to be active when one does."""
    report = PoisonReport(goods)
    arguments = ("--mutant", mutant) if mutant else ()
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        ids = [await app.enqueue("poison", {"n": 0}, key="bad")]
        ids += await app.jobs.enqueue_many("slow", [{"n": n} for n in range(SLOW_JOBS)])
        ids += await app.jobs.enqueue_many("good", [{"n": n} for n in range(goods - SLOW_JOBS)])
        started = time.monotonic()
        with Fleet(
            backend.url(folder),
            folder,
            lease="500ms",
            max_crashes=max_crashes,
            spares=1,
            arguments=arguments,
            step_ms=200,
        ) as fleet:
            for _ in range(workers):
                fleet.start_worker()
            while await _has_live_jobs(app) and time.monotonic() - started < seconds:
                if _count_executions(fleet) > 2 * (max_crashes + 1):
                    break  # it is not given up: a mutant
                _replace_dead_workers(fleet)
                await asyncio.sleep(0.05)
        history = await read_history(app.store, effects=fleet.effects.read(), acknowledged=ids)
        report.completed = sum([(await app.queues.counts(queue))["completed"] for queue in ("good", "slow")])
        report.executions = _count_executions(fleet)
        report.letter = ",".join(letter.error["code"] for _, letter in await app.dead_letters.list("poison"))
        report.seconds = time.monotonic() - started
        report.violations = [str(violation) for violation in check(history)]
    return report


def _count_executions(fleet: Fleet) -> int:
    return sum(effect.job == "bad" for effect in fleet.effects.read())


def _replace_dead_workers(fleet: Fleet) -> None:
    for worker in list(fleet.working):
        if not worker.is_alive:
            fleet.kill(worker)
            fleet.start_worker()


async def _has_live_jobs(app: App) -> bool:
    for queue in ("good", "slow", "poison"):
        counts = await app.queues.counts(queue)
        if sum(counts[state] for state in (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE)):
            return True
    return False
