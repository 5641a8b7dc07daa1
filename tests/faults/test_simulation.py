"""The simulation: thousands of seeds, each a small world in which everything goes wrong in an order of its own."""

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
from faultkit.length import FULL, HERE

SEEDS = int(os.environ.get("FAULTKIT_SEEDS") or (20_000 if FULL else 500))
FIRST = int(os.environ.get("FAULTKIT_FIRST_SEED") or 1)
CORES = min(os.cpu_count() or 1, 8)


def simulate(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "faultkit.simulate", *arguments]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.Popen(command, cwd=HERE, env=env, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> Any:
    text, _ = process.communicate()
    assert process.returncode == 0, f"the simulation itself failed: {text[-2000:]}"
    return json.loads(text)


@pytest.mark.xdist_group("faults")
@pytest.mark.timeout(3600)
def test_no_seed_breaks_a_rule(tell: Callable[[str], None]) -> None:
    share = -(-SEEDS // CORES)
    parts = [simulate("--first", str(FIRST + n * share), "--count", str(share)) for n in range(CORES)]
    answers = [answer(part) for part in parts]
    totals: Counter[str] = Counter()
    for part in answers:
        totals.update(part["totals"])
    played, seconds = sum(part["played"] for part in answers), max(part["seconds"] for part in answers)
    tell(f"{played} seeds in {seconds:.0f} s on {CORES} cores: {dict(totals)}; 95 % bound: {3 / played:.2%} a seed")
    failures = [failure for part in answers for failure in part["failures"]]
    assert failures == [], (
        "play one again with: cd tests/faults && python -m faultkit.simulate --first <seed> --count 1"
    )
    assert played >= SEEDS


def test_a_seed_plays_the_same_way_twice(tmp_path: Path) -> None:
    one, other = (simulate("--first", "1", "--count", "30", "--digests") for _ in range(2))
    third = simulate("--first", "21", "--count", "10", "--digests")
    assert answer(one) == (digests := answer(other))
    assert digests[20:] == answer(third)
