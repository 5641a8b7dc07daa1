"""Words that we do not use, in prose and in names: readers search for the plain ones."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "docs", "tests", "examples", "tools", "benchmarks")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
SUFFIXES = {".py", ".md", ".sql", ".lua", ".js", ".mjs", ".ts", ".json", ".toml", ".yml"}
INSTEAD = {
    "told": "notified, called, reported",
    "said": "emitted, recorded, returned",
    "begun": "started",
    "kin": "children",
    "anew": "again",
    "whoever": "the caller",
    "unwell": "failed",
    "mend": "fix",
    "asunder": "apart",
    "thereof": "of it",
}
_ANY_CASE = "|".join(INSTEAD)
_CAMEL = "|".join(word.title() for word in INSTEAD)
# As a word of prose, as a part of a snake_case name, or as a part of a CamelCase name.
BANNED = re.compile(
    rf"(?<![A-Za-z])(?i:{_ANY_CASE})(?![A-Za-z])"
    rf"|(?<=[a-z0-9])(?:{_CAMEL})(?![a-z])"
    rf"|(?<![A-Za-z])(?:{_ANY_CASE}|{_CAMEL})(?=[A-Z])"
)


def find_words(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and the word for each banned word."""
    for number, line in enumerate(text.splitlines(), 1):
        for found in BANNED.finditer(line):
            yield number, found[0]


def list_files() -> list[Path]:
    """Return the files under version control that people read or write."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS, *PAGES],
        cwd=ROOT, text=True, capture_output=True, check=False,
    ).stdout.splitlines()  # fmt: skip
    if not listed:  # an unpacked source archive
        listed = [*PAGES, *(str(path.relative_to(ROOT)) for name in FOLDERS for path in (ROOT / name).rglob("*"))]
    files = [ROOT / name for name in listed if "node_modules" not in name and not name.endswith("package-lock.json")]
    return sorted(path for path in files if path.suffix in SUFFIXES and path.is_file() and path != Path(__file__))


def test_no_banned_words() -> None:
    files = list_files()
    assert len(files) > 300
    found = [
        f"{path.relative_to(ROOT)}:{number}: {word}: write {INSTEAD[word.lower()]}"
        for path in files
        for number, word in find_words(path.read_text("utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    ["it was told", "told_at", "is_told", "wasTold", "ToldEvent", "TOLD", "NQ_TOLD", "nq:told:*", "Said.", "toldYou"],
)
def test_banned_words_are_found_in_prose_and_in_names(text: str) -> None:
    assert [number for number, _ in find_words(f"first line\n{text}")] == [2]


@pytest.mark.parametrize(
    "text",
    ["kind", "KINDS", "END_KINDS", "kindred", "amend", "recommend", "skin", "Mendel", "stolde", "saids", "RetoldX"],
)
def test_other_words_are_accepted(text: str) -> None:
    assert list(find_words(text)) == []
