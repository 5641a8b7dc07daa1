"""Waits: timers that come due while no worker runs or while the clock jumps, and workers killed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit import mutants
from faultkit.backends import Backend
from faultkit.config import FULL
from faultkit.fork_server import run
from faultkit.kill_waits import kill_all_workers, kill_waiting_workers
from faultkit.timers import fire_after_downtime, jump_clock

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1800)]

TIMERS = 10_000 if FULL else 200
JUMP_TIMERS = 3000 if FULL else 100
RUNS, KILLS = (1000, 250) if FULL else (24, 6)
Show = Callable[[str], None]


async def test_timers_that_come_due_while_no_worker_runs(shared: Backend, tmp_path: Path, show: Show) -> None:
    report = await fire_after_downtime(shared, tmp_path, timers=TIMERS)
    show(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.woken == TIMERS


@pytest.mark.spec("003-7.10")
async def test_timers_that_come_due_after_all_workers_were_killed(shared: Backend, tmp_path: Path, show: Show) -> None:
    report = await kill_all_workers(shared, tmp_path, timers=TIMERS // 5)
    show(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.suspended > TIMERS // 10, "the workers were killed before anything was suspended"


async def test_timers_under_a_jumping_clock(backend: Backend, tmp_path: Path, show: Show) -> None:
    report = await jump_clock(backend, tmp_path, timers=JUMP_TIMERS)
    show(f"{backend.name}: {report}")
    assert report.problems == []
    assert report.woken == JUMP_TIMERS
    assert report.slots > 10


@pytest.mark.spec("003-7.11")
async def test_workers_killed_while_runs_wait(shared: Backend, tmp_path: Path, show: Show) -> None:
    report = await kill_waiting_workers(shared, tmp_path, runs=RUNS, kills=KILLS)
    show(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.kills == KILLS
    assert report.executions <= report.attempts
    assert report.orphaned >= KILLS / 4, "the workers were idle when they were killed: nothing was tested"


@pytest.mark.parametrize("what", ["down", "jumps"])
@pytest.mark.parametrize("name", [name for name, _ in mutants.of("timers")])
def test_timers_catch(name: str, what: str, show: Show) -> None:
    """Run in a separate process: a mutant cannot be undone."""
    problems = run("timers", what, "--timers", "60", "--mutant", name)["problems"]
    assert problems, f"{name} survived"
    show(f"{name}: caught by {what}: {problems[0]}")


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("waits-kill")])
async def test_kills_catch(name: str, store_file: Backend, tmp_path: Path, show: Show) -> None:
    if mutants.is_caught_by_sweep(name) and not FULL:
        pytest.skip("with PENSTOCK_FAULTS=full; the sweep catches it in CI")
    for attempt in range(4):  # a kill catches it only at the right moment
        folder = tmp_path / str(attempt)
        folder.mkdir()
        report = await kill_waiting_workers(
            store_file, folder, runs=50, kills=15, seed=11 + attempt, mutant=name, timeout=5
        )
        if report.problems:
            break
    assert report.problems, f"{name} survived {report}, four times"
    show(f"{name}: caught by {report}: {report.problems[0]}")
