"""Timers under a clock that a test moves: due while nobody works, or while the clock jumps to and fro.

As a process of its own, for mutants: `python -m faultkit.timing down|jumps --timers 300 [--mutant name]`.
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

HOUR = 3_600_000
EVERY = 600  # seconds between the slots of the schedule
PAGE = 1000


class Report(msgspec.Struct):
    timers: int
    jumps: int = 0
    woken: int = 0
    slots: int = 0
    problems: list[str] = []

    def __str__(self) -> str:
        return f"{self.timers} timers, {self.woken} woken, {self.jumps} jumps, {self.slots} slots of a schedule"


class _Scene:
    """Flows that note when they wake, by the clock of the store."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.woken: Counter[str] = Counter()
        self.early: list[str] = []
        clock_now = clock.now_ms

        @flow("nap", emits=[])
        async def nap(x: Any, ctx: Any) -> str:
            await ctx.wait.time(datetime.fromtimestamp(x["until"] / 1000, UTC))
            self._woke(ctx, x["until"])
            return "rested"

        @flow("late", emits=[])
        async def late(x: Any, ctx: Any) -> str:
            opened = await ctx.run("opened", clock_now)
            try:
                await ctx.wait.event("never", timeout=x["patience"])
            except AwaitTimeout:
                self._woke(ctx, opened + x["patience"] * 1000)
            return "late"

        @job(queue="slots")
        async def slot(ctx: Any) -> None: ...

        self.handlers = [nap, late, slot]

    def _woke(self, ctx: Any, due: int) -> None:
        self.woken[ctx.run_id] += 1
        if self.clock.now_ms() < due:
            self.early.append(f"{ctx.run_id} woke {due - self.clock.now_ms()} ms before its time")


async def fire_after_downtime(backend: Backend, folder: Path, *, timers: int, patience: float = 300) -> Report:
    """Timers over an hour; half of them come due while nobody is there, an early quarter while somebody is."""
    report, clock = Report(timers), FakeClock()
    scene = _Scene(clock)
    rng = random.Random(5)
    dues = [START_MS + rng.randrange(60_000, HOUR) for _ in range(timers)]
    async with App(backend.url(folder), handlers=scene.handlers, clock=clock) as app:
        async with app.workers.background(concurrency=100):
            runs = [await app.start("nap", {"until": due}) for due in dues]
            await until(lambda: _asleep(app, timers), timeout=patience)
            clock.advance(HOUR // 4000)
            await _calm(app, patience)
            _compare(report, scene, {run: due <= clock.now_ms() for run, due in zip(runs, dues, strict=True)})
        clock.advance(HOUR // 1000)
        async with app.workers.background(concurrency=100):
            await until(lambda: _ended(app), timeout=patience)
        await _finish(report, scene, app, runs)
    return report


async def jump(backend: Backend, folder: Path, *, timers: int, seed: int = 3, patience: float = 300) -> Report:
    """The clock goes an hour on or back, or a little further, until everything has ended."""
    report, clock = Report(timers), FakeClock()
    scene = _Scene(clock)
    rng = random.Random(seed)
    async with App(backend.url(folder), handlers=scene.handlers, clock=clock) as app:
        async with app.workers.background(concurrency=100):
            await app.schedules.add("slots", queue="slots", every=EVERY, catch_up="all")
            runs = []
            for n in range(timers):
                span = rng.randrange(60, 3 * 3600)
                input = {"until": clock.now_ms() + span * 1000, "patience": span}
                runs.append(await app.start(("nap", "late")[n % 2], input))
            await until(lambda: _asleep(app, timers), timeout=patience)
            for by in [*(rng.choice((3600, -3600, 900, 1800)) for _ in range(12)), 3600, -3600, *[3600] * 8]:
                clock.set_ms(clock.now_ms() + by * 1000)
                report.jumps += 1
                await _calm(app, patience)
        await _finish(report, scene, app, runs)
        await _judge_slots(app, report)
    return report


async def _asleep(app: App, count: int) -> bool:
    return sum(queue.counts["delayed"] for queue in await app.store.queues() if queue.name == "default") == count


async def _ended(app: App) -> bool:
    return not await app.store.runs(status="running", limit=1)


async def _calm(app: App, patience: float) -> None:
    """Until everything that is due by now has been done."""
    app.store.signals.notify_all()
    await until(lambda: _nothing_due(app), timeout=patience)


async def _nothing_due(app: App) -> bool:
    if (await app.store.due_schedules(limit=1)).rows:
        return False
    # First what is due, then what is under way: the other way round, what is claimed in between is in neither.
    for queue in await app.store.queues():
        if any(row.due <= app.clock.now_ms() for row in await app.store.jobs(queue.name, JobState.DELAYED, limit=1)):
            return False
    return not any(queue.counts["waiting"] or queue.counts["active"] for queue in await app.store.queues())


def _compare(report: Report, scene: _Scene, due: dict[str, bool]) -> None:
    wrong = [run for run, is_due in due.items() if is_due != bool(scene.woken[run])]
    if wrong:
        report.problems.append(f"{len(wrong)} timers are not as the clock says, such as {wrong[0]}")


async def _finish(report: Report, scene: _Scene, app: App, runs: list[str]) -> None:
    report.woken = sum(scene.woken.values())
    report.problems += scene.early[:5]
    _compare(report, scene, dict.fromkeys(runs, True))
    twice = [run for run, times in scene.woken.items() if times > 1]
    if twice:
        report.problems.append(f"{len(twice)} timers woke twice, such as {twice[0]}")
    history = await read_history(app.store, acknowledged=runs)
    report.problems += [str(violation) for violation in check(history)][:5]


async def _judge_slots(app: App, report: Report) -> None:
    """Each slot fired once, and none before its time by the clock that stamped the event."""
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
    if sorted(slots) != list(range(min(slots), max(slots) + 1, EVERY * 1000)):
        report.problems.append("a slot was left out")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("down", "jumps"))
    parser.add_argument("--timers", type=int, default=200)
    parser.add_argument("--mutant")
    options = parser.parse_args()
    if options.mutant:
        from . import mutants

        mutants.apply(options.mutant)
    play = fire_after_downtime if options.what == "down" else jump
    with tempfile.TemporaryDirectory(prefix="penstock-timing-") as folder:
        report = asyncio.run(_played(play, Path(folder), options.timers))
    print(msgspec.json.encode(report).decode())


async def _played(play: Any, folder: Path, timers: int) -> Report:
    try:
        return await play(SQLITE_FILE, folder, timers=timers, patience=5)  # type: ignore[no-any-return]
    except AssertionError as problem:
        return Report(timers, problems=[f"never came to rest: {problem}"])


if __name__ == "__main__":
    main()
