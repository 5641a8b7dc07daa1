"""Many calls in two processes fire one trigger at the same time: one wins, the others get an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit import mutants
from faultkit.backends import Backend
from faultkit.config import FULL
from faultkit.race_triggers import race_triggers

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

TRIGGERS, FIRES = (1000, 20) if FULL else (50, 10)
Show = Callable[[str], None]


async def test_a_trigger_is_fired_once(shared: Backend, tmp_path: Path, show: Show) -> None:
    report = await race_triggers(shared, tmp_path, triggers=TRIGGERS, fires=FIRES)
    show(f"{shared.name}: {report}")
    assert report.problems == []
    assert (report.fired, report.resumed) == (TRIGGERS, TRIGGERS)
    assert report.refused == {"TriggerUsed": TRIGGERS * (FIRES - 1)}


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("fires")])
async def test_race_catches(name: str, store_file: Backend, tmp_path: Path, show: Show) -> None:
    report = await race_triggers(store_file, tmp_path, triggers=40, fires=10, mutant=name)
    assert report.fired > report.triggers, f"{name} survived"
    show(f"{name}: caught by {report}")
