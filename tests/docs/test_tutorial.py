"""The tutorial is executed from start to end, in two terminals, and its worker is really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from snippets import Command, blocks_of, matches

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("COLUMNS", "120")
    yield tmp_path
    pid = tmp_path / "worker.pid"
    if pid.exists():
        _kill(int(pid.read_text()))


def test_the_tutorial(folder: Path) -> None:
    killed = False
    for block in blocks_of(PAGE):
        if block.not_run is not None:
            continue
        if block.file is not None:
            target = folder / block.file
            target.parent.mkdir(exist_ok=True)
            target.write_text(block.text, "utf-8")
        elif block.language == "console":
            for command in block.commands():
                if command.text.startswith("kill -9"):
                    killed = True
                _play(command, folder)
    assert killed, "the tutorial kills a worker"
    _see_attempt_two()


def _play(command: Command, folder: Path) -> None:
    if "penstock worker &" in command.text:
        _start_worker(command, folder)
    elif command.text.startswith("penstock runs show"):
        _expect(command, _look_until(command.text, "● bind"))
    else:
        _expect(command, _run(command.text))


def _start_worker(command: Command, folder: Path) -> None:
    """Start the worker and keep it running; its output goes to a file."""
    shown = folder / "worker.out"
    with shown.open("w") as out:
        subprocess.run(command.text, shell=True, stdout=out, stderr=subprocess.STDOUT, timeout=60, check=True)
    _until(lambda: matches(command.shown, shown.read_text("utf-8").splitlines()))


def _see_attempt_two() -> None:
    events = _run("penstock events wedding --json").splitlines()
    starts = [line for line in events if '"step.started"' in line and '"step":"bind"' in line]
    assert len(starts) == 2
    workers = {line.partition('"worker":"')[2].partition('"')[0] for line in starts}
    assert len(workers) == 2, "another worker took it over"
    assert sum('"kind":"step.completed"' in line and '"step":"bind"' in line for line in events) == 1


def _run(text: str) -> str:
    done = subprocess.run(text, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    return done.stdout


def _look_until(text: str, shown: str) -> str:
    """Repeat a command until its output shows a text."""
    deadline = time.monotonic() + 200
    while shown not in (output := _run(text)):
        assert time.monotonic() < deadline, f"{shown!r} was not seen in time:\n{output}"
    return output


def _expect(command: Command, output: str) -> None:
    assert matches(command.shown, output.splitlines()), f"tutorial.md:{command.line}: $ {command.text}\n{output}"


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
