"""The simulation: thousands of seeds, each a different order of events and faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faultkit.config import FAULTS_DIR, FULL

SEEDS = int(os.environ.get("FAULTKIT_SEEDS") or (20_000 if FULL else 500))
FIRST = int(os.environ.get("FAULTKIT_FIRST_SEED") or 1)
CORES = min(os.cpu_count() or 1, 8)


def start_simulation(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "faultkit.simulate", *arguments]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.Popen(command, cwd=FAULTS_DIR, env=env, stdout=subprocess.PIPE, text=True)


def read_result(process: subprocess.Popen[str]) -> Any:
    text, _ = process.communicate()
    assert process.returncode == 0, f"the simulation itself failed: {text[-2000:]}"
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
    one, other = (start_simulation("--first", "1", "--count", "30", "--digests") for _ in range(2))
    third = start_simulation("--first", "21", "--count", "10", "--digests")
    assert read_result(one) == (digests := read_result(other))
    assert digests[20:] == read_result(third)
