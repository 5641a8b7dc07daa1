"""Measure in rounds. Each round runs every contender, so that a busy minute affects all of them."""

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
from .servers import Target

HERE = Path(__file__).parent
RESULTS = HERE / "results"
_MARK = "#> "  # contenders/entry.py
_TIMEOUT_S = 1800.0

Metrics = dict[str, float]


@dataclass
class Readings:
    """The readings: scenario → contender → one dict of metrics per round, or None if it failed."""

    part: Part
    place: str = ""
    taken: dict[str, dict[str, list[Metrics | None]]] = field(default_factory=dict)
    about: dict[str, dict[str, str]] = field(default_factory=dict)
    n: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # contenders that could not be installed
    failures: list[tuple[str, str]] = field(default_factory=list)  # contender, error

    def of(self, scenario: str, contender: str) -> list[Metrics | None]:
        return self.taken.get(scenario, {}).get(contender, [])


class Rounds:
    """Run each contender as a process, with an empty folder and an empty database."""

    def __init__(self, part: Part, target: Target, folder: Path | None, show_status: Callable[[str], None]) -> None:
        self._part = part
        self._target = target
        self._folder = folder or RESULTS
        self._show_status = show_status
        self._commands: dict[str, list[str]] = {}
        self.readings = Readings(part, target.about)

    def measure(self, scenarios: Sequence[Scenario], rounds: int, *, quick: bool, n: int | None = None) -> Readings:
        self._prepare({name for scenario in scenarios for name in scenario.contenders})
        for number in range(rounds):
            for scenario in scenarios:
                if number and scenario.once:
                    continue
                for contender in self._rotate(scenario, number):
                    at = f"{self._part.title}, round {number + 1} of {rounds}"
                    self._show_status(f"{at}: {scenario.name}, {contender.title}")
                    self._measure_once(scenario, contender, n or (scenario.quick_n if quick else scenario.n))
        return self.readings

    def _prepare(self, names: set[str]) -> None:
        for contender in self._part.contenders:
            if contender.name in names:
                self._show_status(f"{self._part.title}: installing {contender.title}")
                try:
                    self._commands[contender.name] = peers.command(contender.env)
                except peers.PeersMissing as problem:
                    self.readings.missing[contender.title] = str(problem)

    def _rotate(self, scenario: Scenario, number: int) -> list[Contender]:
        """Return the contenders, starting with another one in each round: the first one runs on a colder machine."""
        present = [c for c in self._part.contenders if c.name in scenario.contenders and c.name in self._commands]
        first = number % len(present) if present else 0
        return present[first:] + present[:first]

    def _measure_once(self, scenario: Scenario, contender: Contender, n: int) -> None:
        readings = self.readings
        readings.n[scenario.name] = n
        taken = readings.taken.setdefault(scenario.name, {}).setdefault(contender.name, [])
        metrics: Metrics = {}
        for level in scenario.levels or (0,):
            try:
                report = self._run(scenario, contender, n, level)
            except _Failed as problem:
                at = f" at {level}" if level else ""
                readings.failures.append((contender.name, f"{contender.title}, {scenario.name}{at}: {problem}"))
            else:
                readings.about[contender.name] = report["about"]
                prefix = f"c{level}_" if level else ""
                metrics |= {prefix + key: value for key, value in report["metrics"].items()}
        taken.append(metrics or None)

    def _run(self, scenario: Scenario, contender: Contender, n: int, level: int) -> dict[str, Any]:
        self._folder.mkdir(parents=True, exist_ok=True)
        # In the results folder: the system's temporary folder may be in memory.
        folder = tempfile.mkdtemp(prefix=f"{scenario.name}-", dir=self._folder)
        timeout = _TIMEOUT_S + (n if scenario.timed else 0)
        script = str(HERE / "contenders" / contender.script)
        options = ["--n", str(n), "--dir", folder, "--url", self._target.reset(), "--level", str(level or 1)]
        try:
            done = subprocess.run(
                [*self._commands[contender.name], script, scenario.name, *options],
                capture_output=True, text=True, timeout=timeout,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise _Failed(f"not done after {timeout:.0f} s") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        for line in done.stdout.splitlines():
            if line.startswith(_MARK):
                report: dict[str, Any] = json.loads(line.removeprefix(_MARK))
                return report
        raise _Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])


class _Failed(Exception):
    pass
