"""Compare this checkout with another one: each round runs both, so that a busy minute affects both.

    python -m benchmarks.against ../before --store sqlite --only jobs --only flows3

The other checkout needs its own `.venv` (`make setup`). A ratio above 1 means that this checkout is better.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from . import servers
from .parts import PARTS
from .rounds import HERE, RESULTS
from .scenarios import Metric, Part, Scenario

_MARK = "#> "  # contenders/entry.py
_TIMEOUT_S = 900.0

Metrics = dict[str, float]


def main() -> None:
    args = _arguments()
    for part in (p for p in PARTS if not args.store or p.name in args.store):
        with servers.open_target(part.name, RESULTS) as target:
            for scenario in (s for s in part.scenarios if s.name in args.only and "penstock" in s.contenders):
                for level in (scenario.levels[:: args.skip_levels or 1]) or (0,):
                    _compare(part, scenario, level, target, args.other, args.rounds, args.n)


def _compare(
    part: Part, scenario: Scenario, level: int, target: servers.Target, other: Path, rounds: int, n: int | None
) -> None:
    taken: list[tuple[Metrics, Metrics]] = []
    for number in range(rounds):
        places = [HERE.parent, other] if number % 2 else [other, HERE.parent]
        found = {place: _run(place, part, scenario, level, target, n or scenario.n) for place in places}
        taken.append((found[HERE.parent], found[other]))
    for metric in scenario.metrics:
        key = metric.key.removeprefix(f"c{level}_")
        if all(key in ours and key in theirs for ours, theirs in taken):
            _print_ratio(f"{part.name:8} {scenario.name:14} {level or '':>4} {metric.title}", metric, key, taken)


def _print_ratio(title: str, metric: Metric, key: str, taken: list[tuple[Metrics, Metrics]]) -> None:
    pairs = [(ours[key], theirs[key]) for ours, theirs in taken if ours[key] and theirs[key]]
    ratios = [ours / theirs if metric.more_is_better else theirs / ours for ours, theirs in pairs]
    if ratios:
        here, there = (statistics.median(values) for values in zip(*pairs, strict=True))
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(
            f"{title:75} {here:10,.1f} {there:10,.1f} {metric.unit:4} × {statistics.median(ratios):.2f} ({spread})",
            flush=True,
        )


def _run(place: Path, part: Part, scenario: Scenario, level: int, target: servers.Target, n: int) -> Metrics:
    """Run a scenario with the program and the environment of one checkout. Return no metrics if it fails."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=f"{scenario.name}-", dir=RESULTS)
    script = place / "benchmarks" / "contenders" / part.contender("penstock").script
    command = [str(place / ".venv/bin/python"), str(script), scenario.name, "--n", str(n), "--dir", folder]
    try:
        done = subprocess.run(
            [*command, "--url", target.reset(), "--level", str(level or 1)],
            capture_output=True, text=True, timeout=_TIMEOUT_S,
        )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            metrics: Metrics = json.loads(line.removeprefix(_MARK))["metrics"]
            return metrics
    print(f"{place}, {scenario.name}: {(done.stderr.strip().splitlines() or ['no output'])[-1]}", flush=True)
    return {}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("--store", action="append", choices=[p.name for p in PARTS], help="only this store; repeatable")
    parser.add_argument("--only", action="append", default=[], help="a scenario; repeatable")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (default 5)")
    parser.add_argument("--n", type=int, help="override the size of the scenarios")
    parser.add_argument("--skip-levels", type=int, help="measure every nth concurrency only")
    args = parser.parse_args()
    args.other = args.other.resolve()
    args.only = args.only or ["jobs", "flows3"]
    return args


if __name__ == "__main__":
    main()
