"""Mutants of the process runner: without what guards against a fault, the fault is seen. So its test can fail."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faulty_handlers import HANDLERS
from test_killed_workers import find_hosts
from test_process_faults import MAX_GROWTH_MB, OPTIONS, grow_by_printing, is_alive

from penstock import App
from penstock.core.errors import RunFailed
from penstock.runners.output import OutputLog
from penstock.runners.process.child import Child
from penstock.testing import TestApp
from penstock.testing.until import until


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace"
    file.touch()
    return file


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def test_without_the_group_a_forked_process_stays(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def signal_child_only(child: Child, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, number)

    monkeypatch.setattr(Child, "_signal", signal_child_only)
    async with TestApp(handlers=HANDLERS, **OPTIONS) as app:
        assert await app.run_job("forks", {"trace": str(trace)}) == 2
        pid = int(trace.read_text())
        try:
            assert is_alive(pid), "the mutant is not noticed"
        finally:
            end(pid)


async def test_without_sigkill_a_handler_that_ignores_sigterm_stays(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = Child.kill

    def never(child: Child, reason: str) -> None:
        asked.append(reason)

    monkeypatch.setattr(Child, "kill", never)
    options: dict[str, Any] = {**OPTIONS, "process_grace": "100ms"}
    async with TestApp(handlers=HANDLERS, **options) as app:
        try:
            with pytest.raises(RunFailed, match="timeout"):
                await app.run_job("ignores-term", {"trace": str(trace)})
            pid = int(trace.read_text())
            await until(lambda: any("did not stop" in reason for reason in asked), 20)
            assert is_alive(pid), "the mutant is not noticed"
        finally:
            monkeypatch.setattr(Child, "kill", real)
            end(pid)


async def test_without_a_memory_limit_a_leak_goes_on() -> None:
    """The limit of the test is 150 MB."""

    def measure_mb() -> float:
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in find_hosts(os.getpid())]
        return max(pages, default=0) * os.sysconf("SC_PAGE_SIZE") / 2**20

    async with App(":memory:", handlers=HANDLERS, **{**OPTIONS, "process_memory": 0}) as app, app.workers.background():
        job = await app.enqueue("leaks")
        await until(lambda: measure_mb() > 320, 60)  # more than twice the limit: what the child itself may allocate
        for pid in find_hosts(os.getpid()):
            end(pid)
        assert await app.jobs.result(job, timeout=60) == 2


async def test_output_that_is_kept_grows_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    monkeypatch.setattr(OutputLog, "take", lambda _self, data, _pid, _task: kept.append(data))
    async with TestApp(handlers=HANDLERS, **OPTIONS) as app:
        assert await grow_by_printing(app, 50) > MAX_GROWTH_MB
