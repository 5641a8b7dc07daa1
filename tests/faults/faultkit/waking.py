"""Runs that wait while the processes that work on them are killed: on the way to sleep, asleep, and on the way out."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from penstock import App
from penstock.core.errors import TriggerError
from penstock.testing.history import History, check, read_history

from .backends import Backend
from .fleet import Fleet
from .waiting_trades import FLOWS, HANDLERS, TRIGGERS


class Report(msgspec.Struct):
    """What happened, and what should not have."""

    runs: int = 0
    kills: int = 0
    attempts: int = 0
    executions: int = 0
    slept: int = 0  # attempts that ended asleep
    orphaned: int = 0  # attempts whose worker died before they ended
    problems: list[str] = []
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.kills} kills, {self.attempts} attempts recorded, {self.executions} executed, "
            f"{self.slept} went to sleep, {self.orphaned} orphaned, {len(self.problems)} problems; {self.seconds:.0f} s"
        )


async def kill_waiting(
    backend: Backend, folder: Path, *, runs: int, kills: int, seed: int = 11, mutant: str | None = None,
    patience: float = 90.0,
) -> Report:  # fmt: skip
    """Two workers, one killed at a time, while `runs` runs wait for times, events, triggers and timeouts."""
    report, rng, began = Report(runs), random.Random(seed), time.monotonic()
    arguments = ("--mutant", mutant) if mutant else ()
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        with Fleet(backend.url(folder), folder, spares=2, arguments=arguments, step_ms=100) as fleet:
            outside = _Outside(app, Path(f"{fleet.effects.path}.tokens"), rng)
            for _ in range(2):
                fleet.hire()
            more = asyncio.create_task(outside.go_on())
            try:
                while report.kills < kills:
                    done = _size(fleet.effects.path)
                    await outside.begin(runs * (report.kills + 1) // kills)
                    await _stirs(fleet.effects.path, done)
                    await asyncio.sleep(rng.random() * 0.3)
                    await asyncio.to_thread(fleet.kill, rng.choice(fleet.working))
                    report.kills += 1
                    fleet.hire()
                await _over(app, patience)
            finally:
                more.runs.cancel()
                await asyncio.wait((more,))
        history = await read_history(
            app.store, effects=fleet.effects.read(), acknowledged=outside.started, triggers=TRIGGERS
        )
    _judge(report, history, outside)
    report.seconds = time.monotonic() - began
    return report


class _Outside:
    """Those who start runs, pay for orders and fire triggers."""

    def __init__(self, app: App, tokens: Path, rng: random.Random) -> None:
        self._app = app
        self._tokens = tokens
        self._rng = rng
        self._read = 0
        self.started: list[str] = []
        self.fired: dict[str, list[str]] = {}

    async def begin(self, runs: int) -> None:
        """Starts more runs, until there are so many."""
        for n in range(len(self.started), runs):
            name, now = FLOWS[n % len(FLOWS)], self._app.clock.now_ms()
            input = {"order": n, "until": now + self._rng.randrange(200, 3000), "patience": self._rng.random() * 2}
            self.started.append(await self._app.start(name, input, key=f"{name}-{n}"))
            if name == "order":  # one payment before its step comes to the gate, one some time later
                await self._pay(n, 0)
                asyncio.get_running_loop().call_later(self._rng.random() * 2, self._pay_soon, n)

    def _pay_soon(self, order: int) -> None:
        task = asyncio.ensure_future(self._pay(order, 1))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _pay(self, order: int, n: int) -> None:
        await self._app.emit("paid", {"order": order, "key": f"{order}-{n}"}, key=f"{order}-{n}")

    async def go_on(self) -> None:
        """Fires each token that handlers give away, twice at the same time."""
        while True:
            lines = self._tokens.read_text().splitlines() if self._tokens.exists() else []
            new, self._read = lines[self._read :], len(lines)
            await asyncio.gather(*(self._fire(*line.split(), f"{n}") for line in new for n in range(2)))
            await asyncio.sleep(0.02)

    async def _fire(self, run: str, token: str, by: str) -> None:
        try:
            await self._app.waits.fire(token, f"{run} {by}")
        except TriggerError:
            return
        self.fired.setdefault(run, []).append(f"{run} {by}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


async def _stirs(path: Path, before: int) -> None:
    """Waits until a handler has run since, so that it is no idle worker that is killed; not for ever."""
    deadline = time.monotonic() + 1.0
    while _size(path) == before and time.monotonic() < deadline:
        await asyncio.sleep(0.005)


async def _over(app: App, patience: float) -> None:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and await app.store.runs(status="running", limit=1):
        await asyncio.sleep(0.05)


def _judge(report: Report, history: History, outside: _Outside) -> None:
    events = [event for run in history.runs for event in run.events]
    report.attempts = sum(event.kind == "step.started" for event in events)
    report.executions = len(history.effects)
    ends = [(e.flow, (e.meta or {}).get("attempt")) for e in events if e.kind in ("step.completed", "step.failed")]
    slept = {(e.flow, e.meta["attempt"]) for e in events if e.kind in AWAITS and e.meta}
    report.slept = len(slept)
    report.orphaned = report.attempts - len(ends) - len(slept)
    report.problems += [str(violation) for violation in check(history)]
    report.problems += early(history)
    for run in history.runs:
        if run.status == "completed":
            report.problems += _judge_result(run.flow, run.id, run.events[-1].data.get("result"), outside)


AWAITS = ("step.await.time", "step.await.event", "step.await.trigger")


def _judge_result(flow: str, run: str, result: Any, outside: _Outside) -> list[str]:
    number = run.rpartition("-")[2]
    wanted: Any = {"nap": "rested", "late": "late", "order": [f"{number}-0", f"{number}-1"]}.get(flow)
    if flow == "order":
        result = sorted(result)
    if flow == "ask":
        fired = outside.fired.get(run, [])
        if len(fired) != 1:
            return [f"{run}: its trigger was fired by {fired}"]
        wanted = fired[0]
    return [] if result == wanted else [f"{run} gave {result!r}, not {wanted!r}"]


def early(history: History) -> list[str]:
    """Timers that woke before their time, by the store's clock."""
    found = []
    for run in history.runs:
        due = {e.data["wait"]: e.data["resumeAt"] for e in run.events if e.kind == "step.await.time"}
        for event in run.events:
            if event.kind == "step.resumed" and event.data["wait"] in due and event.ts < due[event.data["wait"]]:
                found.append(f"{run.id}: woke at {event.ts}, due at {due[event.data['wait']]}")
    return found


