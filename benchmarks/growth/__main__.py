"""How the cost of a unit of work grows with use: each scenario at several sizes, relative to the smallest one.

python -m benchmarks.growth [SCENARIO …] [--store sqlite|redis|postgres] [--sizes N,N] [--rounds N] [--against SRC]

Every reading is a process of its own on an empty store. Sizes and versions alternate within a round. SRC is the `src`
folder of another version. A ratio is computed within each round; printed are its median, minimum and maximum.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from ..servers import Target, open_target

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"
RESULTS = ROOT / "benchmarks" / "results"
MARK = "#> "
STORES = ("sqlite", "redis", "postgres")


class Scenario(NamedTuple):
    module: str
    sizes: tuple[int, ...]
    unit: str


SCENARIOS = {
    "chain": Scenario("runs", (100, 1_000, 5_000), "step"),
    "fan_out": Scenario("runs", (100, 1_000, 5_000), "instance"),
    "fan_out_results": Scenario("runs", (100, 1_000, 5_000), "instance"),
    "fan_out_compensation": Scenario("runs", (100, 1_000, 5_000), "instance"),
    "fan_out_undone": Scenario("runs", (100, 1_000, 5_000), "instance"),
    "waits": Scenario("runs", (100, 1_000), "wait"),
    "queues": Scenario("queues", (1, 1_000), "job"),
    "queues_spread": Scenario("queues", (1, 1_000), "job"),
    "queues_pickup": Scenario("queues", (1, 1_000), "job"),
    "readers_own": Scenario("readers", (100, 1_000), "event"),
    "readers_one": Scenario("readers", (1, 1_000), "event"),
    "waits_resolved": Scenario("waiters", (1_000, 10_000), "wait"),
    "runs_started": Scenario("waiters", (1_000, 10_000), "run"),
    "payload": Scenario("payloads", (100, 60_000), "job"),
    "gather": Scenario("queues", (1, 10_000), "job"),
}


def execute(name: str, size: int, url: str) -> None:
    """Measure one scenario at one size in this process."""
    from .reading import Meter

    module = importlib.import_module(f".{SCENARIOS[name].module}", __package__)
    meter = Meter(url)
    asyncio.run(getattr(module, name)(meter, url, size))
    print(MARK + json.dumps(meter.found), flush=True)


def measure(name: str, size: int, source: Path, target: Target, limit_s: float) -> dict[str, float]:
    """Measure in a new process and on an empty store. Return nothing if it failed."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=f"{name}-", dir=RESULTS)
    url = target.reset() or f"sqlite:///{folder}/growth.db"
    command = [sys.executable, "-m", "benchmarks.growth", "--execute", name, str(size), url]
    environment = os.environ | {"PYTHONPATH": str(source)}
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"  {name} {size:,}: not done after {limit_s:.0f} s", flush=True)
        return {}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for line in ended.stdout.splitlines():
        if line.startswith(MARK):
            found: dict[str, float] = json.loads(line.removeprefix(MARK))
            return found
    print(f"  {name} {size:,}: {(ended.stderr.strip().splitlines() or ['no output'])[-1]}", flush=True)
    return {}


def compare(
    name: str, sizes: tuple[int, ...], sources: dict[str, Path], target: Target, args: argparse.Namespace
) -> None:
    """Measure all sizes with all versions in turn, and print the ratios to the smallest size."""
    taken: dict[tuple[str, int], list[dict[str, float]]] = {}
    for n in range(args.rounds):
        for size in sizes:
            for version, source in sorted(sources.items(), reverse=bool(n % 2)):
                taken.setdefault((version, size), []).append(measure(name, size, source, target, args.limit))
    for version in sources:
        for size in sizes:
            print_row(f"{name:20} {version:7} {size:>9,}", taken[version, size], taken[version, sizes[0]], name)


def print_row(title: str, found: list[dict[str, float]], smallest: list[dict[str, float]], name: str) -> None:
    pairs = [(one, first) for one, first in zip(found, smallest, strict=True) if one and first]
    columns = []
    for metric in pairs[0][0] if pairs else ():
        ratios = [one[metric] / first[metric] for one, first in pairs if first.get(metric)]
        middle = statistics.median(one[metric] for one, _ in pairs)
        spread = f" ({min(ratios):.2f}-{max(ratios):.2f})" if len(ratios) > 1 else ""
        columns.append(f"{metric} {middle:9,.1f}" + (f" × {statistics.median(ratios):.2f}{spread}" if ratios else ""))
    unit = SCENARIOS[name].unit
    print(f"{title}  " + (" | ".join(columns) or "no reading") + f"  (µs per {unit})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("scenario", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--store", action="append", choices=STORES, help="default sqlite; may be repeated")
    parser.add_argument("--sizes", help="sizes instead of the scenario's own, the smallest first: 100,5000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="the src folder of another version")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one reading")
    parser.add_argument("--execute", nargs=3, metavar=("NAME", "SIZE", "URL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.execute:
        execute(args.execute[0], int(args.execute[1]), args.execute[2])
        return
    sources = {"now": SOURCE} | ({"before": args.against.resolve()} if args.against else {})
    for store in args.store or ["sqlite"]:
        with open_target(store, RESULTS) as target:
            print(f"{store}: {target.about}", flush=True)
            for name in args.scenario or SCENARIOS:
                sizes = tuple(map(int, args.sizes.split(","))) if args.sizes else SCENARIOS[name].sizes
                compare(name, sizes, sources, target, args)


if __name__ == "__main__":
    main()
