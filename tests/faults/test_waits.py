"""Waits: timers that come due while nobody works or while clocks jump, and workers killed around them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit import mutants
from faultkit.backends import Backend
from faultkit.length import FULL, HERE
from faultkit.timing import fire_after_downtime, jump
from faultkit.waking import kill_everyone, kill_waiting

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1800)]

TIMERS = 10_000 if FULL else 500
JUMPED = 3000 if FULL else 300
RUNS, KILLS = (1000, 250) if FULL else (60, 15)
Tell = Callable[[str], None]


async def test_timers_that_came_due_while_everything_was_down(shared: Backend, tmp_path: Path, tell: Tell) -> None:
    report = await fire_after_downtime(shared, tmp_path, timers=TIMERS)
    tell(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.woken == TIMERS


async def test_timers_of_workers_that_were_all_killed(shared: Backend, tmp_path: Path, tell: Tell) -> None:
    report = await kill_everyone(shared, tmp_path, timers=TIMERS // 5)
    tell(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.slept > TIMERS // 10, "the workers were killed before anything was asleep"


async def test_clocks_that_jump(backend: Backend, tmp_path: Path, tell: Tell) -> None:
    report = await jump(backend, tmp_path, timers=JUMPED)
    tell(f"{backend.name}: {report}")
    assert report.problems == []
    assert report.woken == JUMPED
    assert report.slots > 10


async def test_workers_killed_while_runs_wait(shared: Backend, tmp_path: Path, tell: Tell) -> None:
    report = await kill_waiting(shared, tmp_path, runs=RUNS, kills=KILLS)
    tell(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.kills == KILLS
    assert report.executions <= report.attempts
    assert report.orphaned >= KILLS / 4, "the workers were idle when they were killed: nothing was tested"


@pytest.mark.parametrize("what", ["down", "jumps"])
@pytest.mark.parametrize("name", [name for name, _ in mutants.of("timers")])
def test_the_clocks_catch(name: str, what: str, tell: Tell) -> None:
    """In a process of its own: a mutant is for life."""
    command = [sys.executable, "-m", "faultkit.timing", what, "--timers", "60", "--mutant", name]
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True)
    problems = json.loads(done.stdout)["problems"]
    assert problems, f"{name} survived"
    tell(f"{name}: caught by {what}: {problems[0]}")


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("waits-kill")])
async def test_the_kills_catch(name: str, store_file: Backend, tmp_path: Path, tell: Tell) -> None:
    for attempt in range(4):  # whether a kill strikes at the moment that matters is a matter of luck
        folder = tmp_path / str(attempt)
        folder.mkdir()
        report = await kill_waiting(store_file, folder, runs=50, kills=15, seed=11 + attempt, mutant=name, patience=5)
        if report.problems:
            break
    assert report.problems, f"{name} survived {report}, four times"
    tell(f"{name}: caught by {report}: {report.problems[0]}")
