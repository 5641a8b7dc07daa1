"""Measure Penstock and other engines in interleaved rounds and print one table per store."""

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
from .table import to_terminal_tables


def main() -> int:
    args = _arguments()
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file has room
    rounds = args.rounds or (1 if args.quick else 5)
    records: list[dict[str, object]] = []
    failed = False
    for part in (p for p in PARTS if not args.store or p.name in args.store):
        facts = page.describe_machine() | {"source": page.fingerprint_source()}
        before = page.load_average()
        try:
            with console.status(part.title) as status:
                readings = _measure(part, args, rounds, status.update)
        except servers.ServerMissing as problem:
            console.print(f"[red]not measured:[/red] {part.title}: {problem}", highlight=False)
            failed = True
            continue
        facts["load"] = f"{before:.1f} before and {page.load_average():.1f} after"
        if page.fingerprint_source() != facts["source"]:
            readings.failures.append((page.SOURCE, "src changed during the measurement: measure again"))
        _show(console, readings)
        records.append(_record(readings, facts))
        failed |= bool(readings.failures or readings.missing)
        if args.json:
            args.json.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
        if args.write_docs:
            page.write_tables(readings, facts, _command(), rounds)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = sorted({s.name for p in PARTS for s in p.scenarios})
    stores = [p.name for p in PARTS]
    parser.add_argument("--store", action="append", choices=stores, help="measure only this store; may be repeated")
    parser.add_argument("--quick", action="store_true", help="one short round, to check that everything runs")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--n", type=int, help="override the size of the scenario: 3600 for an hour of churn")
    parser.add_argument("--rounds", type=int, help="number of rounds (default 5, or 1 with --quick)")
    parser.add_argument("--dir", type=Path, help="folder for the databases, to measure another disk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every reading to this file")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help=f"write the tables to docs/{page.PAGE.name}; with --only, replace these scenarios only",
    )
    args = parser.parse_args()
    if args.write_docs and args.quick:
        parser.error("--write-docs cannot be used with --quick: it needs the full sizes")
    if args.n and len(args.only or ()) != 1:
        parser.error("--n needs exactly one --only")
    return args


def _measure(part: Part, args: argparse.Namespace, rounds: int, show_status: Callable[[str], None]) -> Readings:
    chosen = [s for s in part.scenarios if not args.only or s.name in args.only]
    with servers.open_target(part.name, args.dir or RESULTS) as target:
        return Rounds(part, target, args.dir, show_status).measure(chosen, rounds, quick=args.quick, n=args.n)


def _show(console: Console, readings: Readings) -> None:
    for table in to_terminal_tables(readings):
        console.print(table)
    for line in page.list_settings(readings):
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
    """Return the command line without the options that do not affect the numbers."""
    words = iter(sys.argv[1:])
    options = [word for word in words if not (word in ("--json", "--dir") and next(words, None) is not None)]
    return " ".join(["python -m benchmarks", *(word for word in options if word != "--write-docs")])


sys.exit(main())
