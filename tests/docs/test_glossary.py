"""The glossary agrees with the code and the other pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "glossary.md"
ROW = re.compile(r"^\| \*\*(?P<term>[^*]+)\*\* \| (?P<meaning>.+?) \|.*\|$", re.M)


def read_others() -> str:
    """Return the source and every other page as one text."""
    files = [*(ROOT / "src").rglob("*.py"), *(path for path in (ROOT / "docs").rglob("*.md") if path != PAGE)]
    return "\n".join(path.read_text("utf-8") for path in files)


def test_every_name_in_backticks_exists() -> None:
    others = read_others()
    names = set(re.findall(r"`([^`]+)`", PAGE.read_text("utf-8")))
    assert len(names) > 20
    missing = {name for name in names if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", others)}
    assert {name for name in missing if "<" not in name} == set()
    assert all(name.partition("<")[0] in others for name in missing)


def test_every_term_is_used() -> None:
    others = read_others().lower().replace("-", " ").replace("_", " ")
    terms = [term for row in ROW.finditer(PAGE.read_text("utf-8")) for term in row["term"].split(" / ")]
    assert len(terms) > 50
    assert [term for term in terms if term not in others] == []
    assert len(terms) == len(set(terms)), "one row per term"


def test_every_meaning_is_one_sentence() -> None:
    meanings = [row["meaning"] for row in ROW.finditer(PAGE.read_text("utf-8"))]
    assert [meaning for meaning in meanings if not meaning.endswith(".") or ". " in meaning] == []