async def kill_everyone(backend: Backend, folder: Path, *, timers: int) -> Report:
    """Every worker dies while timers run; they come due with nobody there, and others come."""
    report, began = Report(timers), time.monotonic()
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        with Fleet(backend.url(folder), folder, spares=2, step_ms=1) as fleet:
            for _ in range(2):
                fleet.hire()
            probe = await app.start("nap", {"until": 0})
            await app.runs.wait(probe, timeout=60)  # the workers are up; from here on the clock counts
            until = app.clock.now_ms() + 2000 + timers * 12
            runs = await asyncio.gather(*(app.start("nap", {"until": until + n % 500}) for n in range(timers)))
            while await _asleep(app) < timers and app.clock.now_ms() < until:
                await asyncio.sleep(0.02)
            for workman in list(fleet.working):
                await asyncio.to_thread(fleet.kill, workman)
                report.kills += 1
            report.slept = await _asleep(app)
            while app.clock.now_ms() < until + 500:
                await asyncio.sleep(0.05)
            for _ in range(2):
                fleet.hire()
            await _over(app, 120)
        history = await read_history(
            app.store, effects=fleet.effects.read(), acknowledged=[probe, *runs], triggers=TRIGGERS
        )
    slept = report.slept
    _judge(report, history, _Outside(app, folder / "none", random.Random(1)))
    report.slept = slept
    kinds = Counter(event.kind for run in history.runs for event in run.events)
    if kinds["step.resumed"] != kinds["step.await.time"]:
        report.problems.append(f"{kinds['step.await.time']} slept, {kinds['step.resumed']} were recorded as woken")
    report.seconds = time.monotonic() - began
    return report


async def _asleep(app: App) -> int:
    return sum(queue.counts["delayed"] for queue in await app.store.queues())
