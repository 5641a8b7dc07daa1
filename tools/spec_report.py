"""Print which items of the specifications a test proves.

    python tools/spec_report.py            # a table, and the items without a test
    python tools/spec_report.py --json
    python tools/spec_report.py --update   # write tests/spec/proved.txt

tests/spec/items.csv lists the items. A test marked with `@pytest.mark.spec("000-16.16")` proves that item: it fails if
the item breaks. This tool collects the marked tests and runs none of them.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
ITEMS = TESTS / "spec" / "items.csv"
PROVED = TESTS / "spec" / "proved.txt"
DOCUMENTS = {
    "000": "Queue, workers, flows and streams",
    "001": "Messages, streams and storage (v0.2)",
    "002": "BullMQ messaging for entities",
    "003": "Lean events, retries and waits (v0.3)",
    "004": "BullMQ engine for DAG workflows",
}
NO_PROOF = ("skip", "xfail")  # a test with one of these marks proves nothing


@dataclass(frozen=True)
class Item:
    """An item of a specification. `superseded` is the reason why it no longer counts, or empty."""

    id: str
    text: str
    superseded: str

    @property
    def document(self) -> str:
        return self.id[:3]


@dataclass
class Report:
    """Which tests prove which items, and which marks are wrong."""

    items: Mapping[str, Item]
    proved: dict[str, list[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    @property
    def open(self) -> list[Item]:
        return [item for item in self.items.values() if not item.superseded and item.id not in self.proved]

    def count(self, document: str) -> Counter[str]:
        """Return how many items of a document are proved, open and superseded."""
        states = Counter(self._state(item) for item in self.items.values() if item.document == document)
        return Counter({"items": states.total(), **states})

    def _state(self, item: Item) -> str:
        return "superseded" if item.superseded else "proved" if item.id in self.proved else "open"


def read_items(path: Path = ITEMS) -> dict[str, Item]:
    """Return the items by id, in the order of the file."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [Item(row["id"], row["item"], row["superseded"]) for row in csv.DictReader(file)]
    items = {item.id: item for item in rows}
    if len(items) != len(rows):
        raise ValueError(f"{path.name} must list each id once, got {len(rows)} rows with {len(items)} ids")
    return items


def build_report(items: Mapping[str, Item], marks: Iterable[tuple[str, str]]) -> Report:
    """Compare the items with the marks, which are pairs of an id and the name of a test."""
    report = Report(items)
    found: dict[str, list[str]] = {}
    for id, test in dict.fromkeys(marks):
        item = items.get(id)
        if item is None:
            report.wrong.append(f"{test}: no item has the id {id!r}; tests/spec/items.csv lists them")
        elif item.superseded:
            report.wrong.append(f"{test}: item {id} is superseded ({item.superseded}); remove the mark")
        else:
            found.setdefault(id, []).append(test)
    report.proved = {id: found[id] for id in items if id in found}
    return report


class MarkCollector:
    """A pytest plugin that collects the files with marks and notes the marks of their tests."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, str]] = []

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_unmarked = collection_path.suffix == ".py" and "mark.spec(" not in collection_path.read_text("utf-8")
        return True if is_unmarked else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if any(item.get_closest_marker(name) for name in NO_PROOF):
                continue
            test = item.nodeid.partition("[")[0]
            self.marks += [(str(id), test) for mark in item.iter_markers("spec") for id in mark.args]


def collect_marks() -> list[tuple[str, str]]:
    """Collect the tests; raise RuntimeError if a file cannot be collected."""
    collector, output = MarkCollector(), io.StringIO()
    with contextlib.redirect_stdout(output):
        options = ["--collect-only", "-qq", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
        code = pytest.main([*options, str(TESTS)], plugins=[collector])
    if code != 0:
        raise RuntimeError(f"cannot collect the tests:\n{output.getvalue().partition(' ERRORS ')[2]}")
    return collector.marks


def render_text(report: Report) -> str:
    """Return the table and the open items of each document."""
    lines = [f"{'document':<45}{'items':>7}{'proved':>8}{'open':>6}{'superseded':>12}"]
    for document, title in DOCUMENTS.items():
        counts = report.count(document)
        numbers = f"{counts['items']:>7}{counts['proved']:>8}{counts['open']:>6}{counts['superseded']:>12}"
        lines.append(f"{document + ' ' + title:<45}{numbers}")
    for document, title in DOCUMENTS.items():
        missing = [item for item in report.open if item.document == document]
        if missing:
            lines += ["", f"{document} {title}: no test yet", *(f"  {item.id:<11} {item.text}" for item in missing)]
    return "\n".join([*lines, *(["", "Wrong marks:"] if report.wrong else []), *report.wrong])


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as JSON."""
    return {
        "documents": {document: {"title": DOCUMENTS[document], **report.count(document)} for document in DOCUMENTS},
        "proved": report.proved,
        "open": {item.id: item.text for item in report.open},
        "superseded": {item.id: item.superseded for item in report.items.values() if item.superseded},
        "wrong": report.wrong,
    }


def main() -> int:
    """Run the tool; return 1 if a mark is wrong."""
    parser = argparse.ArgumentParser(description="Print which items of the specifications a test proves.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--update", action="store_true", help="write the ids that are proved to tests/spec/proved.txt")
    options = parser.parse_args()
    report = build_report(read_items(), collect_marks())
    if options.update:
        PROVED.write_text("".join(f"{id}\n" for id in report.proved), "utf-8")
    print(json.dumps(to_json(report), indent=2, ensure_ascii=False) if options.json else render_text(report))
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
