"""Concurrent durable calls and child runs whose workers are killed: no call is repeated once it is recorded, no child
starts twice or is lost."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from penstock import App
from penstock.ports.store import RunRow
from penstock.testing.history import History, RunHistory, check, read_history
from penstock.testing.history.wait_rules import WAIT_STARTED_KINDS

from .backends import Backend
from .fleet import Fleet
from .kill_workers import wait_for_progress
from .worker_calls import CHILDREN, FLOWS, HANDLERS, NAMES, TRIGGERS, expected_rest

START_S = 10.0  # within which a worker starts on a busy machine


class CallReport(msgspec.Struct):
    """What happened, and the problems found."""

    runs: int = 0
    kills: int = 0
    children: int = 0
    attempts: int = 0
    executions: int = 0
    functions: int = 0  # executions of functions of `ctx.run`
    recorded: int = 0  # of them, those that were recorded
    orphaned: int = 0  # attempts whose worker died before they ended
    problems: list[str] = []
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.runs} runs with {self.children} children, {self.kills} kills, {self.attempts} attempts recorded, "
            f"{self.executions} executed, {self.functions} functions executed, {self.recorded} recorded, "
            f"{self.orphaned} orphaned, {len(self.problems)} problems; {self.seconds:.0f} s"
        )


async def kill_calling_workers(
    backend: Backend, folder: Path, *, runs: int, kills: int, seed: int = 11, mutant: str | None = None,
    timeout: float = 90.0,
) -> CallReport:  # fmt: skip
    """Run two workers and kill one at a time, while the branches of `runs` runs, and their children, run and wait."""
    report, rng, started = CallReport(), random.Random(seed), time.monotonic()
    arguments = ("--mutant", mutant) if mutant else ()
    ids: list[str] = []
    async with App(backend.url(folder), handlers=HANDLERS) as app:
        with Fleet(backend.url(folder), folder, spares=2, arguments=arguments, step_ms=150) as fleet:
            functions = Path(f"{fleet.effects.path}.functions")
            for _ in range(2):
                fleet.start_worker()
            while report.kills < kills:
                before = len(_read_lines(functions))
                for n in range(len(ids), runs * (report.kills + 1) // kills):
                    ids.append(await _start(app, n, rng))
                await _wait_for_functions(app, functions, before + rng.randrange(1, 6))
                await asyncio.sleep(rng.random() * 0.3)  # before, during or after the commit that records it
                await asyncio.to_thread(fleet.kill, fleet.working[0])  # the one that has worked longest
                report.kills += 1
                fleet.start_worker()
            await wait_for_progress(lambda: _count_open(app), below=1, seconds=timeout)
        effects = fleet.effects.read()
        history = await read_history(app.store, effects=effects, acknowledged=ids, triggers=TRIGGERS)
        rows = {row.id: row for run in history.runs if (row := await app.store.run(run.id)) is not None}
    report.runs = len(ids)
    _check_history(report, history)
    _check_children(report, ids, rows)
    _check_functions(report, history, _read_lines(functions))
    report.seconds = time.monotonic() - started
    return report


async def _start(app: App, n: int, rng: random.Random) -> str:
    name = FLOWS[n % len(FLOWS)]
    run = await app.start(name, {"order": n, "pause": rng.random()}, key=f"{name}-{n}")
    await app.emit("paid", {"order": n}, key=f"paid-{n}")
    return run


def _read_lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


async def _wait_for_functions(app: App, path: Path, count: int) -> None:
    """Wait until so many functions were executed, so that the killed worker is not idle: on a busy machine it may take
    seconds to start. Give up when no run is open, or when nothing happens: a mutant may leave all of them stuck."""
    seen, deadline = len(_read_lines(path)), time.monotonic() + START_S
    while (now := len(_read_lines(path))) < count and time.monotonic() < deadline and await _count_open(app):
        if now > seen:
            seen, deadline = now, time.monotonic() + START_S
        await asyncio.sleep(0.01)


async def _count_open(app: App) -> int:
    return len(await app.runs.list(status="open", limit=10_000))


def _check_history(report: CallReport, history: History) -> None:
    events = [event for run in history.runs for event in run.events]
    report.attempts = sum(event.kind == "step.started" for event in events)
    report.executions = len(history.effects)
    report.orphaned = sum(map(_count_orphaned, history.runs))
    report.problems += [str(violation) for violation in check(history)]
    report.problems += [
        f"{run.id} was started {count} times"
        for run in history.runs
        if (count := sum(event.kind == "flow.started" for event in run.events)) != 1
    ]
    for run in history.runs:
        if run.flow in FLOWS:
            report.problems += _check_result(run)


def _count_orphaned(run: RunHistory) -> int:
    """Return how many attempts were followed by another one, without an end or a suspension between them."""
    kinds = ("step.started", "step.resumed", "step.completed", "step.failed", "step.returned", *WAIT_STARTED_KINDS)
    seen = [event.kind for event in run.events if event.kind in kinds]
    return sum(pair == ("step.started", "step.started") for pair in pairwise(seen))


def _check_result(run: RunHistory) -> list[str]:
    if run.status != "completed":
        return [f"{run.id} is {run.status}"]
    result: Any = run.events[-1].data.get("result")
    expected: Any = expected_rest(run.flow, int(run.id.rpartition("-")[2]))
    if run.flow == "tree":
        return [] if result == expected else [f"the result of {run.id} is {result}, expected {expected}"]
    values = len(NAMES[run.flow])
    is_right = result["rest"] == expected and len(set(result["values"])) == values
    return [] if is_right else [f"the result of {run.id} is {result}, expected {values} values and {expected}"]


def _check_children(report: CallReport, ids: list[str], rows: dict[str, RunRow]) -> None:
    """Check that each call started its children once, and that they name their parents."""
    found: defaultdict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for row in rows.values():
        if row.parent is None:
            continue
        report.children += 1
        parent = rows.get(row.parent)
        if parent is None or row.root is None or row.depth != (parent.depth or 0) + 1:
            report.problems.append(f"{row.id} has the parent {row.parent}, the root {row.root}, the depth {row.depth}")
            continue
        found[row.root].append((row.flow, row.depth, parent.flow))
        if row.root != (parent.root or parent.id):
            report.problems.append(f"{row.id} has the root {row.root}, and its parent {parent.root or parent.id}")
        if row.updated > parent.updated:
            report.problems.append(f"{row.id} ended after its parent {parent.id}")
    for id in ids:
        expected = CHILDREN[id.rpartition("-")[0]]
        if sorted(found[id]) != sorted(expected):
            report.problems.append(f"{id} has the children {sorted(found[id])}, expected {sorted(expected)}")


def _check_functions(report: CallReport, history: History, lines: list[list[str]]) -> None:
    """Check that no function was executed again after its value was recorded, and that the handler got that value."""
    executed: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for run, name, value in lines:
        executed[run, name].append(value)
        report.functions += 1
    for history_run in history.runs:
        keys = Counter(event.data["call"] for event in history_run.events if event.kind == "call.completed")
        report.recorded += sum(keys.values())
        report.problems += [f"{history_run.id}: {key} was recorded {n} times" for key, n in keys.items() if n != 1]
        if history_run.status != "completed" or history_run.flow == "tree" or history_run.flow not in FLOWS:
            continue
        values = history_run.events[-1].data["result"]["values"]
        for name, value in zip(NAMES[history_run.flow], values, strict=True):
            if executed[history_run.id, name][-1] != value:
                report.problems.append(f"{history_run.id}: {name} was executed again after {value} was recorded")
