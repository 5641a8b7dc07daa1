"""Timers under a clock that a test moves: due while no worker runs, or while the clock jumps forward and back.

As a separate process, for mutants: `python -m faultkit.timers down|jumps --timers 300 [--mutant name]`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from penstock import App, flow, job
from penstock.core.errors import AwaitTimeout
from penstock.ports.unit import JobState
from penstock.testing import until
from penstock.testing.clock import START_MS, FakeClock
from penstock.testing.history import check, read_history

from .backends import SQLITE_FILE, Backend

HOUR_MS = 3_600_000
SLOT_INTERVAL_S = 600


class TimerReport(msgspec.Struct):
    """What happened, and the problems found."""

    timers: int
    jumps: int = 0
    woken: int = 0
    slots: int = 0
    problems: list[str] = []

    def __str__(self) -> str:
        return f"{self.timers} timers, {self.woken} woken, {self.jumps} jumps, {self.slots} slots of a schedule"


class _TimerFlows:
    """Flows that record when they wake, by the clock of the store."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.woken: Counter[str] = Counter()
        self.early: list[str] = []
        clock_now = clock.now_ms

        @flow("nap", emits=[])
        async def nap(x: Any, ctx: Any) -> str:
            await ctx.wait.time(datetime.fromtimestamp(x["until"] / 1000, UTC))
            self._record(ctx, x["until"])
            return "rested"

        @flow("late", emits=[])
        async def late(x: Any, ctx: Any) -> str:
            started = await ctx.run("started", clock_now)
            try:
                await ctx.wait.event("never", timeout=x["timeout"])
            except AwaitTimeout:
                self._record(ctx, started + x["timeout"] * 1000)
            return "late"

        @job(queue="slots")
        async def slot(ctx: Any) -> None: ...

        self.handlers = [nap, late, slot]

    def _record(self, ctx: Any, due: int) -> None:
        self.woken[ctx.run_id] += 1
        if self.clock.now_ms() < due:
            self.early.append(f"{ctx.run_id} woke {due - self.clock.now_ms()} ms too early")


