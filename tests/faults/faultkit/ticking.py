"""Schedulers in several processes on one store, all with the same slots to fire, some of them killed meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from penstock import App
from penstock.testing.clock import START_MS, FakeClock

from .backends import Backend
from .length import HERE
from .ticker import HANDLERS, notify_all


class Report(msgspec.Struct):
    slots: int
    fired: int = 0  # as the schedule counts
    told: int = 0  # as the schedulers count, those who were killed not always
    kills: int = 0
    started: dict[int, int] = {}  # slot -> how many it started
    running: int = 0  # runs that are still open
    problems: list[str] = []

    def __str__(self) -> str:
        return f"{self.slots} slots, {self.fired} fired, {len(self.started)} started something, {self.kills} kills"


async def race_schedulers(
    backend: Backend, folder: Path, *, slots: int, target: dict[str, Any], kills: int = 0, mutant: str | None = None
) -> Report:
    """Two processes of two schedulers each and one here; every slot is past, and each is to be fired."""
    report = Report(slots)
    clock = FakeClock(START_MS)
    url = backend.url(folder)
    async with App(url, handlers=HANDLERS, clock=clock) as app:
        await app.schedules.add("s", every="1s", catch_up="all", **target)
        clock.advance(slots)
        command = [sys.executable, "-m", "faultkit.ticker", url, "--now", str(clock.now_ms())]
        command += ["--mutant", mutant] if mutant else []
        tellers = [_Teller(command) for _ in range(2 + kills)]
        try:
            await asyncio.to_thread(_kill, tellers, kills, report)
            for teller in tellers[kills:]:
                await asyncio.to_thread(teller.begin)
            told: list[int] = []
            if mutant is None:  # a mutant is for life, and this process has others to play
                await notify_all(app, told.append)
            for teller in tellers[kills:]:
                report.told += await asyncio.to_thread(teller.finish)
            report.told += len(told)
        finally:
            for teller in tellers:
                teller.end()
        await _judge(app, report, clock.now_ms())
    return report


class _Teller:
    """A process of schedulers."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def begin(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "loaded\n"
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def hear(self, slots: int) -> None:
        """Waits until it has fired so many, or there are no more."""
        assert self.process.stdout is not None
        all(self.process.stdout.readline() for _ in range(slots))

    def finish(self) -> int:
        out, _ = self.process.communicate(timeout=120)
        return len(out.split())

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def _kill(tellers: list[_Teller], kills: int, report: Report) -> None:
    """Two at a time begin, and are killed when one has fired a few slots, at whatever they do next."""
    rng = random.Random(7)
    for n in range(0, kills, 2):
        pair = tellers[n : n + 2]
        for teller in pair:
            teller.begin()
        pair[0].hear(rng.randrange(1, 8))
        for teller in pair:
            report.kills += teller.process.poll() is None
            teller.end()


async def _judge(app: App, report: Report, now: int) -> None:
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
    wanted = {START_MS + (n + 1) * 1000 for n in range(report.slots)}
    say = report.problems.append
    if missing := wanted - report.started.keys():
        say(f"{len(missing)} slots started nothing, such as {min(missing)}")
    if early := report.started.keys() - wanted:
        say(f"{len(early)} slots fired that were not due, such as {max(early)}")
    if twice := [slot for slot, n in report.started.items() if n > 1]:
        say(f"{len(twice)} slots started something more than once, such as {twice[0]}")
    if row.fired != report.slots:
        say(f"the schedule counts {row.fired} firings")
    if row.next != now + 1000:
        say(f"the schedule is at {row.next}")
