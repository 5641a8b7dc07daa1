"""README, CONTRIBUTING and the Makefile agree on targets and numbers."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_contributing_and_the_help_name_every_target() -> None:
    phony = re.search(r"^\.PHONY: (.+)$", read("Makefile"), flags=re.M)
    assert phony is not None
    targets = set(phony[1].split()) - {"help"}
    assert set(re.findall(r'@echo "make (\w+)', read("Makefile"))) == targets
    assert set(re.findall(r"^make (\w+)", read("CONTRIBUTING.md"), flags=re.M)) == targets


def test_the_number_of_test_processes_agrees() -> None:
    processes = re.search(r"-m pytest -n (\d+)", read("Makefile"))
    assert processes is not None
    words = f"on {NUMBERS[int(processes[1])]} processes"
    assert all(words in read(name) for name in ("Makefile", "CONTRIBUTING.md"))


def test_the_minutes_agree() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "Makefile"):
        assert re.findall(r"about (\w+) minutes on two cores", read(name), flags=re.I) == ["fifteen"], name
    for name in ("CONTRIBUTING.md", "Makefile", "docs/faults.md"):
        assert re.findall(r"at full length; (\w+) hours and more", read(name)) == ["two"], name


def test_make_faults_runs_every_test_that_has_a_full_length() -> None:
    listed = re.search(r"^FAULTS := ((?:.*\\\n)*.*)$", read("Makefile"), flags=re.M)
    assert listed is not None
    places = [ROOT / place for place in listed[1].replace("\\\n", " ").split()]
    assert [place for place in places if not place.exists()] == []
    longer = re.compile(
        r"^(\w*FULL|\w+) = .*PENSTOCK_FAULTS|^from (skew|faultkit\.config|test_hostile_arguments) import", re.M
    )
    files = [file for file in ROOT.glob("tests/*/test_*.py") if longer.search(file.read_text("utf-8"))]
    assert len(files) > 10
    assert [str(file) for file in files if not any(file.is_relative_to(place) for place in places)] == []
