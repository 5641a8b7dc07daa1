"""Many fire one trigger at once, in two processes: one is first, the others are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from faultkit import mutants
from faultkit.backends import Backend
from faultkit.firing import race_fires
from faultkit.length import FULL

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

TRIGGERS, FIRES = (1000, 20) if FULL else (200, 10)
Tell = Callable[[str], None]


async def test_a_trigger_is_fired_once(shared: Backend, tmp_path: Path, tell: Tell) -> None:
    report = await race_fires(shared, tmp_path, triggers=TRIGGERS, fires=FIRES)
    tell(f"{shared.name}: {report}")
    assert report.problems == []
    assert (report.fired, report.resumed) == (TRIGGERS, TRIGGERS)
    assert report.refused == {"TriggerUsed": TRIGGERS * (FIRES - 1)}


@pytest.mark.parametrize("name", [name for name, _ in mutants.of("fires")])
async def test_the_race_catches(name: str, store_file: Backend, tmp_path: Path, tell: Tell) -> None:
    report = await race_fires(store_file, tmp_path, triggers=40, fires=10, mutant=name)
    assert report.fired > report.triggers, f"{name} survived"
    tell(f"{name}: caught by {report}")
