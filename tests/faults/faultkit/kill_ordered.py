"""Ordered jobs whose workers are killed: each key keeps its order, and no two of its jobs run at the same time."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec

from penstock import App, Event
from penstock.core.errors import WaitTimeout
from penstock.testing.until import until

from .backends import Backend
from .fleet import Fleet

KEYS = tuple(f"k{n}" for n in range(6))
TEST_TIMEOUT_S = 60


class OrderReport(msgspec.Struct):
    """What happened, and the problems found."""

    kills: int = 0
    jobs: int = 0
    attempts: int = 0
    executions: int = 0
    failures: int = 0  # attempts that failed and were retried
    orphaned: int = 0  # attempts whose worker died before they ended
    problems: list[str] = []

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.jobs} jobs of {len(KEYS)} keys, {self.attempts} attempts recorded, "
            f"{self.executions} executed, {self.failures} failed, {self.orphaned} orphaned, {len(self.problems)} problems"
        )


async def kill_ordered_workers(
    backend: Backend, folder: Path, *, jobs: int, kills: int, seed: int, mutant: str | None = None
) -> OrderReport:
    """Run two workers and kill one at a time, each after some jobs were executed since the last kill."""
    rng, report = random.Random(seed), OrderReport()
    added: dict[str, list[str]] = {key: [] for key in KEYS}
    arguments = ("--queues", "ordered", *(("--mutant", mutant) if mutant else ()))
    async with App(backend.url(folder), handlers=[]) as app:
        with Fleet(backend.url(folder), folder, spares=2, step_ms=80, arguments=arguments) as fleet:
            for _ in range(2):
                fleet.start_worker()
            for n in range(kills):
                for _ in range(jobs * n // kills, jobs * (n + 1) // kills):
                    key = rng.choice(KEYS)
                    delay = rng.choice((None, None, None, "100ms"))
                    added[key].append(await app.enqueue("ordered", report.jobs, order_key=key, delay=delay))
                    report.jobs += 1
                wanted = len(fleet.effects.read()) + rng.randint(2, 8)
                await until(lambda wanted=wanted: len(fleet.effects.read()) > wanted, TEST_TIMEOUT_S)
                await asyncio.to_thread(fleet.kill, fleet.working[0])  # the one that has worked longest
                report.kills += 1
                fleet.start_worker()
            for ids in added.values():
                report.problems += await _wait_for_last(app, ids)
        report.executions = len(fleet.effects.read())
        _check_stream(await app.events.read_all("nq:queue:ordered"), added, report)
        _check_executions([effect.job for effect in fleet.effects.read()], added, report)
    return report


async def _wait_for_last(app: App, ids: list[str]) -> list[str]:
    for id in ids:
        try:
            await app.jobs.result(id, timeout="30s")
        except WaitTimeout as problem:
            view = await app.jobs.get(id)
            return [f"{problem} (it is {view.state} and waits for {view.waits_for})"]
    return []


def _check_stream(events: list[Event], added: dict[str, list[str]], report: OrderReport) -> None:
    """Check that no attempt of a job started before the job before it had ended."""
    before = {id: ids[n - 1] if n else None for ids in added.values() for n, id in enumerate(ids)}
    ended: set[str | None] = {None}
    for event in events:
        id = event.subject or ""
        if event.kind == "job.active":
            report.attempts += 1
            if before[id] not in ended:
                report.problems.append(f"{id} started before {before[id]} had ended")
        elif event.kind == "job.failed":
            report.failures += 1
        elif event.kind == "job.completed":
            ended.add(id)
    report.orphaned = report.attempts - report.failures - len(ended) + 1


def _check_executions(executed: list[str], added: dict[str, list[str]], report: OrderReport) -> None:
    """Check that the first executions of each key are in the order in which its jobs were added."""
    firsts = list(dict.fromkeys(executed))
    for key, ids in added.items():
        mine = set(ids)
        if [id for id in firsts if id in mine] != ids:
            report.problems.append(f"the jobs of {key} were executed in another order than they were added")
