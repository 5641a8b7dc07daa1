"""Bridges in worker files are open while a worker of the folder runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import App
from penstock.testing.until import until

FILE = """
from pathlib import Path

from penstock import job


class RecordingBridge:
    async def open(self, host):
        self.host = host
        self.note("opened")

    async def run(self):
        await self.host.enqueue("sums", None, 4, "brought")
        self.note("running")

    async def close(self):
        self.note("closed")

    def note(self, word):
        with Path(__file__).with_suffix(".log").open("a") as file:
            print(word, file=file)


bridges = [RecordingBridge()]


@job(queue="sums")
def double(n):
    return 2 * n
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "workers"
    folder.mkdir()
    (folder / "ferry.py").write_text(FILE)
    return folder


def noted(folder: Path) -> list[str]:
    log = folder / "ferry.log"
    return log.read_text().split() if log.exists() else []


async def test_bridges_are_open_while_a_worker_runs(folder: Path) -> None:
    async with App(":memory:", folder) as app:
        assert noted(folder) == []  # an App that only starts runs opens no bridge
        async with app.workers.background():
            await until(lambda: noted(folder) == ["opened", "running"])
            assert await app.jobs.result("brought", timeout=60) == 8
        assert noted(folder) == ["opened", "running", "closed"]
        async with app.workers.background():
            await until(lambda: noted(folder)[3:] == ["opened", "running"])


async def test_the_worker_command_runs_bridges(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "worker",
        "--dir",
        str(folder),
        "--url",
        f"sqlite:///{folder}/p.db",
    ]
    worker = subprocess.Popen(command, cwd=folder.parent, env=dict(os.environ), stderr=subprocess.PIPE)
    try:
        await until(lambda: noted(folder) == ["opened", "running"], 30)
        worker.send_signal(signal.SIGTERM)
        await until(lambda: worker.poll() is not None, 30)
    finally:
        worker.kill()
        worker.communicate()
    assert noted(folder) == ["opened", "running", "closed"]


async def test_a_bridge_that_cannot_open_stops_the_worker(folder: Path) -> None:
    (folder / "ferry.py").write_text(FILE.replace('self.note("opened")', 'raise OSError("no ferry today")'))
    async with App(":memory:", folder) as app:
        with pytest.raises(OSError, match="no ferry today"):
            await app.workers.run()


async def test_an_invalid_bridge_is_a_problem_of_its_file(folder: Path) -> None:
    (folder / "ferry.py").write_text(FILE.replace("[RecordingBridge()]", '[RecordingBridge(), "Avignon"]'))
    (folder / "other.py").write_text('bridges = ["Avignon", "Rialto"]  # not ours\n')
    async with App(":memory:", folder) as app:
        (problem,) = app.registry.problems
        assert "`bridges` must be a list of bridge objects such as [PgBoss(…)], but it contains 'Avignon'" in str(
            problem
        )
        async with app.workers.background():
            assert noted(folder) == []
