"""Print the test coverage: lines, branches and functions of the package, and each file of the commit path.

    make coverage                      # the whole suite; fails below a goal
    make coverage ARGS=tests/core      # a part of it, which no goal applies to
    python tools/coverage_report.py --json
    python tools/coverage_report.py --enforce

It reads .cache/coverage/coverage.json, which `coverage json` writes. A function counts as covered if one of its lines
ran. Code in SQL and Lua is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA = ROOT / ".cache" / "coverage" / "coverage.json"
GOALS = {"lines": 90.0, "branches": 85.0, "functions": 95.0}
COMMIT_PATH = (
    "commit/*.py",
    "stores/*/commit*.py",
    "worker/outcomes.py",
    "flows/decide.py",
)


@dataclass(frozen=True)
class Share:
    """How many of something ran."""

    covered: int
    total: int

    @property
    def percent(self) -> float:
        return 100 * self.covered / self.total if self.total else 100.0

    def __add__(self, other: Share) -> Share:
        return Share(self.covered + other.covered, self.total + other.total)


@dataclass(frozen=True)
class FileCoverage:
    """The coverage of one file, and the lines that did not run."""

    name: str
    lines: Share
    branches: Share
    functions: Share
    missing: tuple[int, ...]
    missing_branches: tuple[str, ...] = ()  # "12->14": from a line that ran to one that never followed it

    @property
    def is_whole(self) -> bool:
        return self.lines.covered == self.lines.total and self.branches.covered == self.branches.total


def read_files(report: Mapping[str, Any]) -> list[FileCoverage]:
    """Return the files of the package in a report of `coverage json`."""
    return [_read_file(name, found) for name, found in sorted(report["files"].items()) if "penstock/" in name]


def _read_file(name: str, found: Mapping[str, Any]) -> FileCoverage:
    summary = found["summary"]
    functions = [one["summary"] for region, one in found.get("functions", {}).items() if region]
    functions = [one for one in functions if one["num_statements"]]
    gone = set(found["missing_lines"])
    branches = [(a, b) for a, b in found.get("missing_branches", []) if a not in gone]
    return FileCoverage(
        name.rpartition("penstock/")[2] if "/penstock/" not in name else name.partition("/penstock/")[2],
        Share(summary["covered_lines"], summary["num_statements"]),
        Share(summary.get("covered_branches", 0), summary.get("num_branches", 0)),
        Share(sum(one["covered_lines"] > 0 for one in functions), len(functions)),
        tuple(found["missing_lines"]),
        tuple(f"{start}->{'exit' if end < 0 else end}" for start, end in branches),
    )


def add_up(files: Iterable[FileCoverage]) -> dict[str, Share]:
    """Return the shares of all files together."""
    shares = {kind: Share(0, 0) for kind in GOALS}
    for file in files:
        shares = {kind: share + getattr(file, kind) for kind, share in shares.items()}
    return shares


def is_commit_path(file: FileCoverage) -> bool:
    """Return whether a file is part of the commit path, of which everything should run."""
    return any(fnmatch(file.name, pattern) for pattern in COMMIT_PATH)


def print_report(files: list[FileCoverage]) -> None:
    """Print the totals with their goals, and the files of the commit path."""
    for kind, share in add_up(files).items():
        print(f"{kind:10} {share.percent:6.2f} %  {share.covered:,} of {share.total:,}  goal {GOALS[kind]:g} %")
    print("\ncommit path, goal 100 %")
    for file in filter(is_commit_path, files):
        missing = (*map(str, file.missing), *file.missing_branches)
        more = f"  missing {_shorten(missing)}" if missing else ""
        print(f"  {file.name:36} lines {file.lines.percent:6.2f} %  branches {file.branches.percent:6.2f} %{more}")


def _shorten(lines: tuple[str, ...]) -> str:
    shown = ", ".join(lines[:12])
    return shown if len(lines) <= 12 else f"{shown} and {len(lines) - 12} more"


def find_shortfalls(files: Iterable[FileCoverage]) -> list[str]:
    """Return what is below its goal: totals, and files of the commit path of which not everything ran."""
    files = list(files)
    totals = [
        f"{kind}: {share.percent:.2f} %, the goal is more than {GOALS[kind]:g} %"
        for kind, share in add_up(files).items()
        if share.percent <= GOALS[kind]
    ]
    return totals + [
        f"{file.name} is on the commit path: {_shorten((*map(str, file.missing), *file.missing_branches))} did not run"
        for file in files
        if is_commit_path(file) and not file.is_whole
    ]


def to_json(files: list[FileCoverage]) -> dict[str, Any]:
    """Return the report as JSON-safe data."""
    return {
        "totals": {kind: round(share.percent, 2) for kind, share in add_up(files).items()},
        "goals": GOALS,
        "commitPath": [
            {
                "file": file.name,
                "lines": round(file.lines.percent, 2),
                "branches": round(file.branches.percent, 2),
                "missing": list(file.missing),
                "missingBranches": list(file.missing_branches),
            }
            for file in files
            if is_commit_path(file)
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Print the test coverage.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--enforce", action="store_true", help="exit with 1 if something is below its goal")
    options = parser.parse_args()
    if not DATA.exists():
        print(f"no {DATA.relative_to(ROOT)}; run `make coverage`", file=sys.stderr)
        return 1
    files = read_files(json.loads(DATA.read_text("utf-8")))
    if options.json:
        print(json.dumps(to_json(files), indent=2))
    else:
        print_report(files)
    shortfalls = find_shortfalls(files) if options.enforce else []
    for line in shortfalls:
        print(f"below the goal: {line}", file=sys.stderr)
    return 1 if shortfalls else 0


if __name__ == "__main__":
    sys.exit(main())
