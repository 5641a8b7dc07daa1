"""docs/architecture.md agrees with the code: the tree, the table of rooms, and the three walks."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "penstock"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
HEADING = re.compile(r"^### (?P<name>[^:\n]+): (?P<count>\d+) files$", re.M)
WALKS_ON_A_BUSY_MACHINE = 4  # a timer of the worker may fire in the middle of a walk
WALK_NAMES = ("A start", "A plain job", "An event that wakes a run")


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("print_walks", ROOT / "tools" / "print_walks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_walk(name: str) -> tuple[int, list[str]]:
    """Return the count and the files that the page shows for a walk."""
    heading = next(found for found in HEADING.finditer(PAGE) if found["name"] == name)
    section = re.split(r"^#", PAGE[heading.end() :], maxsplit=1, flags=re.M)[0]
    return int(heading["count"]), re.findall(r"`([\w/]+\.py)`", section)


def test_the_page_has_the_walks_of_the_tool() -> None:
    assert tuple(found["name"] for found in HEADING.finditer(PAGE)) == WALK_NAMES == tuple(load_tool().WALKS)


@pytest.mark.parametrize("name", WALK_NAMES)
def test_a_walk_passes_the_files_of_the_page(name: str) -> None:
    count, listed = read_walk(name)
    tool = load_tool()
    for _ in range(WALKS_ON_A_BUSY_MACHINE):
        passed = tool.walk(name)
        if sorted(listed) == sorted(passed):
            break
    assert sorted(listed) == sorted(passed), "run: python tools/print_walks.py"
    assert count == len(passed)


def test_the_table_has_every_room_in_the_order_of_the_import_rules() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(rule["layers"] for rule in rules if rule["type"] == "layers")
    table = PAGE.partition("## Rooms")[2].partition("## Three walks")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, flags=re.M) == [room for layer in layers for room in layer.split(" | ")]
    rooms = {path.name for path in SOURCES.iterdir() if (path / "__init__.py").exists()}
    assert rooms < {room for layer in layers for room in layer.split(" | ")}


def test_the_tree_matches_the_package() -> None:
    tree = PAGE.partition("## The package")[2].partition("## Rooms")[0]
    shown: dict[str, list[str]] = {}
    for line in re.findall(r"^ {2}.*$", tree, flags=re.M):
        words = line.split()
        if line[2] != " " and words[0].endswith("/"):
            shown[words.pop(0).rstrip("/")] = []
        if shown:
            shown[list(shown)[-1]] += [word.rstrip("/") for word in words]
    assert set(shown) == {path.name for path in SOURCES.iterdir() if (path / "__init__.py").exists()}
    for room, names in shown.items():
        there = {path.stem for path in (SOURCES / room).iterdir() if not path.name.startswith(("__", "console_files"))}
        assert set(names) == there, f"{room}: run python tools/generate_tree.py"
