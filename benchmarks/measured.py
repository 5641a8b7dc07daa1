"""The newest readings of each scenario, stored as JSON in `measured/`. The tables in the docs use all of them, so that
one scenario can be measured again without the others. Each entry has its date and a hash of the source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .rounds import Readings
from .scenarios import Part

FOLDER = Path(__file__).parent / "measured"


class Measured:
    """The stored readings of one part."""

    def __init__(self, part: Part, folder: Path = FOLDER) -> None:
        self._part = part
        self._file = folder / f"{part.name}.json"
        saved = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        self._about: dict[str, dict[str, str]] = saved.get("about", {})
        self._missing: dict[str, str] = saved.get("missing", {})
        self._scenarios: dict[str, dict[str, Any]] = saved.get("scenarios", {})

    def add(self, readings: Readings, origin: str) -> None:
        """Replace the stored readings of these scenarios and save the file."""
        self._about |= readings.about
        measured = {c.title for c in self._part.contenders if c.name in readings.about}
        self._missing = {title: why for title, why in self._missing.items() if title not in measured} | readings.missing
        for name, taken in readings.taken.items():
            failures = [(contender, error) for contender, error in readings.failures if f", {name}" in error]
            self._scenarios[name] = {
                "origin": origin, "n": readings.n[name], "failures": failures, "readings": taken,
            }  # fmt: skip
        known = {scenario.name for scenario in self._part.scenarios}
        self._scenarios = {name: one for name, one in self._scenarios.items() if name in known}
        self._save()

    def readings(self) -> Readings:
        whole = Readings(self._part, about=self._about, missing=self._missing)
        for name, one in self._scenarios.items():
            whole.taken[name], whole.n[name] = one["readings"], one["n"]
            whole.failures += [(contender, error) for contender, error in one["failures"]]
        return whole

    def origins(self) -> list[str]:
        """Return where the readings came from. Each origin lists its scenarios, unless all share one origin."""
        by_origin: dict[str, list[str]] = {}
        for scenario in self._part.scenarios:
            if (one := self._scenarios.get(scenario.name)) is not None:
                by_origin.setdefault(one["origin"], []).append(scenario.name)
        if len(by_origin) < 2:
            return list(by_origin)
        return [f"*{', '.join(names)}*: {origin}" for origin, names in by_origin.items()]

    def _save(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        saved = {"about": self._about, "missing": self._missing, "scenarios": self._scenarios}
        self._file.write_text(json.dumps(saved, indent=1, sort_keys=True) + "\n", encoding="utf-8")
