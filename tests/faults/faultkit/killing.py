"""The kill suite as a function: flows under way, workers killed at random moments, then healing and judgement."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import msgspec

from penstock import App
from penstock.testing.history import Violation, check, read_history

from .backends import Backend
from .fleet import Fleet
from .trades import FLOWS, HANDLERS, TRIGGERS

MOST_OPEN = 300
LIVE = ("waiting", "delayed", "active", "suspended")


class Report(msgspec.Struct):
    """What happened, and what should not have."""

    kills: int = 0
    flows: int = 0
    steps: int = 0
    executions: int = 0
    orphaned: int = 0  # attempts whose worker died before they ended
    acknowledged: int = 0
    looks: int = 0  # how often the store was asked for loose runs while it went on
    seconds: float = 0.0
    healing: float = 0.0
    violations: list[str] = []

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.flows} flows ({self.acknowledged} acknowledged), {self.steps} attempts recorded, "
            f"{self.executions} executed, {self.orphaned} orphaned, {self.looks} looks for loose runs, {len(self.violations)} violations; "
            f"95 % bound: {3 / max(self.kills, 1):.2%} a kill, {3 / max(self.flows, 1):.3%} a flow; "
            f"{self.seconds:.0f} s, healed in {self.healing:.1f} s"
        )


async def kill_workers(
    backend: Backend, folder: Path, *, kills: int, flows: int, seed: int, mutant: str | None = None,
    heal_seconds: float = 60.0, stop_at_first: bool = False,
) -> Report:  # fmt: skip
    """Two workers on one store, one killed at a time, `flows` flows meanwhile."""
    rng = random.Random(seed)
    report = Report()
    began = time.monotonic()
    arguments = ("--starts", "2", *(("--mutant", mutant) if mutant else ()))
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        acknowledged: set[str] = set()
        with Fleet(backend.url(folder), folder, spares=2, arguments=arguments, step_ms=150) as fleet:
            for _ in range(2):
                fleet.hire()
            watch = asyncio.create_task(_watch(app, report))
            try:
                await _chaos(app, fleet, rng, report, acknowledged, kills, flows)
                healing = time.monotonic()
                healed = await _quiet(app, heal_seconds)
                report.healing = time.monotonic() - healing
                tail = [await app.start(FLOWS[n % 3], {"tail": n}) for n in range(5)]
                if healed:
                    await _quiet(app, 20)
            finally:
                watch.cancel()
                await asyncio.wait((watch,))
        acknowledged |= fleet.acknowledged() | set(tail)
        history = await read_history(
            app.store, effects=fleet.effects.read(), acknowledged=acknowledged, triggers=TRIGGERS
        )
        found = check(history)
        found += [
            Violation("tail", run, "a run begun after the healing is not complete")
            for run in tail
            if not await _complete(app, run)
        ]
        found += await _patches(app, history)
    report.violations += [str(violation) for violation in found]
    report.flows = len(history.runs)
    report.steps = sum(e.kind == "step.started" for run in history.runs for e in run.events)
    report.orphaned = report.steps - sum(
        e.kind in ("step.completed", "step.failed") for run in history.runs for e in run.events
    )
    report.executions = len(history.effects)
    report.acknowledged = len(acknowledged)
    report.seconds = time.monotonic() - began
    return report


async def _chaos(
    app: App, fleet: Fleet, rng: random.Random, report: Report, acknowledged: set[str], kills: int, flows: int
) -> None:
    for n in range(kills):
        for k in range(flows * n // kills, flows * (n + 1) // kills):
            acknowledged.add(await app.start(FLOWS[k % 3], {"n": k}, key=f"flow-{k}"))
        await asyncio.sleep(rng.random() * 0.35)
        victim = rng.choice(fleet.working)
        await asyncio.to_thread(fleet.kill, victim)
        report.kills += 1
        fleet.hire()
        if len(await app.store.runs(status="running", limit=MOST_OPEN)) == MOST_OPEN:
            await asyncio.sleep(0.3)  # let them catch up: healing is to be measured, not the backlog


async def _watch(app: App, report: Report) -> None:
    """At no moment is there an open run without a job or a wait: one look is one snapshot."""
    while True:
        loose = await app.store.stuck_runs()
        report.looks += 1
        if loose and len(report.violations) < 10:
            report.violations.append(f"loose: {loose[0]}: an open run with no job and no wait")
        await asyncio.sleep(0.05)


async def _quiet(app: App, seconds: float) -> bool:
    """Waits until nothing is under way; whether that came about."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        queues = [queue for queue in await app.store.queues() if not queue.name.endswith("-dlq")]
        busy = sum(queue.counts[state] for queue in queues for state in LIVE)
        if not busy and not await app.store.runs(status="running", limit=1):
            return True
        await asyncio.sleep(0.05)
    return False


async def _complete(app: App, run: str) -> bool:
    row = await app.store.run(run)
    return row is not None and row.status == "completed"


async def _patches(app: App, history: Any) -> list[Violation]:
    """Each flaky_2 counted itself once, however often it was killed."""
    done = sum(e.kind == "step.completed" and e.step == "flaky_2" for run in history.runs for e in run.events)
    total = await app.state.get("total", 0)
    return [] if total == done else [Violation("state", "total", f"is {total}, {done} steps added one each")]
