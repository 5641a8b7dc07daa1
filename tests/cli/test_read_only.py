"""A read-only store can be inspected; commands that would change it explain why they cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

URL = "sqlite:///.penstock/penstock.db"


@pytest.fixture(autouse=True)
def _run(penstock: Callable) -> None:
    penstock("run", "greet", "--key", "mine", "--input", '"Ada"')


@pytest.mark.parametrize(
    "args",
    ["runs", "runs show mine", "events mine", "tail mine", "doctor", "doctor mine", "queues", "export mine", "waits"],
)
def test_reading(penstock: Callable, project: Path, args: str) -> None:
    before = (project / ".penstock" / "penstock.db").read_bytes()
    answer = penstock(*args.split(), "--url", f"{URL}?mode=ro")
    assert (answer.code, "error" in answer.err) == (0, False), answer
    assert (project / ".penstock" / "penstock.db").read_bytes() == before
    assert len(list((project / ".penstock").iterdir())) == 1


@pytest.mark.parametrize(
    "args",
    [["start", "greet"], ["run", "greet"], ["queues", "pause", "greet"], ["state", "set", "a", "1"], ["emit", "a.b"]],
)
def test_writing_is_refused(penstock: Callable, args: list[str]) -> None:
    answer = penstock(*args, "--url", f"{URL}?mode=ro")
    assert (answer.code, answer.out) == (2, "")
    assert "is open read-only, so nothing can be changed; remove ?mode=ro from the URL" in answer.err


def test_a_worker_is_refused(penstock: Callable) -> None:
    assert "a worker cannot use" in penstock("worker", "--url", f"{URL}?mode=ro").err


@pytest.fixture
def without_write_permission(project: Path) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Call the command line without write permission; root drops its capabilities."""
    drop_capabilities = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everything, and setpriv is not installed")
        drop_capabilities = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        command = [*drop_capabilities, sys.executable, "-m", "penstock.cli", *args]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    store = project / ".penstock"
    (store / "penstock.db").chmod(0o400)
    store.chmod(0o500)
    yield call
    store.chmod(0o700)


def test_without_write_permission(without_write_permission: Callable, project: Path) -> None:
    assert "mine" in without_write_permission("runs").stdout
    answer = without_write_permission("doctor")
    assert answer.returncode == 2
    assert ".penstock/penstock.db is read-only here, so nothing can be started or worked on" in answer.stdout
    assert "no stuck runs" in answer.stdout
    paused = without_write_permission("queues", "pause", "greet").stderr
    assert (
        "you have no permission to write the file or its folder: run as their owner, or change the permissions"
        in paused
    )
    started = without_write_permission("start", "greet").stderr
    assert (
        "cannot write .penstock/penstock.db; check the path and the permissions of the file and its folder" in started
    )
    assert "for read-only access, add ?mode=ro to the URL" in started
    assert len(list((project / ".penstock").iterdir())) == 1
