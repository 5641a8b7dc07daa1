"""Each suite is shown to catch its bugs: with a known bug put back, it must report violations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit import mutants
from faultkit.backends import Backend
from faultkit.killing import kill_workers
from faultkit.length import FULL, HERE
from faultkit.pausing import pause_workers
from faultkit.poisoning import poison_workers
from faultkit.racing import race_workers

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

SEEDS = 2000
# Where the search begins, shortly before a seed that catches a rare one. Another seed does as well; it takes longer to find.
FIRST_SEEDS = {"versions_by_number": 350}
Tell = Callable[[str], None]


def run(module: str, *arguments: str) -> dict[str, object]:
    """A suite in a process of its own: a mutant is for life."""
    done = subprocess.run(
        [sys.executable, "-m", f"faultkit.{module}", *arguments],
        cwd=HERE, env={**os.environ, "PYTHONHASHSEED": "0"}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_every_mutant_has_a_suite() -> None:
    assert all(mutant.suites for mutant in mutants.ALL.values())


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("simulation")])
def test_the_simulation_catches(name: str, tell: Tell) -> None:
    first = str(1 if FULL else FIRST_SEEDS.get(name, 1))
    found = run("simulate", "--mutant", name, "--first", first, "--count", str(SEEDS), "--stop-at", "1")
    failures = found["failures"]
    assert failures, f"{name} survived {found['played']} seeds"
    tell(f"{name}: caught by the simulation after {found['played']} seeds: {failures[0]['violations'][0]}")  # type: ignore[index]


@pytest.mark.parametrize(("name", "scenario"), mutants.of("sweep"))
def test_the_sweep_catches(name: str, scenario: str, tell: Tell) -> None:
    found = run("sweep", "--mutant", name, "--scenario", "" if FULL else scenario)
    assert found["problems"], f"{name} survived {found['plays']} faults"
    tell(f"{name}: caught by the sweep after {found['plays']} faults: {found['problems'][0]}")  # type: ignore[index]


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("kill")])
async def test_the_kills_catch(name: str, store_file: Backend, tmp_path: Path, tell: Tell) -> None:
    if not FULL and name != "split_commit":
        pytest.skip("one in CI; all with PENSTOCK_FAULTS=full")
    kills = 60 if FULL else 15
    report = await kill_workers(
        store_file, tmp_path, kills=kills, flows=kills * 10, seed=7, mutant=name, heal_seconds=5
    )
    assert report.violations, f"{name} survived {report.kills} kills"
    tell(f"{name}: caught by {report.kills} kills, {len(report.violations)} violations: {report.violations[0]}")


async def test_the_pauses_catch_a_missing_fence(store_file: Backend, tmp_path: Path, tell: Tell) -> None:
    report = await pause_workers(store_file, tmp_path, pauses=3, jobs=45, seed=5, mutant="no_fence")
    assert report.violations or report.late_committed, "no_fence survived"
    tell(f"no_fence: caught by {report.pauses} pauses: {report.late_committed} late commits taken")


async def test_the_poison_catches_blamed_bystanders(store_file: Backend, tmp_path: Path, tell: Tell) -> None:
    report = await poison_workers(
        store_file, tmp_path, goods=8, max_crashes=3, workers=1, mutant="bystanders_blamed", seconds=30
    )
    assert report.completed < report.goods, "bystanders_blamed survived"
    tell(f"bystanders_blamed: caught by the poison: {report}")


async def test_two_processes_catch_a_deferred_begin(store_file: Backend, tmp_path: Path, tell: Tell) -> None:
    report = await race_workers(store_file, tmp_path, flows=150, mutant="deferred_begin")
    assert report.refusals, "deferred_begin survived"
    tell(f"deferred_begin: caught by {report}")
