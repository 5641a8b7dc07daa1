"""Write the tables, with the facts about the measurement, to docs/performance.md."""

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
from .table import OURS, to_markdown


def _marker_suffix(part: Part) -> str:
    return "" if part.name == "sqlite" else f" of {part.title}"


ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
_HOW = "(python -m benchmarks --write-docs)"
# The markers of SQLite have no suffix.
BEGIN = {p.name: f"<!-- benchmark table{_marker_suffix(p)}: begin {_HOW} -->" for p in PARTS}
END = {p.name: f"<!-- benchmark table{_marker_suffix(p)}: end -->" for p in PARTS}
HOW_TO_READ = "In brackets: how many times better Penstock is (median, minimum–maximum of the rounds)."
SOURCE = "source"  # stands for the contender in a failure when src changed during the measurement


def describe_machine() -> dict[str, str]:
    """Return the facts about this machine that affect the readings."""
    return {
        "date": date.today().isoformat(),
        "cpu": f"{os.cpu_count()} × {_processor()}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def load_average() -> float:
    """Return the load average. Readings taken with more load than cores are not reliable."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown processor"


def fingerprint_source() -> str:
    """Return a hash of src, to detect changes during the measurement."""
    digest = hashlib.sha256()
    for file in sorted((ROOT / "src").rglob("*.*")):
        if file.suffix in (".py", ".sql", ".lua"):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def list_settings(readings: Readings) -> list[str]:
    """Return one line per contender: its version and settings, or why it was not measured."""
    measured = [readings.about[c.name] for c in readings.part.contenders if c.name in readings.about]
    lines = [f"{a['name']} {a['version']}{_sqlite(a)}: {a['settings']}." for a in measured]
    return lines + [f"{title} was not measured: {why}." for title, why in readings.missing.items()]


def _sqlite(about: dict[str, str]) -> str:
    return f", SQLite {about['sqlite']}" if "sqlite" in about else ""


def find_own_failures(readings: Readings) -> list[str]:
    """Return the failures that prevent writing the page: those of Penstock. The table shows those of peers."""
    return [error for contender, error in readings.failures if contender in (OURS, SOURCE)]


def write_tables(readings: Readings, facts: dict[str, str], command: str, rounds: int) -> None:
    """Replace the text between the markers of the part."""
    part = readings.part
    if find_own_failures(readings):
        raise SystemExit(f"{PAGE.name} not changed for {part.title}: a measurement of Penstock failed")
    begin, end = BEGIN[part.name], END[part.name]
    before, found, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{PAGE.name} lacks the markers of the table: add the lines {begin!r} and {end!r}")
    measured = Measured(part)
    measured.add(readings, _origin(readings, facts, command, rounds))
    whole = measured.readings()
    failed = [f"Failed: {error}" for _, error in whole.failures]
    notes = "\n".join(f"- {line}" for line in [*list_settings(whole), *failed])
    middle = "\n\n".join([*measured.origins(), HOW_TO_READ, to_markdown(whole), notes])
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