async def fire_after_downtime(backend: Backend, folder: Path, *, timers: int, timeout: float = 300) -> TimerReport:
    """Set timers within an hour; the first quarter comes due while a worker runs, the rest while none does."""
    report, clock = TimerReport(timers), FakeClock()
    flows = _TimerFlows(clock)
    rng = random.Random(5)
    dues = [START_MS + rng.randrange(60_000, HOUR_MS) for _ in range(timers)]
    async with App(backend.url(folder), handlers=flows.handlers, clock=clock) as app:
        async with app.workers.background(concurrency=100):
            runs = [await app.start("nap", {"until": due}) for due in dues]
            await until(lambda: _are_suspended(app, timers), timeout=timeout)
            clock.advance(HOUR_MS // 4000)
            await _wait_until_idle(app, timeout)
            _compare(report, flows, {run: due <= clock.now_ms() for run, due in zip(runs, dues, strict=True)})
        clock.advance(HOUR_MS // 1000)
        async with app.workers.background(concurrency=100):
            await until(lambda: _has_ended(app), timeout=timeout)
        await _check_timers(report, flows, app, runs)
    return report


async def jump_clock(
    backend: Backend, folder: Path, *, timers: int, seed: int = 3, timeout: float = 300
) -> TimerReport:
    """Move the clock by an hour or less, forward and back, until everything has ended."""
    report, clock = TimerReport(timers), FakeClock()
    flows = _TimerFlows(clock)
    rng = random.Random(seed)
    async with App(backend.url(folder), handlers=flows.handlers, clock=clock) as app:
        async with app.workers.background(concurrency=100):
            await app.schedules.add("slots", queue="slots", every=SLOT_INTERVAL_S, catch_up="all")
            runs = []
            for n in range(timers):
                span = rng.randrange(60, 3 * 3600)
                input = {"until": clock.now_ms() + span * 1000, "timeout": span}
                runs.append(await app.start(("nap", "late")[n % 2], input))
            await until(lambda: _are_suspended(app, timers), timeout=timeout)
            for by in [*(rng.choice((3600, -3600, 900, 1800)) for _ in range(12)), 3600, -3600, *[3600] * 8]:
                clock.set_ms(clock.now_ms() + by * 1000)
                report.jumps += 1
                await _wait_until_idle(app, timeout)
        await _check_timers(report, flows, app, runs)
        await _check_slots(app, report)
    return report


async def _are_suspended(app: App, count: int) -> bool:
    rows = [queue.counts for queue in await app.store.queues() if queue.name == "default"]
    return sum(counts["delayed"] + counts["suspended"] for counts in rows) == count


async def _has_ended(app: App) -> bool:
    return not await app.runs.list(status="open", limit=1)


async def _wait_until_idle(app: App, timeout: float) -> None:
    """Wait until everything that is due now has been done."""
    app.store.signals.notify_all()
    await until(lambda: _is_idle(app), timeout=timeout)


async def _is_idle(app: App) -> bool:
    if (await app.store.due_schedules(limit=1)).rows:
        return False
    # Due jobs first, then active ones: the other way round would miss a job that is claimed in between.
    for queue in await app.store.queues():
        if any(row.due <= app.clock.now_ms() for row in await app.store.jobs(queue.name, JobState.DELAYED, limit=1)):
            return False
    return not any(queue.counts["waiting"] or queue.counts["active"] for queue in await app.store.queues())


def _compare(report: TimerReport, flows: _TimerFlows, due: dict[str, bool]) -> None:
    wrong = [run for run, is_due in due.items() if is_due != bool(flows.woken[run])]
    if wrong:
        report.problems.append(f"{len(wrong)} timers woke early or not at all, for example {wrong[0]}")


async def _check_timers(report: TimerReport, flows: _TimerFlows, app: App, runs: list[str]) -> None:
    report.woken = sum(flows.woken.values())
    report.problems += flows.early[:5]
    _compare(report, flows, dict.fromkeys(runs, True))
    twice = [run for run, times in flows.woken.items() if times > 1]
    if twice:
        report.problems.append(f"{len(twice)} timers woke twice, for example {twice[0]}")
    history = await read_history(app.store, acknowledged=runs)
    report.problems += [str(violation) for violation in check(history)][:5]


async def _check_slots(app: App, report: TimerReport) -> None:
    """Check that each slot fired once and not before its time, by the clock that stamped the event."""
    fired: list[tuple[int, int]] = []
    for event in await app.events.read_all("nq:queue:slots"):
        if event.kind == "job.added":
            fired.append((int(event.subject.removeprefix("slots.")), int(event.id.partition("-")[0])))
    slots = [slot for slot, _ in fired]
    report.slots = len(slots)
    if len(slots) != len(set(slots)):
        report.problems.append("a slot fired twice")
    if any(at < slot for slot, at in fired):
        report.problems.append("a slot fired before its time")
    if sorted(slots) != list(range(min(slots), max(slots) + 1, SLOT_INTERVAL_S * 1000)):
        report.problems.append("a slot did not fire")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("down", "jumps"))
    parser.add_argument("--timers", type=int, default=200)
    parser.add_argument("--mutant")
    options = parser.parse_args()
    if options.mutant:
        from . import mutants

        mutants.apply(options.mutant)
    suite = fire_after_downtime if options.what == "down" else jump_clock
    with tempfile.TemporaryDirectory(prefix="penstock-timers-") as folder:
        report = asyncio.run(_run_suite(suite, Path(folder), options.timers))
    print(msgspec.json.encode(report).decode())


async def _run_suite(suite: Any, folder: Path, timers: int) -> TimerReport:
    try:
        return await suite(SQLITE_FILE, folder, timers=timers, timeout=5)  # type: ignore[no-any-return]
    except AssertionError as problem:
        return TimerReport(timers, problems=[f"did not finish: {problem}"])


if __name__ == "__main__":
    main()
