"""Each suite catches its mutants: with a known bug put back, it must report violations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from faultkit import mutants
from faultkit.backends import Backend
from faultkit.config import FAULTS_DIR, FULL
from faultkit.fork_server import run
from faultkit.kill_workers import kill_workers
from faultkit.pause_workers import pause_workers
from faultkit.poison_workers import poison_workers
from faultkit.race_workers import race_workers

from penstock.ports.unit import RunWrite, Unit
from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite.commit import UnitWriter
from penstock.testing.contracts import RunsContract

pytestmark = pytest.mark.timeout(900)
with_processes = pytest.mark.xdist_group("faults")  # one after another: many processes, and real time

SEEDS = 2000
# Where the search starts: a seed that catches a mutant which few seeds catch. The next ones catch it, too, only later.
FIRST_SEEDS = {
    "no_fence": 718,
    "timeout_not_recorded": 21,
}
RARE = {"versions_by_number"}  # hardly a seed catches them: the contract of stores does, see below
Show = Callable[[str], None]


def check_is_bug(violation: str) -> None:
    """Fail if a suite caught a mutant by a crash of the mutant itself, which proves nothing."""
    crashes = ("AttributeError", "NameError", "TypeError", "ImportError")
    assert not any(crash in violation for crash in crashes), f"the mutant does not fit the code: {violation}"


def test_every_mutant_has_a_suite() -> None:
    assert all(mutant.suites for mutant in mutants.ALL.values())


def test_every_mutant_is_documented() -> None:
    page = (FAULTS_DIR.parents[1] / "docs" / "faults.md").read_text()
    assert [mutant.name for mutant in mutants.ALL.values() if f"| {mutant.what} |" not in page] == []


@pytest.mark.parametrize("name", sorted(mutants.ALL))
def test_every_mutant_applies(name: str) -> None:
    """A mutant whose target was renamed would test nothing, or be caught by its own crash."""
    run("mutants", name)


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("simulation")])
def test_simulation_catches(name: str, show: Show) -> None:
    if name in RARE and not FULL:
        pytest.skip("searched with PENSTOCK_FAULTS=full; the contract of stores catches it")
    if mutants.is_caught_by_sweep(name) and not FULL:
        pytest.skip("searched with PENSTOCK_FAULTS=full; the sweep catches it in CI")
    first = str(1 if FULL else FIRST_SEEDS.get(name, 1))
    found = run("simulate", "--mutant", name, "--first", first, "--count", str(SEEDS), "--stop-at", "1")
    failures = found["failures"]
    assert failures, f"{name} survived {found['seeds']} seeds"
    check_is_bug(failures[0]["violations"][0])  # type: ignore[index]
    show(f"{name}: caught by the simulation after {found['seeds']} seeds: {failures[0]['violations'][0]}")  # type: ignore[index]


async def test_the_contract_of_runs_catches_versions_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    check = UnitWriter._check_version

    def by_number(self: UnitWriter, unit: Unit, run: RunWrite, row: Any) -> Any:
        return check(self, unit, msgspec.structs.replace(run, after=None), row)

    monkeypatch.setattr(UnitWriter, "_check_version", by_number)
    store = SqliteStore()
    await store.open()
    with pytest.raises(AssertionError, match="Committed"):
        await RunsContract.test_a_write_built_on_a_refused_unit_is_refused(cast(Any, None), store)
    await store.close()


@pytest.mark.parametrize(("name", "scenario"), mutants.of("sweep"))
def test_sweep_catches(name: str, scenario: str, show: Show) -> None:
    found = run("sweep", "--mutant", name, "--scenario", "" if FULL else scenario)
    assert found["problems"], f"{name} survived {found['faults']} faults"
    check_is_bug(found["problems"][0])  # type: ignore[index]
    show(f"{name}: caught by the sweep after {found['faults']} faults: {found['problems'][0]}")  # type: ignore[index]


@with_processes
@pytest.mark.parametrize("name", [name for name, _ in mutants.of("kill")])
async def test_kills_catch(name: str, store_file: Backend, tmp_path: Path, show: Show) -> None:
    if not FULL and name != "split_commit":
        pytest.skip("one in CI; all with PENSTOCK_FAULTS=full")
    kills = 60 if FULL else 15
    report = await kill_workers(
        store_file, tmp_path, kills=kills, flows=kills * 10, seed=7, mutant=name, recovery_timeout_s=5
    )
    assert report.violations, f"{name} survived {report.kills} kills"
    show(f"{name}: caught by {report.kills} kills, {len(report.violations)} violations: {report.violations[0]}")


@with_processes
async def test_pauses_catch_a_missing_fence(store_file: Backend, tmp_path: Path, show: Show) -> None:
    report = await pause_workers(store_file, tmp_path, pauses=3, jobs=45, seed=5, mutant="no_fence")
    assert report.violations or report.late_committed, "no_fence survived"
    show(f"no_fence: caught by {report.pauses} pauses: {report.late_committed} late commits accepted")


@with_processes
async def test_poison_catches_blamed_bystanders(store_file: Backend, tmp_path: Path, show: Show) -> None:
    report = await poison_workers(
        store_file, tmp_path, goods=8, max_crashes=3, workers=1, mutant="bystanders_blamed", seconds=30
    )
    assert report.completed < report.goods, "bystanders_blamed survived"
    assert report.executions > 4, "the workers were too slow: nothing was tested"
    show(f"bystanders_blamed: caught by the poison: {report}")


@with_processes
async def test_two_processes_catch_a_deferred_begin(store_file: Backend, tmp_path: Path, show: Show) -> None:
    report = await race_workers(store_file, tmp_path, flows=150, mutant="deferred_begin")
    assert report.refusals, "deferred_begin survived"
    show(f"deferred_begin: caught by {report}")
