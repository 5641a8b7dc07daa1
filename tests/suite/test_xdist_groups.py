"""Tests of one group run on one worker: tested on a small suite with the real pyproject.toml and the real conftest.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKERS = 3
# As the real suites write it: alone, in a list with other marks, on one function; always more tests than workers.
SUITE = {
    "test_a.py": """
import pytest
pytestmark = pytest.mark.xdist_group("faults")

@pytest.mark.parametrize("n", range(8))
def test_alone(note, n):
    note("faults")
""",
    "test_b.py": """
import pytest
pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(60)]

@pytest.mark.parametrize("n", range(8))
async def test_in_a_list(note, n):
    note("faults")
""",
    "test_c.py": """
import pytest

@pytest.mark.xdist_group("interop")
@pytest.mark.parametrize("n", range(8))
def test_one_function(note, n):
    note("interop")

@pytest.mark.parametrize("n", range(24))
def test_of_no_group(note, n):
    note("none")
""",
}
NOTE = """
import json
import os
import pytest

@pytest.fixture
def note(request, record_property):
    def write(group):
        with open(os.environ["GROUPS_LOG"], "a") as log:
            log.write(json.dumps([group, os.environ["PYTEST_XDIST_WORKER"], request.node.name]) + "\\n")
    return write
"""


@pytest.fixture
def small_suite(tmp_path: Path) -> Path:
    """A clone with the repository's settings and the infrastructure of its tests, and with three files of tests."""
    tests = tmp_path / "clone" / "tests"
    (tests / "small").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tests.parent)
    for file in (ROOT / "tests").glob("*.py"):
        shutil.copy(file, tests)
    (tests / "small" / "conftest.py").write_text(NOTE)
    for name, text in SUITE.items():
        (tests / "small" / name).write_text(text)
    return tests.parent


def run(clone: Path, *options: str) -> dict[str, dict[str, list[str]]]:
    """Run the small suite; return which tests of each group ran on which worker."""
    log = clone / "groups.log"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PENSTOCK"))}
    env |= {"GROUPS_LOG": str(log), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", str(WORKERS), *options]
    done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    ran: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in log.read_text().splitlines():
        group, worker, test = json.loads(line)
        ran[group][worker].append(test)
    return ran


def test_a_group_runs_on_one_worker(small_suite: Path) -> None:
    ran = run(small_suite)
    assert {group: len(workers) for group, workers in ran.items() if group != "none"} == {"faults": 1, "interop": 1}
    counts = {group: sum(map(len, workers.values())) for group, workers in ran.items()}
    assert counts == {"faults": 16, "interop": 8, "none": 24}
    assert len({worker for workers in ran.values() for worker in workers}) == WORKERS


def test_without_groups_the_suite_runs_on_several_workers(small_suite: Path) -> None:
    """Shows that the test above can fail."""
    assert len(run(small_suite, "--dist", "load")["faults"]) > 1
