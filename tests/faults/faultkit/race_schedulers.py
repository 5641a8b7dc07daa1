"""Schedulers in several processes fire the same slots of one store, and some of the processes are killed."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from penstock import App
from penstock.testing.clock import START_MS, FakeClock

from .backends import Backend
from .fork_server import start
from .scheduler_process import HANDLERS, fire_due_slots


class ScheduleReport(msgspec.Struct):
    """What happened, and the problems found."""

    slots: int
    fired: int = 0  # counted by the schedule
    reported: int = 0  # counted by the schedulers; killed ones may not report
    kills: int = 0
    started: dict[int, int] = {}  # slot -> number of runs or jobs that it started
    running: int = 0  # open runs
    problems: list[str] = []

    def __str__(self) -> str:
        return f"{self.slots} slots, {self.fired} fired, {len(self.started)} started something, {self.kills} kills"


async def race_schedulers(
    backend: Backend, folder: Path, *, slots: int, target: dict[str, Any], kills: int = 0, mutant: str | None = None
) -> ScheduleReport:
    """Run two processes with two schedulers each and one scheduler here, and fire every slot of the past."""
    report = ScheduleReport(slots)
    clock = FakeClock(START_MS)
    url = backend.url(folder)
    async with App(url, handlers=HANDLERS, clock=clock) as app:
        await app.schedules.add("s", every="1s", catch_up="all", **target)
        clock.advance(slots)
        arguments = [url, "--now", str(clock.now_ms()), *(("--mutant", mutant) if mutant else ())]
        processes = [_SchedulerProcess(arguments) for _ in range(2 + kills)]
        try:
            await asyncio.to_thread(_kill, processes, kills, report)
            for process in processes[kills:]:
                await asyncio.to_thread(process.begin)
            fired_here: list[int] = []
            if mutant is None:  # a mutant cannot be undone, and this process runs other tests
                await fire_due_slots(app, fired_here.append)
            for process in processes[kills:]:
                report.reported += await asyncio.to_thread(process.finish)
            report.reported += len(fired_here)
        finally:
            for process in processes:
                process.end()
        await _check_slots(app, report, clock.now_ms())
    return report


class _SchedulerProcess:
    """A process with schedulers."""

    def __init__(self, arguments: list[str]) -> None:
        self.process = start("scheduler_process", *arguments)

    def begin(self) -> None:
        assert self.process.stdout.readline() == "loaded\n"
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def wait_for_slots(self, slots: int) -> None:
        """Wait until the process has fired this number of slots, or has ended."""
        all(self.process.stdout.readline() for _ in range(slots))

    def finish(self) -> int:
        out, _ = self.process.communicate(timeout=120)
        return len(out.split())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def _kill(processes: list[_SchedulerProcess], kills: int, report: ScheduleReport) -> None:
    """Start two processes at a time, and kill both when the first has fired a few slots."""
    rng = random.Random(7)
    for n in range(0, kills, 2):
        pair = processes[n : n + 2]
        for process in pair:
            process.begin()
        pair[0].wait_for_slots(rng.randrange(1, 8))
        for process in pair:
            report.kills += process.process.poll() is None
            process.end()


async def _check_slots(app: App, report: ScheduleReport, now: int) -> None:
    """Check that each slot started exactly one run or job."""
    row = await app.store.schedule("s")
    assert row is not None
    report.fired = row.fired
    added = [e.subject for e in await app.events.read_all("nq:queue:ticks") if e.kind == "job.added"]
    page = await app.store.runs(limit=500)
    while page:
        report.running += sum(not run.closed for run in page)
        added += [run.id for run in page]
        page = await app.store.runs(limit=500, before=page[-1].id)
    report.started = dict(Counter(int(id.removeprefix("s.")) for id in added))
    expected = {START_MS + (n + 1) * 1000 for n in range(report.slots)}
    problems = report.problems
    if missing := expected - report.started.keys():
        problems.append(f"{len(missing)} slots started nothing, for example {min(missing)}")
    if early := report.started.keys() - expected:
        problems.append(f"{len(early)} slots fired before they were due, for example {max(early)}")
    if twice := [slot for slot, n in report.started.items() if n > 1]:
        problems.append(f"{len(twice)} slots started something more than once, for example {twice[0]}")
    if row.fired != report.slots:
        problems.append(f"the schedule counts {row.fired} firings instead of {report.slots}")
    if row.next != now + 1000:
        problems.append(f"the next slot of the schedule is {row.next} instead of {now + 1000}")
