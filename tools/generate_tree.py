"""Writes the tree of modules into docs/architecture.md. The order of the rooms stays as it is.

python tools/generate_tree.py
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "penstock"
PAGE = ROOT / "docs" / "architecture.md"
WIDTH, INDENT = 130, 17


def list_room(room: str) -> list[str]:
    """Return the folders of a room, then its modules."""
    shown = [path for path in (SOURCES / room).iterdir() if not path.name.startswith(("__", "console_files"))]
    folders = sorted(f"{path.name}/" for path in shown if path.is_dir())
    return [*folders, *sorted({path.stem for path in shown if path.is_file()})]


def draw_room(room: str) -> str:
    first = f"  {room}/".ljust(INDENT)
    return textwrap.fill(" ".join(list_room(room)), WIDTH, initial_indent=first, subsequent_indent=" " * INDENT)


def update(page: str) -> str:
    """Return the page with the present modules of each room. Rooms that are new come last."""
    head, start, rest = page.partition("src/penstock/\n")
    tree, end, tail = rest.partition("```\n")
    lines = tree.splitlines()
    rooms = re.findall(r"^ {2}(\w+)/", tree, flags=re.M)
    there = {path.name for path in SOURCES.iterdir() if (path / "__init__.py").exists()}
    rooms = [room for room in rooms if room in there] + sorted(there.difference(rooms))
    before = [line for line in lines if re.match(r" {2}\w+ ", line)]
    after = [line for line in lines if not line.startswith(" ")]
    return head + start + "\n".join([*before, *map(draw_room, rooms), *after]) + "\n" + end + tail


if __name__ == "__main__":
    PAGE.write_text(update(PAGE.read_text("utf-8")), "utf-8")
