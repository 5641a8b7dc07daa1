"""Node and npm of the wheel, for machines that have none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import node_programs


@pytest.fixture
def nothing_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Node."""
    monkeypatch.setenv("PATH", str(tmp_path))
    node_programs._programs.cache_clear()
    yield
    node_programs._programs.cache_clear()


def test_npm_of_the_wheel_runs_with_node_of_the_wheel(nothing_on_path: None, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"name": "x", "version": "1.0.0", "private": true}')
    node_programs.npm("install", "--no-audit", "--no-fund", "--offline", folder=tmp_path)
    assert (tmp_path / "package-lock.json").exists()
    version = subprocess.run([node_programs._programs()[0], "--version"], capture_output=True, text=True).stdout
    assert int(version.removeprefix("v").partition(".")[0]) >= node_programs.OLDEST


def test_an_old_node_on_path_is_ignored(nothing_on_path: None, tmp_path: Path) -> None:
    for name, shown in (("node", "v18.20.4"), ("npm", "10.7.0")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {shown}\n")
        (tmp_path / name).chmod(0o755)
    assert node_programs._programs() == node_programs.of_wheel()
    (tmp_path / "node").write_text("#!/bin/sh\necho v22.1.0\n")
    node_programs._programs.cache_clear()
    assert node_programs._programs() == (str(tmp_path / "node"), (str(tmp_path / "npm"),))


def test_npm_shows_why_it_failed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"ci .*failed: (.|\n)*package-lock"):
        node_programs.npm("ci", "--no-audit", "--no-fund", "--offline", folder=tmp_path)
