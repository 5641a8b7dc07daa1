"""The newest readings of each scenario, kept beside the code: the page's tables are made from all of them, so that one
scenario can be measured again without the hours that the others take. Each says when and of which source it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .rounds import Readings
from .scenarios import Part

FOLDER = Path(__file__).parent / "measured"


class Measured:
    """What is known of one part."""

    def __init__(self, part: Part, folder: Path = FOLDER) -> None:
        self._part = part
        self._file = folder / f"{part.name}.json"
        kept = json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}
        self._about: dict[str, dict[str, str]] = kept.get("about", {})
        self._missing: dict[str, str] = kept.get("missing", {})
        self._scenarios: dict[str, dict[str, Any]] = kept.get("scenarios", {})

    def add(self, readings: Readings, origin: str) -> None:
        """Takes these in place of what was known of their scenarios."""
        self._about |= readings.about
        came = {c.title for c in self._part.contenders if c.name in readings.about}
        self._missing = {who: why for who, why in self._missing.items() if who not in came} | readings.missing
        for name, taken in readings.taken.items():
            failures = [(who, what) for who, what in readings.failures if f", {name}" in what]
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
            whole.failures += [(who, what) for who, what in one["failures"]]
        return whole

    def origins(self) -> list[str]:
        """Where the readings came from, each with its scenarios unless there is one origin for all."""
        by_origin: dict[str, list[str]] = {}
        for scenario in self._part.scenarios:
            if (one := self._scenarios.get(scenario.name)) is not None:
                by_origin.setdefault(one["origin"], []).append(scenario.name)
        if len(by_origin) < 2:
            return list(by_origin)
        return [f"*{', '.join(names)}*: {origin}" for origin, names in by_origin.items()]

    def _save(self) -> None:
        self._file.parent.mkdir(exist_ok=True)
        kept = {"about": self._about, "missing": self._missing, "scenarios": self._scenarios}
        self._file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
