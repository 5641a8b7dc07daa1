"""Where the numbers came from, and their place in docs/performance.md."""

from __future__ import annotations

import hashlib
import os
import platform
from datetime import date
from pathlib import Path

from .rounds import Readings
from .scenarios import CONTENDERS
from .table import for_page

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
BEGIN = "<!-- benchmark table: begin (python -m benchmarks --write-docs) -->"
END = "<!-- benchmark table: end -->"


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
    """One line for each contender: what ran and how it was set."""
    there = [readings.about[c.name] for c in CONTENDERS if c.name in readings.about]
    return [f"{a['name']} {a['version']}, SQLite {a['sqlite']}: {a['settings']}." for a in there]


def write(readings: Readings, facts: dict[str, str], command: str, rounds: int) -> None:
    """Replaces what is between the marks; a page is only made of whole and sound readings."""
    if readings.failures:
        raise SystemExit(f"{PAGE.name} is left as it was, because something failed")
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} has no place for the table: put back the lines {BEGIN!r} and {END!r}")
    origin = (
        f"Measured {facts['date']} by `{command}`: medians of {rounds} interleaved rounds, {facts['cpu']}, "
        f"{facts['system']}, Python {facts['python']}, load {facts['load']}, source {facts['source']}. "
        "In brackets: how many times better Penstock is, as the median, least and most of the rounds."
    )
    notes = "\n".join(f"- {line}" for line in settings(readings))
    middle = f"\n{origin}\n\n{for_page(readings)}\n\n{notes}\n"
    PAGE.write_text(f"{before}{begin}{middle}{end}{after}", encoding="utf-8")
