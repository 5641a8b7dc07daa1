"""Five schedulers in three processes, a thousand slots: each fires once, whoever is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faultkit import mutants
from faultkit.backends import Backend
from faultkit.length import FULL
from faultkit.ticking import race_schedulers

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(300)]

JOB: dict[str, Any] = {"queue": "ticks"}
FLOW: dict[str, Any] = {"flow": "tick"}
REPLACING: dict[str, Any] = {"flow": "tick", "overlap": "replace"}
Tell = Callable[[str], None]


@pytest.mark.parametrize("target", [JOB, FLOW], ids=["job", "flow"])
async def test_five_schedulers_fire_a_thousand_slots(
    shared: Backend, tmp_path: Path, tell: Tell, target: dict[str, Any]
) -> None:
    report = await race_schedulers(shared, tmp_path, slots=1000, target=target)
    tell(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.told == 1000  # nobody thinks to have fired what another fired


@pytest.mark.parametrize("target", [JOB, FLOW, REPLACING], ids=["job", "flow", "replace"])
async def test_schedulers_that_are_killed_neither_lose_nor_double_a_slot(
    shared: Backend, tmp_path: Path, tell: Tell, target: dict[str, Any]
) -> None:
    report = await race_schedulers(shared, tmp_path, slots=1000, target=target, kills=40 if FULL else 8)
    tell(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.kills > 2
    assert report.running == (1 if target is REPLACING else 1000 if target is FLOW else 0)


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("schedulers")])
async def test_the_race_catches(name: str, store_file: Backend, tmp_path: Path, tell: Tell) -> None:
    report = await race_schedulers(store_file, tmp_path, slots=300, target=JOB, mutant=name)
    assert report.problems or report.told != 300, f"{name} survived"
    tell(f"{name}: caught by {report}; {report.problems or f'{report.told} firings told of'}")


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("killed-schedulers")])
async def test_the_kills_catch(name: str, store_file: Backend, tmp_path: Path, tell: Tell) -> None:
    for attempt in range(4):  # whether a kill strikes between the two writes is a matter of luck
        folder = tmp_path / str(attempt)
        folder.mkdir()
        report = await race_schedulers(store_file, folder, slots=1000, target=JOB, kills=16, mutant=name)
        if report.problems:
            break
    assert report.problems, f"{name} survived {report.kills} kills, four times"
    tell(f"{name}: caught by {report}; {report.problems[0]}")
