"""A small project in a temporary folder, and ways to call the command line in it."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import main

TEST_TIMEOUT_S = 100  # seconds until a test that waits gives up

GREET = """
from penstock import Context, flow, step

@flow("greet", emits=["greeted"])
async def greet(who, ctx: Context):
    ctx.emit("greeted", {"who": who})

@step(on="greeted")
def answer(greeting):
    return f"Hello, {greeting['who']}!"
"""
# Runs until a file named `gate` exists, so that a test decides how long it takes.
GATED = """
import asyncio
from pathlib import Path
from penstock import Context, flow

@flow("gated")
async def gated(input, ctx: Context):
    print("the handler prints this")
    Path("began").touch()
    while not Path("gate").exists():
        await asyncio.sleep(0.01)
    return "through"
"""
FAILS = """
from penstock import flow

@flow("fails")
def fails(input):
    raise ValueError("it does not work")
"""


@dataclass
class Answer:
    """The output of a command and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with worker files; the tests run inside it."""
    monkeypatch.chdir(tmp_path)
    for name in ("PENSTOCK_DEBUG", "PENSTOCK_LOG"):
        monkeypatch.delenv(name, raising=False)
    workers = tmp_path / "workers"
    workers.mkdir()
    for name, text in {"greet": GREET, "gated": GATED, "fails": FAILS}.items():
        (workers / f"{name}.py").write_text(text)
    return tmp_path


@pytest.fixture
def penstock(project: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Call the command line in this process."""

    def call(*args: str) -> Answer:
        capsys.readouterr()
        code = main(args)
        output = capsys.readouterr()
        return Answer(code, output.out, output.err)

    return call


class Child:
    """The command line in a process of its own."""

    def __init__(self, *args: str) -> None:
        command = [sys.executable, "-m", "penstock.cli", *args]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self._output: list[str] = []

    def wait_for_output(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._output.append(line)
            if text in line:
                return
        raise AssertionError(f"it never printed {text!r}, but {''.join(self._output)!r}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> Answer:
        out, err = self.process.communicate(timeout=TEST_TIMEOUT_S)
        return Answer(self.process.returncode, "".join(self._output) + out, err)


@pytest.fixture
def child(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Child]]:
    """Start the command line in processes; kill those left at the end."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # output that is not flushed must be missing here too
    children: list[Child] = []

    def start(*args: str) -> Child:
        children.append(Child(*args))
        return children[-1]

    yield start
    for one in children:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


class Terminal:
    """A command on a pseudo-terminal, with its screen and keyboard."""

    def __init__(self, *args: str) -> None:
        self.seen = ""
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLUMNS="100", LINES="30")
            os.execv(sys.executable, [sys.executable, "-m", "penstock.cli", *args])

    def until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TEST_TIMEOUT_S
        while not ready():
            assert time.monotonic() < deadline, self.seen
            self._read()

    def press_ctrl_c(self) -> None:
        self.type("\x03")

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def end(self) -> int:
        deadline = time.monotonic() + TEST_TIMEOUT_S
        while self._read():
            assert time.monotonic() < deadline, self.seen
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read(self) -> bool:
        if select.select([self._fd], [], [], 0.02)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:  # the command has ended
                return False
            self.seen += data.decode(errors="replace")
            return bool(data)
        return True


@pytest.fixture
def terminal(project: Path) -> type[Terminal]:
    return Terminal


def wait_for_file(path: Path) -> None:
    """Wait for a file that a handler in another process creates."""
    deadline = time.monotonic() + TEST_TIMEOUT_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.005)


@pytest.fixture(name="wait_for_file")
def _wait_for_file() -> Callable[[Path], None]:
    return wait_for_file
