"""Where the numbers came from, and their place in docs/performance.md."""

from __future__ import annotations

import hashlib
import os
import platform
from datetime import date
from pathlib import Path

from .measured import Measured
from .parts import PARTS
from .rounds import Readings
from .scenarios import Part
from .table import OURS, for_page


def _of(part: Part) -> str:
    return "" if part.name == "sqlite" else f" of {part.title}"


ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
_HOW = "(python -m benchmarks --write-docs)"
# The first part has had its marks from the beginning.
BEGIN = {p.name: f"<!-- benchmark table{_of(p)}: begin {_HOW} -->" for p in PARTS}
END = {p.name: f"<!-- benchmark table{_of(p)}: end -->" for p in PARTS}
HOW_TO_READ = "In brackets: how many times better Penstock is, as the median, least and most of the rounds."
SOURCE = "source"  # who is to blame when src was edited meanwhile


def machine() -> dict[str, str]:
    """What the readings depend on beside the code."""
    return {
        "date": date.today().isoformat(),
        "cpu": f"{os.cpu_count()} × {_processor()}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def load() -> float:
    """How many processes want a core; above the number of cores, the readings say little."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown processor"


def source() -> str:
    """A fingerprint of what is measured: readings of a source that changed meanwhile belong to no version."""
    kept = hashlib.sha256()
    for file in sorted((ROOT / "src").rglob("*.*")):
        if file.suffix in (".py", ".sql", ".lua"):
            kept.update(file.read_bytes())
    return kept.hexdigest()[:12]


def settings(readings: Readings) -> list[str]:
    """One line for each contender: what ran and how it was set; and one for each that could not run."""
    there = [readings.about[c.name] for c in readings.part.contenders if c.name in readings.about]
    lines = [f"{a['name']} {a['version']}{_sqlite(a)}: {a['settings']}." for a in there]
    return lines + [f"{title} was not measured: {why}." for title, why in readings.missing.items()]


def _sqlite(about: dict[str, str]) -> str:
    return f", SQLite {about['sqlite']}" if "sqlite" in about else ""


def unfit(readings: Readings) -> list[str]:
    """What makes readings unfit for the page: something of ours failed. A peer's failure is shown in its place."""
    return [what for who, what in readings.failures if who in (OURS, SOURCE)]


def write(readings: Readings, facts: dict[str, str], command: str, rounds: int) -> None:
    """Replaces what is between the part's marks."""
    part = readings.part
    if unfit(readings):
        raise SystemExit(f"{PAGE.name} is left as it was for {part.title}, because something of ours failed")
    begin, end = BEGIN[part.name], END[part.name]
    before, found, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{PAGE.name} has no place for the table: put back the lines {begin!r} and {end!r}")
    measured = Measured(part)
    measured.add(readings, _origin(readings, facts, command, rounds))
    whole = measured.readings()
    failed = [f"Failed: {what}" for _, what in whole.failures]
    notes = "\n".join(f"- {line}" for line in [*settings(whole), *failed])
    middle = "\n\n".join([*measured.origins(), HOW_TO_READ, for_page(whole), notes])
    middle = f"\n{middle}\n"
    PAGE.write_text(f"{before}{begin}{middle}{end}{after}", encoding="utf-8")


def _origin(readings: Readings, facts: dict[str, str], command: str, rounds: int) -> str:
    return (
        f"Measured {facts['date']} by `{command}`: {_rounds(rounds)}, {facts['cpu']}, "
        f"{facts['system']}, Python {facts['python']}, load {facts['load']}, source {facts['source']}; "
        f"{readings.place}."
    )


def _rounds(count: int) -> str:
    return "one round" if count == 1 else f"medians of {count} interleaved rounds"
