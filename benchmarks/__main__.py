"""python -m benchmarks: measures every contender in the same minutes and prints a table for each kind of store."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from . import page, servers
from .parts import PARTS
from .rounds import RESULTS, Readings, Rounds
from .scenarios import Part
from .table import for_terminal


def main() -> int:
    given = _arguments()
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file has room
    rounds = given.rounds or (1 if given.quick else 5)
    kept: list[dict[str, object]] = []
    failed = False
    for part in (p for p in PARTS if not given.store or p.name in given.store):
        facts = page.machine() | {"source": page.source()}
        before = page.load()
        try:
            with console.status(part.title) as status:
                readings = _measure(part, given, rounds, status.update)
        except servers.ServerMissing as problem:
            console.print(f"[red]not measured:[/red] {part.title}: {problem}", highlight=False)
            failed = True
            continue
        facts["load"] = f"{before:.1f} before and {page.load():.1f} after"
        if page.source() != facts["source"]:
            readings.failures.append((page.SOURCE, "src was edited while it was measured: measure again"))
        _show(console, readings)
        kept.append(_record(readings, facts))
        failed |= bool(readings.failures or readings.missing)
        if given.json:
            given.json.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        if given.write_docs:
            page.write(readings, facts, _command(), rounds)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = sorted({s.name for p in PARTS for s in p.scenarios})
    stores = [p.name for p in PARTS]
    parser.add_argument("--store", action="append", choices=stores, help="measure this one only; may be given twice")
    parser.add_argument("--quick", action="store_true", help="one round of little work: does it run at all?")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--n", type=int, help="how much of it instead of the usual: 3600 for an hour of churn")
    parser.add_argument("--rounds", type=int, help="how many times to measure (5, or 1 with --quick)")
    parser.add_argument("--dir", type=Path, help="where to put the files, to measure another disk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every reading, for later comparison")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"put the tables into docs/{page.PAGE.name}; with --only, these scenarios anew",
    )
    given = parser.parse_args()
    if given.write_docs and given.quick:
        parser.error("--write-docs takes full lengths: leave out --quick")
    if given.n and len(given.only or ()) != 1:
        parser.error("--n is for one scenario: name it with --only")
    return given


def _measure(part: Part, given: argparse.Namespace, rounds: int, say: Callable[[str], None]) -> Readings:
    chosen = [s for s in part.scenarios if not given.only or s.name in given.only]
    with servers.place(part.name, given.dir or RESULTS) as place:
        return Rounds(part, place, given.dir, say).take(chosen, rounds, quick=given.quick, n=given.n)


def _show(console: Console, readings: Readings) -> None:
    for table in for_terminal(readings):
        console.print(table)
    for line in page.settings(readings):
        console.print(f"· {line}", highlight=False)
    for _, line in readings.failures:
        console.print(f"[red]failed:[/red] {line}", highlight=False)


def _record(readings: Readings, facts: dict[str, str]) -> dict[str, object]:
    return {
        "store": readings.part.name,
        "machine": facts,
        "place": readings.place,
        "contenders": readings.about,
        "missing": readings.missing,
        "scenarios": {name: {"n": readings.n[name], "readings": taken} for name, taken in readings.taken.items()},
        "failures": [what for _, what in readings.failures],
    }


def _command() -> str:
    """How this was called, without what does not matter for the numbers."""
    words = iter(sys.argv[1:])
    kept = [word for word in words if not (word in ("--json", "--dir") and next(words, None) is not None)]
    return " ".join(["python -m benchmarks", *(word for word in kept if word != "--write-docs")])


sys.exit(main())
