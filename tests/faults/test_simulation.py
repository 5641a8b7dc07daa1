"""The simulation: thousands of seeds, each a different order of events and faults."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faultkit.config import FULL
from faultkit.fork_server import start

SEEDS = int(os.environ.get("FAULTKIT_SEEDS") or (20_000 if FULL else 48))
FIRST = int(os.environ.get("FAULTKIT_FIRST_SEED") or 1)
CORES = min(os.cpu_count() or 1, 8)


def start_simulation(*arguments: str) -> Any:
    return start("simulate", *arguments)


def read_result(process: Any) -> Any:
    text, _ = process.communicate()
    assert text, "the simulation itself failed, see its standard error"
    return json.loads(text)


@pytest.mark.xdist_group("faults")
@pytest.mark.timeout(3600)
def test_no_seed_breaks_a_rule(show: Callable[[str], None]) -> None:
    share = -(-SEEDS // CORES)
    parts = [start_simulation("--first", str(FIRST + n * share), "--count", str(share)) for n in range(CORES)]
    results = [read_result(part) for part in parts]
    totals: Counter[str] = Counter()
    for part in results:
        totals.update(part["totals"])
    seeds, seconds = sum(part["seeds"] for part in results), max(part["seconds"] for part in results)
    show(f"{seeds} seeds in {seconds:.0f} s on {CORES} cores: {dict(totals)}; 95 % bound: {3 / seeds:.2%} per seed")
    failures = [failure for part in results for failure in part["failures"]]
    assert failures == [], "run one again with: cd tests/faults && python -m faultkit.simulate --first <seed> --count 1"
    assert seeds >= SEEDS


def test_a_seed_runs_the_same_way_twice(tmp_path: Path) -> None:
    count, last = (30, 10) if FULL else (12, 4)
    one, other = (start_simulation("--first", "1", "--count", str(count), "--digests") for _ in range(2))
    third = start_simulation("--first", str(1 + count - last), "--count", str(last), "--digests")
    assert read_result(one) == (digests := read_result(other))
    assert digests[-last:] == read_result(third)
