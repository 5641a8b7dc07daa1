"""The crash-point sweep: at every call of every store method, before or after the store executes it, the call fails or
the process dies; the scenario must end the same way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from faultkit.backends import SQLITE_MEMORY, Backend
from faultkit.config import FULL
from faultkit.scenario import Scenario
from faultkit.scenarios import SCENARIOS
from faultkit.sweep import EVERY, LOST, run, sweep

from penstock.testing.faults import HOT_PATH, NoFaults

# At full length most of the time is spent waiting for leases of servers: the scenarios run next to the other suites.
pytestmark = [pytest.mark.timeout(1200), *(() if FULL else (pytest.mark.xdist_group("faults"),))]


SHORT = ("linear flow", "fan-out and join", "plain job with progress", "external emit")  # on every backend in CI
LONG = ("child runs", "cancelled parent")  # in CI, faults are injected only at their commits
COMMITS_OF = ("linear flow",)  # on stores whose leases take real time, faults are injected only at its commits
CI_STRIDES = {"commit": 8, "*": 16}  # of four kinds of fault, one at every second commit and at every fourth other call
CI_SERVER_STRIDES = {"*": 4}
# At full length, such a store has a fault after each of its first commits and after the first call of every other method:
# each takes seconds, and the statements before a commit are the same as in the stores whose time is virtual.
SERVER_CALLS = {"commit": 6, "*": 1}


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Disable the thousands of warnings about injected faults."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
def test_a_fault_at_every_call(scenario: Scenario, backend: Backend, show: Callable[[str], None]) -> None:
    kinds, max_calls = EVERY, None
    methods: tuple[str, ...] = ()
    if not FULL and backend is not SQLITE_MEMORY:
        if scenario.name not in (SHORT if backend.has_virtual_time else COMMITS_OF):
            pytest.skip("in memory in CI; everywhere with PENSTOCK_FAULTS=full")
        kinds, methods = LOST, () if backend.has_virtual_time else ("commit",)
    elif not FULL and scenario.name in LONG:
        methods = ("commit",)
    elif not backend.has_virtual_time:
        kinds, max_calls = LOST, SERVER_CALLS
    strides = CI_STRIDES if backend.has_virtual_time else CI_SERVER_STRIDES
    report = sweep(scenario, backend, kinds, methods=methods, max_calls=max_calls, strides=None if FULL else strides)
    show(f"{scenario.name} on {backend.name}: {report.faults} faults, {len(report.problems)} problems")
    assert report.problems == []
    assert report.faults > (1 if methods else 4)


def test_every_call_of_the_hot_path_is_covered() -> None:
    """The sweep covers the calls that the scenarios make: together they make every call that running work needs."""
    called: set[str] = set()
    for scenario in SCENARIOS:
        called.update(run(scenario, SQLITE_MEMORY, NoFaults).calls)
    reads = {"run", "read", "job", "state", "due_schedules", "next_schedule"}
    assert called >= {*HOT_PATH, *reads}
