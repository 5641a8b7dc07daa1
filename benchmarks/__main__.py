"""python -m benchmarks: measures every contender in the same minutes and prints one table."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from . import page, peers
from .rounds import Readings, Rounds
from .scenarios import SCENARIOS, Scenario
from .table import for_terminal


def main() -> int:
    given = _arguments()
    console = Console()
    chosen = [s for s in SCENARIOS if not given.only or s.name in given.only]
    rounds = given.rounds or (1 if given.quick else 5)
    facts = page.machine() | {"source": page.source()}
    before = page.load()
    with console.status("installing the peers") as status:
        try:
            python = peers.python()
        except peers.PeersMissing as problem:
            console.print(f"The peers could not be installed, measuring without them: {problem}")
            python = None
        readings = Rounds(python, given.dir, status.update).take(chosen, rounds, quick=given.quick)
    facts["load"] = f"{before:.1f} before and {page.load():.1f} after"
    if page.source() != facts["source"]:
        readings.failures.append("src was edited while it was measured: measure again")
    console.print(for_terminal(readings))
    for line in page.settings(readings):
        console.print(f"· {line}", highlight=False)
    for line in readings.failures:
        console.print(f"[red]failed:[/red] {line}", highlight=False)
    if given.json:
        _save(given.json, readings, facts, chosen)
    if given.write_docs:
        page.write(readings, facts, _command(), rounds)
    return 1 if readings.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [s.name for s in SCENARIOS]
    parser.add_argument("--quick", action="store_true", help="one round of little work: does it run at all?")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--rounds", type=int, help="how many times to measure (5, or 1 with --quick)")
    parser.add_argument("--dir", type=Path, help="where to put the files, to measure another disk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every reading, for later comparison")
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into docs/{page.PAGE.name}")
    given = parser.parse_args()
    if given.write_docs and (given.quick or given.only):
        parser.error("--write-docs takes everything at full length: leave out --quick and --only")
    return given


def _save(file: Path, readings: Readings, facts: dict[str, str], chosen: list[Scenario]) -> None:
    kept = {
        "machine": facts,
        "contenders": readings.about,
        "scenarios": {s.name: {"n": readings.n[s.name], "readings": readings.taken[s.name]} for s in chosen},
        "failures": readings.failures,
    }
    file.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def _command() -> str:
    """How this was called, without what does not matter for the numbers."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if not (word in ("--json", "--dir") and next(words, None) is not None)]
    return " ".join(["python -m benchmarks", *(word for word in kept if word != "--write-docs")])


sys.exit(main())
