"""The poison suite as a function: one job kills whoever runs it, others only want to be done."""

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
from .trades import HANDLERS

PATIENT = 8  # of the good ones: they take longer than the poison takes to come round again


class Report(msgspec.Struct):
    goods: int
    completed: int = 0  # of the good ones
    executions: int = 0  # of the poison
    letter: str = ""  # the code on its dead letter
    seconds: float = 0.0
    violations: list[str] = []

    def __str__(self) -> str:
        return (
            f"the poison ran {self.executions} times and is dead as {self.letter or 'nothing'}, "
            f"{self.completed} of {self.goods} good ones done, {self.seconds:.1f} s"
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
) -> Report:
    """Workers, each replaced when it dies. The good jobs take long enough to be running when it does."""
    report = Report(goods)
    arguments = ("--mutant", mutant) if mutant else ()
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        ids = [await app.enqueue("poison", {"n": 0}, key="bad")]
        ids += await app.jobs.enqueue_many("patient", [{"n": n} for n in range(PATIENT)])
        ids += await app.jobs.enqueue_many("good", [{"n": n} for n in range(goods - PATIENT)])
        began = time.monotonic()
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
                fleet.hire()
            while await _under_way(app, ids) and time.monotonic() - began < seconds:
                _replace_the_dead(fleet)
                await asyncio.sleep(0.05)
        history = await read_history(app.store, effects=fleet.effects.read(), acknowledged=ids)
        report.completed = sum([(await app.queues.counts(queue))["completed"] for queue in ("good", "patient")])
        report.executions = sum(effect.job == "bad" for effect in history.effects)
        report.letter = ",".join(letter.error["code"] for _, letter in await app.dead_letters.list("poison"))
        report.seconds = time.monotonic() - began
        report.violations = [str(violation) for violation in check(history)]
    return report


def _replace_the_dead(fleet: Fleet) -> None:
    for workman in list(fleet.working):
        if not workman.alive:
            fleet.kill(workman)
            fleet.hire()


async def _under_way(app: App, ids: list[str]) -> bool:
    for queue in ("good", "patient", "poison"):
        counts = await app.queues.counts(queue)
        if sum(counts[state] for state in (JobState.WAITING, JobState.DELAYED, JobState.ACTIVE)):
            return True
    return False
