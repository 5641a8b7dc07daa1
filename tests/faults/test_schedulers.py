"""Five schedulers in three processes and hundreds of slots: each slot fires once, even if schedulers are killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faultkit import mutants
from faultkit.backends import Backend
from faultkit.config import FULL
from faultkit.race_schedulers import race_schedulers

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(300)]

JOB: dict[str, Any] = {"queue": "ticks"}
FLOW: dict[str, Any] = {"flow": "tick"}
REPLACING: dict[str, Any] = {"flow": "tick", "overlap": "replace"}
SLOTS = 1000 if FULL else 80
Show = Callable[[str], None]


@pytest.mark.parametrize("target", [JOB, FLOW], ids=["job", "flow"])
async def test_five_schedulers_fire_each_slot_once(
    shared: Backend, tmp_path: Path, show: Show, target: dict[str, Any]
) -> None:
    report = await race_schedulers(shared, tmp_path, slots=SLOTS, target=target)
    show(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.reported == SLOTS  # no scheduler reports a slot that another one fired


@pytest.mark.parametrize("target", [JOB, FLOW, REPLACING], ids=["job", "flow", "replace"])
async def test_killed_schedulers_neither_lose_nor_repeat_a_slot(
    shared: Backend, tmp_path: Path, show: Show, target: dict[str, Any]
) -> None:
    report = await race_schedulers(shared, tmp_path, slots=SLOTS, target=target, kills=40 if FULL else 4)  # in pairs
    show(f"{shared.name}: {report}")
    assert report.problems == []
    assert report.kills > (20 if FULL else 0)  # on a busy machine, some have ended before
    assert report.running == (1 if target is REPLACING else SLOTS if target is FLOW else 0)


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("schedulers")])
async def test_race_catches(name: str, store_file: Backend, tmp_path: Path, show: Show) -> None:
    report = await race_schedulers(store_file, tmp_path, slots=300, target=JOB, mutant=name)
    assert report.problems or report.reported != 300, f"{name} survived"
    show(f"{name}: caught by {report}; {report.problems or f'{report.reported} firings reported'}")


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("killed-schedulers")])
async def test_kills_catch(name: str, store_file: Backend, tmp_path: Path, show: Show) -> None:
    for attempt in range(4):  # a kill between the two writes is a matter of luck
        folder = tmp_path / str(attempt)
        folder.mkdir()
        report = await race_schedulers(store_file, folder, slots=300, target=JOB, kills=16, mutant=name)
        if report.problems:
            break
    assert report.problems, f"{name} survived {report.kills} kills, four times"
    show(f"{name}: caught by {report}; {report.problems[0]}")
