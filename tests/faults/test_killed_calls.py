"""Workers killed with SIGKILL while concurrent durable calls and child runs are in flight."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit import mutants
from faultkit.backends import Backend
from faultkit.config import FULL
from faultkit.kill_calls import kill_calling_workers

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1800)]

RUNS, KILLS = (900, 225) if FULL else (18, 6)
Show = Callable[[str], None]


async def test_killed_workers_repeat_no_recorded_call_and_lose_no_child(
    shared: Backend, tmp_path: Path, show: Show
) -> None:
    report = await kill_calling_workers(shared, tmp_path, runs=RUNS, kills=KILLS)
    show(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.kills == KILLS
    assert report.executions <= report.attempts
    assert report.orphaned >= KILLS / 4, "the workers were idle when they were killed: nothing was tested"


# What a kill at the right moment leaves behind.
CAUGHT = {
    "child_end_in_second_commit": r"-\d+ is waiting",  # a parent whose children have ended
    "child_start_in_second_commit": r"-\d+ has the children",
    "memo_in_second_commit": r"was (recorded \d times|executed again)",
}


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("calls-kill")])
async def test_kills_catch(name: str, store_file: Backend, tmp_path: Path, show: Show) -> None:
    if mutants.is_caught_by_sweep(name) and not FULL:
        pytest.skip("with PENSTOCK_FAULTS=full; the sweep catches it in CI")
    for attempt in range(4):  # a kill catches it only at the right moment
        folder = tmp_path / str(attempt)
        folder.mkdir()
        report = await kill_calling_workers(
            store_file, folder, runs=18, kills=6, seed=11 + attempt, mutant=name, timeout=10
        )
        found = [problem for problem in report.problems if re.search(CAUGHT[name], problem)]
        if found:
            break
    assert found, f"{name} survived {report}, four times: {report.problems[:3]}"
    show(f"{name}: caught by {report}: {found[0]}")
