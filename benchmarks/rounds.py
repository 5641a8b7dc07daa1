"""Takes the readings: round after round, every contender in each, so that a busy minute hits all alike."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import peers
from .scenarios import Contender, Part, Scenario
from .servers import Place

HERE = Path(__file__).parent
RESULTS = HERE / "results"
_MARK = "#> "  # contenders/entry.py
_PATIENCE = 1800.0

Metrics = dict[str, float]


@dataclass
class Readings:
    """What was measured: scenario → contender → one dict of metrics for each round, None where it failed."""

    part: Part
    place: str = ""
    taken: dict[str, dict[str, list[Metrics | None]]] = field(default_factory=dict)
    about: dict[str, dict[str, str]] = field(default_factory=dict)
    n: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # contenders that could not be installed
    failures: list[tuple[str, str]] = field(default_factory=list)  # of whom, and what

    def of(self, scenario: str, contender: str) -> list[Metrics | None]:
        return self.taken.get(scenario, {}).get(contender, [])


class Rounds:
    """Runs contenders as processes of their own, each in an empty folder and an empty place."""

    def __init__(self, part: Part, place: Place, folder: Path | None, say: Callable[[str], None]) -> None:
        self._part = part
        self._place = place
        self._folder = folder or RESULTS
        self._say = say
        self._commands: dict[str, list[str]] = {}
        self.readings = Readings(part, place.about)

    def take(self, scenarios: Sequence[Scenario], rounds: int, *, quick: bool, n: int | None = None) -> Readings:
        self._prepare({name for scenario in scenarios for name in scenario.contenders})
        for number in range(rounds):
            for scenario in scenarios:
                if number and scenario.once:
                    continue
                for contender in self._in_turn(scenario, number):
                    self._say(f"{self._part.title}, round {number + 1} of {rounds}: {scenario.name}, {contender.title}")
                    self._read(scenario, contender, n or (scenario.quick_n if quick else scenario.n))
        return self.readings

    def _prepare(self, names: set[str]) -> None:
        for contender in self._part.contenders:
            if contender.name in names:
                self._say(f"{self._part.title}: installing {contender.title}")
                try:
                    self._commands[contender.name] = peers.command(contender.env)
                except peers.PeersMissing as problem:
                    self.readings.missing[contender.title] = str(problem)

    def _in_turn(self, scenario: Scenario, number: int) -> list[Contender]:
        """Another one begins in every round: whoever comes first meets a colder machine."""
        there = [c for c in self._part.contenders if c.name in scenario.contenders and c.name in self._commands]
        first = number % len(there) if there else 0
        return there[first:] + there[:first]

    def _read(self, scenario: Scenario, contender: Contender, n: int) -> None:
        readings = self.readings
        readings.n[scenario.name] = n
        taken = readings.taken.setdefault(scenario.name, {}).setdefault(contender.name, [])
        metrics: Metrics = {}
        for level in scenario.levels or (0,):
            try:
                told = self._run(scenario, contender, n, level)
            except _Failed as problem:
                at = f" at {level}" if level else ""
                readings.failures.append((contender.name, f"{contender.title}, {scenario.name}{at}: {problem}"))
            else:
                readings.about[contender.name] = told["about"]
                prefix = f"c{level}_" if level else ""
                metrics |= {prefix + key: value for key, value in told["metrics"].items()}
        taken.append(metrics or None)

    def _run(self, scenario: Scenario, contender: Contender, n: int, level: int) -> dict[str, Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        # Beside the results and not in the system's temporary folder, which may be memory.
        folder = tempfile.mkdtemp(prefix=f"{scenario.name}-", dir=self._folder)
        patience = _PATIENCE + (n if scenario.timed else 0)
        script = str(HERE / "contenders" / contender.script)
        what = [scenario.name, "--n", str(n), "--dir", folder, "--url", self._place.fresh(), "--level", str(level or 1)]
        try:
            done = subprocess.run(
                [*self._commands[contender.name], script, *what], capture_output=True, text=True, timeout=patience
            )
        except subprocess.TimeoutExpired:
            raise _Failed(f"not done after {patience:.0f} s") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for line in done.stdout.splitlines():
            if line.startswith(_MARK):
                told: dict[str, Any] = json.loads(line.removeprefix(_MARK))
                return told
        raise _Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])


class _Failed(Exception):
    pass
