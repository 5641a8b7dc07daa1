"""The documentation builds as a site without warnings, and loads nothing from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(  # what a browser fetches by itself; a link that is only there to be followed is none
    r"""<(?:script|img|iframe)\b[^>]*\ssrc=["']?(?:https?:)?//|<link\b[^>]*\shref=["']?(?:https?:)?//"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)],
        cwd=ROOT, text=True, capture_output=True, timeout=180, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def test_every_page_is_built(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    assert LOADED.search('<script src="https://example.org/x.js">')
    assert LOADED.search('<link rel="preconnect" href="//example.org">')
    assert {page.name for page in site.rglob("*.html") if LOADED.search(page.read_text("utf-8"))} == set()
    assert {sheet.name for sheet in site.rglob("*.css") if "url(http" in sheet.read_text("utf-8")} == set()


def test_no_program_is_copied(site: Path) -> None:
    assert list(site.rglob("*.py")) == []
