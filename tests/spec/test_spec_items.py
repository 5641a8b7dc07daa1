"""Every mark names an item that counts, and no item that was proved loses its test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("spec")  # one process collects the suite for the report
sys.path.insert(0, str(ROOT / "tools"))

from spec_report import DOCUMENTS, PROVED, Item, build_report, read_items  # noqa: E402


@pytest.fixture(scope="module")
def report() -> Any:
    """Return what the tool prints for this suite."""
    command = [sys.executable, str(ROOT / "tools" / "spec_report.py"), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_every_mark_names_an_item_that_counts(report: Any) -> None:
    assert report["wrong"] == []


def test_no_item_loses_its_test(report: Any) -> None:
    listed, proved = PROVED.read_text("utf-8").split(), list(report["proved"])
    lost = [id for id in listed if id not in proved]
    assert lost == [], "no test is marked with these items any more; mark one that proves them"
    assert listed == proved, "run: make spec ARGS=--update"


def test_every_item_belongs_to_a_document(report: Any) -> None:
    items = read_items()
    assert {item.document for item in items.values()} == set(DOCUMENTS)
    assert len(items) == sum(len(report[state]) for state in ("proved", "open", "superseded"))


def test_a_report() -> None:
    items = {id: Item(id, f"text of {id}", why) for id, why in {"000-1.1": "", "000-1.2": "", "000-1.3": "old"}.items()}
    found = build_report(items, [("000-1.1", "a.py::x"), ("000-1.1", "a.py::x"), ("000-1.1", "b.py::y")])
    assert found.proved == {"000-1.1": ["a.py::x", "b.py::y"]}
    assert [item.id for item in found.open] == ["000-1.2"]
    assert found.count("000") == {"items": 3, "proved": 1, "open": 1, "superseded": 1}


@pytest.mark.parametrize(("id", "problem"), [("000-1.3", "is superseded (old)"), ("000-9.9", "no item has the id")])
def test_a_wrong_mark_is_reported_and_proves_nothing(id: str, problem: str) -> None:
    found = build_report({"000-1.3": Item("000-1.3", "text", "old")}, [(id, "a.py::x")])
    assert found.proved == {}
    (wrong,) = found.wrong
    assert "a.py::x" in wrong
    assert problem in wrong
