"""Runs that wait while their worker processes are killed: before, during and after a suspension."""

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
from penstock.testing.history.wait_rules import WAIT_STARTED_KINDS

from .backends import Backend
from .fleet import Fleet
from .worker_waits import FLOWS, HANDLERS, TRIGGERS


class WaitReport(msgspec.Struct):
    """What happened, and the problems found."""

    runs: int = 0
    kills: int = 0
    attempts: int = 0
    executions: int = 0
    suspended: int = 0  # attempts that ended in a suspension
    orphaned: int = 0  # attempts whose worker died before they ended
    problems: list[str] = []
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.kills} kills, {self.attempts} attempts recorded, {self.executions} executed, "
            f"{self.suspended} suspended, {self.orphaned} orphaned, {len(self.problems)} problems; {self.seconds:.0f} s"
        )


async def kill_waiting_workers(
    backend: Backend, folder: Path, *, runs: int, kills: int, seed: int = 11, mutant: str | None = None,
    timeout: float = 90.0,
) -> WaitReport:  # fmt: skip
    """Run two workers and kill one at a time, while `runs` runs wait for times, events, triggers and timeouts."""
    report, rng, started = WaitReport(runs), random.Random(seed), time.monotonic()
    arguments = ("--mutant", mutant) if mutant else ()
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        with Fleet(backend.url(folder), folder, spares=2, arguments=arguments, step_ms=100) as fleet:
            client = _Client(app, Path(f"{fleet.effects.path}.tokens"), rng)
            for _ in range(2):
                fleet.start_worker()
            firing = asyncio.create_task(client.fire_triggers())
            try:
                while report.kills < kills:
                    done = _size(fleet.effects.path)
                    await client.start_runs(runs * (report.kills + 1) // kills)
                    await _wait_for_execution(fleet.effects.path, done)
                    await asyncio.sleep(rng.random() * 0.3)
                    await asyncio.to_thread(fleet.kill, rng.choice(fleet.working))
                    report.kills += 1
                    fleet.start_worker()
                await _wait_for_end(app, timeout)
            finally:
                firing.cancel()
                await asyncio.wait((firing,))
        history = await read_history(
            app.store, effects=fleet.effects.read(), acknowledged=client.started, triggers=TRIGGERS
        )
    _check_history(report, history, client)
    report.seconds = time.monotonic() - started
    return report


class _Client:
    """A client that starts runs, pays for orders and fires triggers."""

    def __init__(self, app: App, tokens: Path, rng: random.Random) -> None:
        self._app = app
        self._tokens = tokens
        self._rng = rng
        self._read = 0
        self.started: list[str] = []
        self.fired: dict[str, list[str]] = {}

    async def start_runs(self, runs: int) -> None:
        """Start runs until there are `runs` of them."""
        for n in range(len(self.started), runs):
            name, now = FLOWS[n % len(FLOWS)], self._app.clock.now_ms()
            input = {"order": n, "until": now + self._rng.randrange(200, 3000), "timeout": self._rng.random() * 2}
            self.started.append(await self._app.start(name, input, key=f"{name}-{n}"))
            if name == "order":  # one payment before its step waits, one some time later
                await self._pay(n, 0)
                asyncio.get_running_loop().call_later(self._rng.random() * 2, self._pay_soon, n)

    def _pay_soon(self, order: int) -> None:
        task = asyncio.ensure_future(self._pay(order, 1))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _pay(self, order: int, n: int) -> None:
        await self._app.emit("paid", {"order": order, "key": f"{order}-{n}"}, key=f"{order}-{n}")

    async def fire_triggers(self) -> None:
        """Fire each token that handlers publish, twice at the same time."""
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


async def _wait_for_execution(path: Path, before: int) -> None:
    """Wait until a handler has run since, for at most a second, so that the killed worker is not idle."""
    deadline = time.monotonic() + 1.0
    while _size(path) == before and time.monotonic() < deadline:
        await asyncio.sleep(0.005)


async def _wait_for_end(app: App, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and await app.runs.list(status="open", limit=1):
        await asyncio.sleep(0.05)


def _check_history(report: WaitReport, history: History, client: _Client) -> None:
    events = [event for run in history.runs for event in run.events]
    report.attempts = sum(event.kind == "step.started" for event in events)
    report.executions = len(history.effects)
    ends = [(e.flow, (e.meta or {}).get("attempt")) for e in events if e.kind in ("step.completed", "step.failed")]
    suspended = {(e.flow, e.meta["attempt"]) for e in events if e.kind in WAIT_STARTED_KINDS and e.meta}
    report.suspended = len(suspended)
    report.orphaned = report.attempts - len(ends) - len(suspended)
    report.problems += [str(violation) for violation in check(history)]
    report.problems += find_early_timers(history)
    for run in history.runs:
        if run.status == "completed":
            report.problems += _check_result(run.flow, run.id, run.events[-1].data.get("result"), client)


def _check_result(flow: str, run: str, result: Any, client: _Client) -> list[str]:
    number = run.rpartition("-")[2]
    expected: Any = {"nap": "rested", "late": "late", "order": [f"{number}-0", f"{number}-1"]}.get(flow)
    if flow == "order":
        result = sorted(result)
    if flow == "ask":
        fired = client.fired.get(run, [])
        if len(fired) != 1:
            return [f"{run}: its trigger was fired by {fired}"]
        expected = fired[0]
    return [] if result == expected else [f"the result of {run} is {result!r}, expected {expected!r}"]


def find_early_timers(history: History) -> list[str]:
    """Return the timers that woke too early by the store's clock."""
    found = []
    for run in history.runs:
        due = {e.data["wait"]: e.data["resumeAt"] for e in run.events if e.kind == "step.await.time"}
        for event in run.events:
            if event.kind == "step.resumed" and event.data["wait"] in due and event.ts < due[event.data["wait"]]:
                found.append(f"{run.id}: woke at {event.ts}, due at {due[event.data['wait']]}")
    return found


async def kill_all_workers(backend: Backend, folder: Path, *, timers: int) -> WaitReport:
    """Kill every worker while timers run, let the timers come due, then start new workers."""
    report, started = WaitReport(timers), time.monotonic()
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        with Fleet(backend.url(folder), folder, spares=2, step_ms=1) as fleet:
            for _ in range(2):
                fleet.start_worker()
            probe = await app.start("nap", {"until": 0})
            await app.runs.wait(probe, timeout=60)  # the workers run; the timers are set from here on
            until = app.clock.now_ms() + 2000 + timers * 12
            runs = await asyncio.gather(*(app.start("nap", {"until": until + n % 500}) for n in range(timers)))
            while await _count_suspended(app) < timers and app.clock.now_ms() < until:
                await asyncio.sleep(0.02)
            for worker in list(fleet.working):
                await asyncio.to_thread(fleet.kill, worker)
                report.kills += 1
            report.suspended = await _count_suspended(app)
            while app.clock.now_ms() < until + 500:
                await asyncio.sleep(0.05)
            for _ in range(2):
                fleet.start_worker()
            await _wait_for_end(app, 120)
        history = await read_history(
            app.store, effects=fleet.effects.read(), acknowledged=[probe, *runs], triggers=TRIGGERS
        )
    suspended = report.suspended
    _check_history(report, history, _Client(app, folder / "none", random.Random(1)))
    report.suspended = suspended
    kinds = Counter(event.kind for run in history.runs for event in run.events)
    if kinds["step.resumed"] != kinds["step.await.time"]:
        report.problems.append(f"{kinds['step.await.time']} suspended, but {kinds['step.resumed']} resumed")
    report.seconds = time.monotonic() - started
    return report


async def _count_suspended(app: App) -> int:
    return sum(queue.counts["delayed"] + queue.counts["suspended"] for queue in await app.store.queues())
