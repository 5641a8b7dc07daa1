"""`python -m benchmarks.against` compares the throughput before and after a change."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEFORE = """
print('#> {"metrics": {"drain_per_s": 0.5, "enqueue_per_s": 2.0, "whole_per_s": 1.0}}')
"""


@pytest.mark.spec("004-8.4")
def test_the_rates_of_two_checkouts_are_compared(tmp_path: Path) -> None:
    script = tmp_path / "benchmarks" / "contenders" / "penstock_sqlite.py"
    script.parent.mkdir(parents=True)
    script.write_text(BEFORE, "utf-8")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    arguments = ["--store", "sqlite", "--only", "jobs", "--rounds", "1", "--n", "20"]
    command = [sys.executable, "-m", "benchmarks.against", str(tmp_path), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    rows = re.findall(r"([\d,.]+) +([\d,.]+) /s +× ([\d,.]+) ", done.stdout)
    found = [[float(number.replace(",", "")) for number in row] for row in rows]
    assert [there for _, there, _ in found] == [0.5, 2.0, 1.0], done.stderr
    for here, there, ratio in found:
        assert here > there  # a store that completes one job a second is no store
        assert ratio == pytest.approx(here / there, rel=0.1)
