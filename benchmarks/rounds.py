"""Takes the readings: round after round, every contender in each, so that a busy minute hits all alike."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .scenarios import CONTENDERS, Contender, Scenario

HERE = Path(__file__).parent
RESULTS = HERE / "results"
_MARK = "#> "  # contenders/entry.py
_PATIENCE = 1800.0

Metrics = dict[str, float]


@dataclass
class Readings:
    """What was measured: scenario → contender → one dict of metrics for each round, None where it failed."""

    taken: dict[str, dict[str, list[Metrics | None]]] = field(default_factory=dict)
    about: dict[str, dict[str, str]] = field(default_factory=dict)
    n: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def of(self, scenario: str, contender: str) -> list[Metrics | None]:
        return self.taken.get(scenario, {}).get(contender, [])


class Rounds:
    """Runs contenders as processes of their own, each in an empty folder."""

    def __init__(self, peers: Path | None, folder: Path | None, say: Callable[[str], None]) -> None:
        self._peers = peers
        self._folder = folder or RESULTS
        self._say = say
        self.readings = Readings()

    def take(self, scenarios: Sequence[Scenario], rounds: int, *, quick: bool) -> Readings:
        for number in range(rounds):
            for scenario in scenarios:
                if number and scenario.once:
                    continue
                for contender in self._in_turn(scenario, number):
                    self._say(f"round {number + 1} of {rounds}: {scenario.name}, {contender.title}")
                    self._read(scenario, contender, scenario.quick_n if quick else scenario.n)
        return self.readings

    def _in_turn(self, scenario: Scenario, number: int) -> list[Contender]:
        """Another one begins in every round: whoever comes first meets a colder machine."""
        there = [c for c in CONTENDERS if c.name in scenario.contenders and (self._peers or not c.peer)]
        first = number % len(there) if there else 0
        return there[first:] + there[:first]

    def _read(self, scenario: Scenario, contender: Contender, n: int) -> None:
        readings = self.readings
        readings.n[scenario.name] = n
        taken = readings.taken.setdefault(scenario.name, {}).setdefault(contender.name, [])
        try:
            told = self._run(scenario, contender, n)
        except _Failed as problem:
            readings.failures.append(f"{contender.title}, {scenario.name}: {problem}")
            taken.append(None)
        else:
            readings.about[contender.name] = told["about"]
            taken.append(told["metrics"])

    def _run(self, scenario: Scenario, contender: Contender, n: int) -> dict[str, Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        # Beside the results and not in the system's temporary folder, which may be memory.
        folder = tempfile.mkdtemp(prefix=f"{scenario.name}-", dir=self._folder)
        python = str(self._peers) if contender.peer else sys.executable
        script = str(HERE / "contenders" / contender.script)
        try:
            done = subprocess.run(
                [python, script, scenario.name, "--n", str(n), "--dir", folder],
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise _Failed(f"not done after {_PATIENCE:.0f} s") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for line in done.stdout.splitlines():
            if line.startswith(_MARK):
                told: dict[str, Any] = json.loads(line.removeprefix(_MARK))
                return told
        raise _Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])


class _Failed(Exception):
    pass
