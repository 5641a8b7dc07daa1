"""`penstock worker --processes N` starts, stops and restarts its worker processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.processes import WorkerProcesses
from penstock.testing.until import until

# Returns its process id once two of them run at the same time.
PAIRED = """
import os, time
from pathlib import Path
from penstock import flow

@flow("paired", concurrency=1)
def paired(input):
    Path(f"at-{os.getpid()}").touch()
    while len(list(Path(".").glob("at-*"))) < 2:
        time.sleep(0.01)
    return os.getpid()
"""


class Fleet:
    """`penstock worker --processes 2` and its output on stderr."""

    def __init__(self, child: Callable, *options: str) -> None:
        self.child = child("worker", "--processes", "2", *options)
        self.child.wait_for_output("Working.")
        self.output = ""

    def pid(self, number: int) -> int:
        """Wait for the process id of a worker."""
        return int(self.until(rf"Worker {number} is process (\d+)\.")[1])

    def until(self, pattern: str) -> re.Match[str]:
        """Read until the pattern matches; output read earlier is not searched again."""
        read = ""
        for line in self.child.process.stderr:
            read += line
            self.output += line
            if found := re.search(pattern, read):
                return found
        raise AssertionError(f"{pattern} was not printed, but {self.output}")

    def stop(self) -> str:
        self.child.signal(signal.SIGTERM)
        answer = self.child.end()
        assert answer.code == 0
        assert "Traceback" not in answer.err
        return answer.err


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        # A zombie is still listed until its parent waits for it.
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.fixture
def fleet(child: Callable, project: Path) -> Fleet:
    (project / "workers" / "paired.py").write_text(PAIRED)
    return Fleet(child)


def test_they_work_in_parallel_and_stop_together(fleet: Fleet, penstock: Callable) -> None:
    pids = {fleet.pid(1), fleet.pid(2)}
    for key in ("a", "b"):
        penstock("start", "paired", "--key", key)
    for key in ("a", "b"):
        penstock("tail", key)
    assert {penstock("runs", "show", key, "--json").json["result"] for key in ("a", "b")} == pids
    output = fleet.stop()
    assert output.count("Stopped.") == 2
    assert output.count("to stop immediately") == 1, "the parent prints it for all"
    assert output.endswith("All stopped.\n")
    assert not any(map(is_alive, pids))


def test_a_dead_process_is_restarted(fleet: Fleet, penstock: Callable) -> None:
    first, second = fleet.pid(1), fleet.pid(2)
    os.kill(first, signal.SIGKILL)
    fleet.until(r"Worker 1 was killed by SIGKILL: restarting\.")
    third = fleet.pid(1)
    assert third not in (first, second)
    penstock("start", "greet", "--key", "mine")
    assert penstock("tail", "mine").code == 0
    fleet.stop()


async def test_they_stop_when_their_parent_is_killed(fleet: Fleet) -> None:
    pids = [fleet.pid(1), fleet.pid(2)]
    fleet.child.process.kill()
    await until(lambda: not any(map(is_alive, pids)), 30)


def test_handler_output_is_forwarded(child: Callable, penstock: Callable, project: Path) -> None:
    (project / "gate").touch()
    fleet = Fleet(child, "--queues", "gated", "--concurrency", "1")
    penstock("start", "gated", "--key", "mine")
    penstock("tail", "mine")
    fleet.child.wait_for_output("the handler prints this")
    fleet.stop()


async def test_a_second_signal_stops_at_once(
    fleet: Fleet, penstock: Callable, project: Path, wait_for_file: Callable
) -> None:
    pids = [fleet.pid(1), fleet.pid(2)]
    await asyncio.to_thread(penstock, "start", "gated")
    wait_for_file(project / "began")
    fleet.child.signal(signal.SIGINT)
    fleet.until("Press Ctrl-C again to stop immediately")
    fleet.child.signal(signal.SIGINT)
    fleet.child.process.wait(30)
    assert fleet.child.process.returncode == 130
    await until(lambda: not any(map(is_alive, pids)), 30)


async def test_ctrl_c_after_an_error_does_not_stop_the_others_at_once() -> None:
    """One process has failed, and the others have been signalled. Ctrl-C then signals none of them again: a second signal
    would end each at once, and each would print it."""
    sent: list[tuple[int, int]] = []

    class Child:
        def __init__(self, pid: int) -> None:
            self.pid = pid

        def send_signal(self, number: int) -> None:
            sent.append((self.pid, number))

    processes = WorkerProcesses(3, [])
    processes._children = {1: Child(1), 2: Child(2)}  # type: ignore[dict-item]
    processes.stop()
    processes.stop()
    assert sent == [(1, signal.SIGTERM), (2, signal.SIGTERM)]
    processes.kill()
    assert sent[2:] == [(1, signal.SIGKILL), (2, signal.SIGKILL)]


def test_an_error_to_fix_stops_all(penstock: Callable, child: Callable, project: Path) -> None:
    assert "at least 1" in penstock("worker", "--processes", "0").err
    assert "[unknown_queue]" in penstock("worker", "--processes", "2", "--queues", "nope").err
    (project / "bad.db").write_bytes(b"this is not a database" * 100)
    worker = child("worker", "--processes", "2", "--url", "sqlite:///bad.db")
    answer = worker.end()
    assert answer.code == 2
    assert "[store_corrupt]" in answer.err
