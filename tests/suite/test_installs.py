"""Folders that test processes share are built once, and no process sees an incomplete one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from installs import install

PROCESSES = 4
# Each process reports that it is there; the one that builds waits for all of them, so that they do meet.
SCRIPT = f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from installs import install

within, number, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def build(folder):
    (folder / "first").touch()
    with open(within / "builds", "a") as log:
        log.write(number + "\\n")
    if how == "die":
        os._exit(9)
    while len(list(within.glob("here-*"))) < {PROCESSES}:
        time.sleep(0.005)
    (folder / "last").touch()

(within / f"here-{{number}}").touch()
print(sorted(file.name for file in install("packages", build, within=within / "cache").iterdir()))
"""


def start(within: Path, number: int, how: str = "build") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(within), str(number), how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_several_processes_build_once(tmp_path: Path) -> None:
    processes = [start(tmp_path, n) for n in range(PROCESSES)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["['first', 'last']\n"] * PROCESSES
    assert len((tmp_path / "builds").read_text().splitlines()) == 1


def test_a_dead_process_leaves_no_finished_build(tmp_path: Path) -> None:
    for n in range(PROCESSES):
        (tmp_path / f"here-{n}").touch()
    dying = start(tmp_path, 0, "die")
    assert dying.communicate(timeout=60)[0] == ""
    assert dying.returncode == 9
    assert not (tmp_path / "cache" / "packages").exists()
    assert start(tmp_path, 1).communicate(timeout=60)[0] == "['first', 'last']\n"
    assert (tmp_path / "builds").read_text() == "0\n1\n"


def test_a_build_that_fails_is_repeated(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("the network is down")

    with pytest.raises(OSError, match="the network is down"):
        install("packages", fail, within=tmp_path)
    place = install("packages", lambda folder: (folder / "whole").touch(), within=tmp_path)
    assert [file.name for file in place.iterdir()] == ["whole"]


def test_an_existing_build_is_reused(tmp_path: Path) -> None:
    install("packages", lambda folder: (folder / "one").touch(), within=tmp_path)
    place = install("packages", lambda folder: (folder / "two").touch(), within=tmp_path)
    assert [file.name for file in place.iterdir()] == ["one"]
