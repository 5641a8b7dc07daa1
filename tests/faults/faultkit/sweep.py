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
from .scenarios import SCENARIOS
from .stage import DeathAt, Outcome, Scenario, perform

Kind = type[FaultAt]
LOST: tuple[tuple[Kind, When], ...] = ((FaultAt, "after"), (DeathAt, "after"))
EVERY: tuple[tuple[Kind, When], ...] = ((FaultAt, "before"), (DeathAt, "before"), *LOST)


class Swept(msgspec.Struct):
    """What a sweep of one scenario did and found."""

    plays: int = 0
    methods: dict[str, int] = {}  # method -> at how many of its calls a fault struck
    problems: list[str] = []


def sweep(
    scenario: Scenario, backend: Backend, kinds: tuple[tuple[Kind, When], ...] = EVERY, stop_at: int = 5,
    methods: tuple[str, ...] = (),
) -> Swept:  # fmt: skip
    """Plays a scenario with one fault at a time, at every call of every method (of those given), until none is left to
    strike."""
    swept = Swept()
    calm = _play(scenario, backend, NoFaults)
    swept.problems += calm.problems
    for method in methods or sorted(calm.calls):
        for kind, when in kinds:
            for k, outcome in _strikes(scenario, backend, kind, method, when):
                swept.plays += 1
                swept.methods[method] = max(swept.methods.get(method, 0), k)
                swept.problems += [f"{method}#{k} {kind.__name__} {when}: {problem}" for problem in outcome.problems]
                if len(swept.problems) >= stop_at:
                    return swept
    return swept


def _strikes(
    scenario: Scenario, backend: Backend, kind: Kind, method: str, when: When
) -> Iterator[tuple[int, Outcome]]:
    k = 0
    while True:
        k += 1
        outcome = _play(scenario, backend, lambda: kind(method, k, when))  # noqa: B023
        if not outcome.is_injected:
            return
        yield k, outcome


def _play(scenario: Scenario, backend: Backend, fault: Callable[[], FaultInjector]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="penstock-sweep-") as folder:
        return perform(scenario, backend, Path(folder), fault)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutant")
    parser.add_argument("--scenario", default="")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.mutant:
        from . import mutants

        mutants.apply(options.mutant)
    plays = 0
    for scenario in SCENARIOS:
        if options.scenario in scenario.name:
            swept = sweep(scenario, SQLITE_MEMORY, stop_at=1)
            plays += swept.plays
            if swept.problems:
                print(json.dumps({"scenario": scenario.name, "plays": plays, "problems": swept.problems[:1]}))
                return
    print(json.dumps({"plays": plays, "problems": []}))


if __name__ == "__main__":
    main()
