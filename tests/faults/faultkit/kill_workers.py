"""The kill suite as a function: kill workers at random moments while flows run, let it recover, check the history."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from penstock import App
from penstock.core.errors import WaitTimeout
from penstock.testing.history import Violation, check, read_history

from .backends import Backend
from .fleet import Fleet
from .worker_flows import FLOWS, HANDLERS, TRIGGERS

MAX_OPEN_RUNS = 300
MAX_PROBES = 20  # runs that may overtake an open one before it counts as stuck
PROBE_TIMEOUT_S = 300.0  # the workers do nothing at all
LIVE = ("waiting", "delayed", "active", "suspended")


class KillReport(msgspec.Struct):
    """What happened, and the violations found."""

    kills: int = 0
    flows: int = 0
    steps: int = 0
    executions: int = 0
    orphaned: int = 0  # attempts whose worker died before they ended
    probes: int = 0  # runs started to find out whether open ones are stuck or only slow
    acknowledged: int = 0
    stuck_checks: int = 0  # how often the store was asked for stuck runs meanwhile
    seconds: float = 0.0
    recovery_s: float = 0.0
    violations: list[str] = []

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.flows} flows ({self.acknowledged} acknowledged), {self.steps} attempts recorded, "
            f"{self.executions} executed, {self.orphaned} orphaned, {self.stuck_checks} checks for stuck runs, "
            f"{len(self.violations)} violations; "
            f"95 % bound: {3 / max(self.kills, 1):.2%} per kill, {3 / max(self.flows, 1):.3%} per flow; "
            f"{self.seconds:.0f} s, recovered in {self.recovery_s:.1f} s"
        )


async def kill_workers(
    backend: Backend, folder: Path, *, kills: int, flows: int, seed: int, mutant: str | None = None,
    recovery_timeout_s: float = 60.0,
) -> KillReport:  # fmt: skip
    """Run two workers and `flows` flows, and kill one worker at a time."""
    rng = random.Random(seed)
    report = KillReport()
    started = time.monotonic()
    arguments = ("--starts", "2", *(("--mutant", mutant) if mutant else ()))
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        acknowledged: set[str] = set()
        with Fleet(backend.url(folder), folder, spares=2, arguments=arguments, step_ms=150) as fleet:
            for _ in range(2):
                fleet.start_worker()
            watcher = asyncio.create_task(_watch_for_stuck_runs(app, report))
            try:
                await _start_and_kill(app, fleet, rng, report, acknowledged, kills, flows)
                killed = time.monotonic()
                has_recovered = await _wait_until_idle(app, report, recovery_timeout_s)
                report.recovery_s = time.monotonic() - killed
                tail = [await app.start(FLOWS[n % 3], {"tail": n}) for n in range(5)]
                if has_recovered:
                    await _wait_until_idle(app, report, min(recovery_timeout_s, 20))
            finally:
                watcher.cancel()
                await asyncio.wait((watcher,))
        acknowledged |= fleet.acknowledged() | set(tail)
        history = await read_history(
            app.store, effects=fleet.effects.read(), acknowledged=acknowledged, triggers=TRIGGERS
        )
        found = check(history)
        found += [
            Violation("tail", run, "a run started after the recovery has not completed")
            for run in tail
            if not await _is_completed(app, run)
        ]
        found += await _check_patches(app, history)
    report.violations += [str(violation) for violation in found]
    report.flows = len(history.runs)
    report.steps = sum(e.kind == "step.started" for run in history.runs for e in run.events)
    report.orphaned = report.steps - sum(
        e.kind in ("step.completed", "step.failed") for run in history.runs for e in run.events
    )
    report.executions = len(history.effects)
    report.acknowledged = len(acknowledged)
    report.seconds = time.monotonic() - started
    return report


async def _start_and_kill(
    app: App, fleet: Fleet, rng: random.Random, report: KillReport, acknowledged: set[str], kills: int, flows: int
) -> None:
    for n in range(kills):
        for k in range(flows * n // kills, flows * (n + 1) // kills):
            acknowledged.add(await app.start(FLOWS[k % 3], {"n": k}, key=f"flow-{k}"))
        await asyncio.sleep(rng.random() * 0.35)
        victim = rng.choice(fleet.working)
        await asyncio.to_thread(fleet.kill, victim)
        report.kills += 1
        fleet.start_worker()
        # Let the workers catch up: the test measures the recovery, not the backlog of a busy machine.
        await wait_for_progress(lambda: _count_open(app), below=MAX_OPEN_RUNS, seconds=60.0)


async def _watch_for_stuck_runs(app: App, report: KillReport) -> None:
    """Check again and again that no open run is without a job and a wait. Each call reads one snapshot."""
    while True:
        stuck = await app.store.stuck_runs()
        report.stuck_checks += 1
        if stuck and len(report.violations) < 10:
            report.violations.append(f"stuck: {stuck[0]}: an open run with no job and no wait")
        await asyncio.sleep(0.05)


async def _wait_until_idle(app: App, report: KillReport, seconds: float) -> bool:
    """Wait until no job is left and no run is open; return whether that happened.

    Without progress for so many seconds, work may be stuck or only slow: the machine is busy, a process was not
    scheduled. Time cannot tell these apart, so new runs are started. Queues are in order: workers that end a new run and
    leave an old one, again and again, will never end it.
    """
    least, probes = None, 0
    while not await wait_for_progress(lambda: _count_live(app), below=1, seconds=0 if probes else seconds):
        now = await _count_live(app)
        if least is None or now < least:
            least, probes = now, 0
        if probes == MAX_PROBES or not await _run_probe(app, report):
            return False
        probes += 1
    return True


async def _run_probe(app: App, report: KillReport) -> bool:
    """Start a run and wait for its end; return whether it has ended."""
    report.probes += 1
    run = await app.start(FLOWS[0], {"probe": report.probes})
    try:
        await app.runs.wait(run, timeout=PROBE_TIMEOUT_S)
    except WaitTimeout:
        return False
    return True


async def wait_for_progress(count: Callable[[], Awaitable[int]], *, below: int, seconds: float) -> bool:
    """Wait until a count is below a number. Give up, and return False, when it has not fallen for so many seconds: work
    that is only slow would be reported as stuck runs."""
    least, deadline = None, time.monotonic() + seconds
    while (now := await count()) >= below:
        if least is None or now < least:
            least, deadline = now, time.monotonic() + seconds
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


async def _count_open(app: App) -> int:
    return len(await app.runs.list(status="open", limit=2 * MAX_OPEN_RUNS))


async def _count_live(app: App) -> int:
    queues = [queue for queue in await app.store.queues() if not queue.name.endswith("-dlq")]
    return sum(queue.counts[state] for queue in queues for state in LIVE) + await _count_open(app)


async def _is_completed(app: App, run: str) -> bool:
    row = await app.store.run(run)
    return row is not None and row.status == "completed"


async def _check_patches(app: App, history: Any) -> list[Violation]:
    """Check that each flaky_2 counted itself once, however often it was killed."""
    done = sum(e.kind == "step.completed" and e.step == "flaky_2" for run in history.runs for e in run.events)
    total = await app.state.get("total", 0)
    return [] if total == done else [Violation("state", "total", f"is {total}, but {done} steps added one each")]
