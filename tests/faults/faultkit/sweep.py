"""The crash-point sweep as a function, and from the command line: `python -m faultkit.sweep [--mutant name]`."""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from penstock.testing.faults import FaultAt, FaultInjector, NoFaults, When

from .backends import SQLITE_MEMORY, Backend
from .scenario import DeathAt, Outcome, Scenario, run_scenario
from .scenarios import SCENARIOS

MAX_CALLS = 100_000
Kind = type[FaultAt]
LOST: tuple[tuple[Kind, When], ...] = ((FaultAt, "after"), (DeathAt, "after"))
EVERY: tuple[tuple[Kind, When], ...] = ((FaultAt, "before"), (DeathAt, "before"), *LOST)


class SweepReport(msgspec.Struct):
    """What a sweep of one scenario did, and the problems found."""

    faults: int = 0
    methods: dict[str, int] = {}  # method -> number of its calls at which a fault was injected
    problems: list[str] = []


def sweep(
    scenario: Scenario, backend: Backend, kinds: tuple[tuple[Kind, When], ...] = EVERY, stop_at: int = 5,
    methods: tuple[str, ...] = (), max_calls: dict[str, int] | None = None, strides: dict[str, int] | None = None,
) -> SweepReport:  # fmt: skip
    """Run a scenario with one fault at a time, at every call of every method (or of `methods`).

    `max_calls` is the maximum number of calls of a method, with "*" for methods that it does not name. `strides` has the same
    form: with a stride of 4, each kind of fault comes at every fourth call, and the kinds take turns.
    """
    limits, steps = max_calls or {}, strides or {"*": 1}
    report = SweepReport()
    undisturbed = run(scenario, backend, NoFaults)
    report.problems += undisturbed.problems
    for method in methods or sorted(undisturbed.calls):
        for turn, (kind, when) in enumerate(kinds):
            limit = limits.get(method, limits.get("*"))
            stride = steps.get(method, steps["*"])
            calls = range(1 + turn * stride // len(kinds), MAX_CALLS, stride)
            for k, outcome in _inject_at_each_call(scenario, backend, kind, method, when, calls, limit):
                report.faults += 1
                report.methods[method] = max(report.methods.get(method, 0), k)
                report.problems += [f"{method}#{k} {kind.__name__} {when}: {problem}" for problem in outcome.problems]
                if len(report.problems) >= stop_at:
                    return report
    return report


def _inject_at_each_call(
    scenario: Scenario, backend: Backend, kind: Kind, method: str, when: When, calls: range, limit: int | None
) -> Iterator[tuple[int, Outcome]]:
    for k in calls[:limit]:
        outcome = run(scenario, backend, lambda: kind(method, k, when))  # noqa: B023
        if not outcome.is_injected:
            return
        yield k, outcome


def run(scenario: Scenario, backend: Backend, fault: Callable[[], FaultInjector]) -> Outcome:
    """Run a scenario with a fault in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="penstock-sweep-") as folder:
        return run_scenario(scenario, backend, Path(folder), fault)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutant")
    parser.add_argument("--scenario", default="")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.mutant:
        from . import mutants

        mutants.apply(options.mutant)
    faults = 0
    for scenario in SCENARIOS:
        if options.scenario in scenario.name:
            report = sweep(scenario, SQLITE_MEMORY, stop_at=1)
            faults += report.faults
            if report.problems:
                print(json.dumps({"scenario": scenario.name, "faults": faults, "problems": report.problems[:1]}))
                return
    print(json.dumps({"faults": faults, "problems": []}))


if __name__ == "__main__":
    main()
