"""The crash-point sweep: at every call of every store method, before it and after its reply is lost, the call fails or
the process dies there; the story must end the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from faultkit.backends import SQLITE_MEMORY, Backend
from faultkit.length import FULL
from faultkit.scenarios import SCENARIOS
from faultkit.stage import Scenario
from faultkit.sweep import EVERY, LOST, _play, sweep

from penstock.testing.faults import HOT_PATH, NoFaults

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(1200)]


SHORT = ("linear flow", "fan-out and join", "plain job with progress", "external emit")  # on every backend in CI
COMMITS_OF = ("linear flow",)  # where leases take as long as they take, just its commits are struck


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of warnings about the faults we make tell nobody anything."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
def test_a_fault_at_every_call(scenario: Scenario, backend: Backend, tell: Callable[[str], None]) -> None:
    kinds = EVERY
    methods: tuple[str, ...] = ()
    if not FULL and backend is not SQLITE_MEMORY:
        if scenario.name not in (SHORT if backend.our_clock else COMMITS_OF):
            pytest.skip("in memory in CI; everywhere with PENSTOCK_FAULTS=full")
        kinds, methods = LOST, () if backend.our_clock else ("commit",)
    swept = sweep(scenario, backend, kinds, methods=methods)
    tell(f"{scenario.name} on {backend.name}: {swept.plays} faults, {len(swept.problems)} problems")
    assert swept.problems == []
    assert swept.plays > (3 if methods else 10)


def test_every_call_of_the_hot_path_is_struck() -> None:
    """What the sweep goes over is what the scenarios call: together they call everything that running work needs."""
    called: set[str] = set()
    for scenario in SCENARIOS:
        called.update(_play(scenario, SQLITE_MEMORY, NoFaults).calls)
    reads = {"run", "read", "job", "state", "due_schedules", "next_schedule"}
    assert called >= {*HOT_PATH, *reads}
