"""Workers with live children are killed with -9: no child is left, and nothing is lost or recorded twice."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killed_worker import HANDLERS
from test_process_faults import is_alive

from penstock import App
from penstock.testing.history import check, read_history
from penstock.testing.until import until

IS_FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
# `RUNNER_KILLS=200 RUNNER_SEED=2` runs a part of the full length.
KILLS = int(os.environ.get("RUNNER_KILLS", "1000")) if IS_FULL else 4
WORKERS = 4 if IS_FULL else 2
ROUNDS = KILLS // WORKERS
SEED = int(os.environ.get("RUNNER_SEED", "7"))
RUNS_PER_WORKER = 4
ORPHAN_LIMIT_S = 2 if IS_FULL else 20
_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True)
def _adopt_orphans() -> Iterator[None]:
    """Become the parent of orphans, so that a container without an init process does not keep zombies."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    yield
    prctl(_PR_SET_CHILD_SUBREAPER, 0)


def start_worker(url: str, *more: str) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("killed_worker.py")
    worker = subprocess.Popen([sys.executable, str(script), url, *more], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"ready\n"
    return worker


def kill(worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert worker.stdout is not None
    worker.stdout.close()


def pids(trace: Path) -> set[int]:
    return {int(line.split()[1]) for line in trace.read_text().splitlines() if line.startswith("pid ")}


def find_hosts(worker: int) -> list[int]:
    """Return the children of a worker that run handlers: not its guard."""
    found = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    return [int(pid) for pid in found if b"penstock.host" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def reap() -> None:
    """Reap what was adopted."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


@pytest.mark.timeout(5400 if IS_FULL else 300)
async def test_killed_workers_leave_no_process_and_lose_nothing(tmp_path: Path) -> None:
    url, trace = f"sqlite:///{tmp_path}/penstock.db", tmp_path / "trace"
    trace.touch()
    rng, slowest_s = random.Random(SEED), 0.0
    async with App(url, handlers=HANDLERS) as app:
        runs: list[Any] = []
        children = 0
        gone: set[int] = set()
        for _round in range(ROUNDS):
            workers = await asyncio.gather(*(asyncio.to_thread(start_worker, url) for _ in range(WORKERS)))
            try:
                for n in range(len(runs), len(runs) + WORKERS * RUNS_PER_WORKER):
                    runs.append(await app.start("chain", {"n": n, "trace": str(trace)}))
                await until(lambda gone=gone: pids(trace) > gone, 60)  # type: ignore[misc]
                await asyncio.sleep(rng.random() * 0.2)
            finally:
                for worker in workers:
                    children += len(find_hosts(worker.pid))
                    await asyncio.to_thread(kill, worker)
            killed_at = time.monotonic()
            await until(lambda gone=gone: not any(map(is_alive, pids(trace) - gone)), ORPHAN_LIMIT_S)  # type: ignore[misc]
            slowest_s = max(slowest_s, time.monotonic() - killed_at)
            reap()
            gone = pids(trace)
        what = f"{ROUNDS * WORKERS} workers killed with {children} live children, {len(gone)} processes seen"
        print(f"{what}, the last one gone after {slowest_s:.2f} s")
        worker = await asyncio.to_thread(start_worker, url)
        try:
            results = [await app.result(run, timeout=300) for run in runs]
        finally:
            await asyncio.to_thread(kill, worker)
        assert results == list(range(len(runs)))
        await until(lambda: not any(map(is_alive, pids(trace) - gone)), 10)
        reap()
        for run in runs:
            kinds = Counter(event.kind for event in await app.events.read_all(f"nq:flow:{run.id}"))
            assert (kinds["flow.completed"], kinds["chain.next"]) == (1, 1), run.id
        assert check(await read_history(app.store)) == []


async def test_without_the_guard_a_process_is_left(tmp_path: Path) -> None:
    """The mutant of the test above. A child that sees the end of its pipe before it dies still ends its processes, so the
    first kill may leave none."""
    for n in range(4):
        if await leaves_a_process(tmp_path / str(n)):
            return
    raise AssertionError("the mutant is not noticed")


async def leaves_a_process(folder: Path) -> bool:
    """Kill a worker without a guard; return whether the process that its child started is left."""
    folder.mkdir()
    url, trace = f"sqlite:///{folder}/penstock.db", folder / "trace"
    trace.touch()
    async with App(url, handlers=HANDLERS) as app:
        worker = await asyncio.to_thread(start_worker, url, "no-guard")
        await app.start("chain", {"n": 0, "trace": str(trace)})
        await until(lambda: len(pids(trace)) > 1, 60)  # the child, and what it has started
        children = set(find_hosts(worker.pid))
        await asyncio.to_thread(kill, worker)
    left = int(trace.read_text().splitlines()[1].split()[1])
    await until(lambda: not any(map(is_alive, children)), 20)
    is_left = is_alive(left)
    if is_left:
        os.kill(left, signal.SIGKILL)
    reap()
    return is_left


async def test_a_child_that_keeps_the_lock_ends_with_its_worker(tmp_path: Path) -> None:
    url, trace = f"sqlite:///{tmp_path}/penstock.db", tmp_path / "trace"
    trace.touch()
    async with App(url, handlers=HANDLERS) as app:
        worker = await asyncio.to_thread(start_worker, url)
        await app.enqueue("blocks", {"trace": str(trace)})
        await until(lambda: pids(trace), 30)
        await asyncio.to_thread(kill, worker)
        await until(lambda: not any(map(is_alive, pids(trace))), 10)
        reap()


@pytest.mark.spec("000-12.2")
async def test_a_worker_that_stops_leaves_no_child_and_no_zombie(tmp_path: Path) -> None:
    url, trace = f"sqlite:///{tmp_path}/penstock.db", tmp_path / "trace"
    trace.touch()
    async with App(url, handlers=HANDLERS, process_pool=2) as app, app.workers.background():
        await app.result(await app.start("chain", {"n": 1, "trace": str(trace)}), timeout=60)
    assert pids(trace)
    for pid in pids(trace):
        with pytest.raises(ProcessLookupError):  # a zombie could still be signalled
            os.kill(pid, 0)
