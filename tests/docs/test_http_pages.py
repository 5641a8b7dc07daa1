"""The pages about the HTTP API are played against a server: what they show is what it answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from snippets import Block, blocks_of, matches

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PAGES = ("serve.md", "python-client.md", "live-events.md")
WORKER_PAGE = "python-client.md"  # has the worker file of all of them
ADDRESS = "127.0.0.1:8765"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, with our commands on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    """Run `penstock serve --worker` on a free port, with the worker file of the pages."""
    for block in blocks_of(HOWTO / WORKER_PAGE):
        if block.file is not None and block.file.startswith("workers/"):
            write(block, folder, ADDRESS)
    command = ["penstock", "serve", "--worker", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().rpartition("http://")[2].strip()
        finally:
            server.terminate()


def write(block: Block, folder: Path, address: str) -> None:
    assert block.file is not None
    target = folder / block.file
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(block.text.replace(ADDRESS, address), "utf-8")


@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages use curl")
def test_the_pages_show_what_the_server_answers(folder: Path, address: str) -> None:
    played = 0
    for page in PAGES:
        for block in blocks_of(HOWTO / page):
            if block.file is not None and block.language == "python":
                write(block, folder, address)
            if block.language != "console" or block.not_run is None or "test_http_pages" not in block.not_run:
                continue
            for command in block.commands():
                if command.text.startswith("penstock serve"):
                    continue
                text = command.text.replace(ADDRESS, address)
                done = subprocess.run(text, shell=True, text=True, capture_output=True, timeout=120)
                shown = done.stdout.splitlines()
                assert matches(command.shown, shown), f"{page}: $ {text}\n{done.stdout}{done.stderr}"
                played += 1
    assert played >= 8
