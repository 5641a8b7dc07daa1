"""Children that crash, hang, leak, fork or write nonsense: their job fails or is retried, and the worker goes on."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from faulty_handlers import HANDLERS

from penstock import App
from penstock.core.errors import PythonMissing, RunFailed, RunnerLost
from penstock.runners.process import child, pool
from penstock.runners.process.options import ProcessOptions
from penstock.testing import TestApp
from penstock.testing.until import until

IS_FULL = os.environ.get("PENSTOCK_FAULTS") == "full"
MAX_GROWTH_MB = 30
OPTIONS: dict[str, Any] = {"process_pool": 2, "process_grace": "200ms", "grace": "100ms"}


@pytest.fixture
def app() -> Callable[..., TestApp]:
    return lambda **settings: TestApp(handlers=HANDLERS, **{**OPTIONS, **settings})


@pytest.fixture(autouse=True)
def _check_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(pool, "PING_INTERVAL_S", 0.2)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace"
    file.touch()
    return file


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def failures(app: App, queue: str) -> list[dict[str, Any]]:
    kinds = ("job.failed", "job.retried")
    return [e.data for e in await app.events.read_all(f"nq:queue:{queue}") if e.kind in kinds and "code" in e.data]


@pytest.mark.spec("000-6.16")
async def test_a_child_that_dies_fails_the_attempt_and_is_replaced(app: Callable[..., TestApp]) -> None:
    async with app() as one:
        assert await one.run_job("dies") == 2
        (failed,) = await failures(one, "dies")
        assert failed["code"] == RunnerLost.code
        assert "exit code 9" in failed["error"]
        assert "about to die" in failed["error"]


async def test_why_a_child_died_is_known_even_if_that_is_reported_late(
    app: Callable[..., TestApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "EXIT_TIMEOUT_S", 0)  # it is taken for one that closed its connection, and killed
    async with app() as one:
        with pytest.raises(RunFailed, match="SIGSEGV"):
            await one.run_job("always-dies")


async def test_a_child_that_always_dies_fails_the_job(app: Callable[..., TestApp]) -> None:
    async with app() as one:
        with pytest.raises(RunFailed, match="SIGSEGV"):
            await one.run_job("always-dies")
        assert await one.run_job("fine") != os.getpid()


@pytest.mark.parametrize(
    ("queue", "reason"), [("garbage", "bad frame"), ("endless-line", "bad frame"), ("closes", "SIGKILL")]
)
async def test_nonsense_ends_that_child_only(app: Callable[..., TestApp], queue: str, reason: str) -> None:
    async with app() as one:
        other = await one.run_job("fine")
        assert await one.run_job(queue) == 2
        (failed,) = await failures(one, queue)
        assert failed["code"] == RunnerLost.code
        assert reason in failed["error"]
        assert await one.run_job("fine")
        assert other


@pytest.mark.spec("000-6.17")
@pytest.mark.parametrize("queue", ["ignores-term", "swallows", "holds-gil"])
async def test_a_handler_that_does_not_stop_is_killed(app: Callable[..., TestApp], queue: str, trace: Path) -> None:
    async with app() as one:
        with pytest.raises(RunFailed, match="timeout"):
            await one.run_job(queue, {"trace": str(trace)})
        pid = int(trace.read_text())
        await until(lambda: not is_alive(pid), 20)
        assert await one.run_job("fine") != pid


@pytest.mark.parametrize("queue", ["spins", "sleeps", "blocks-loop"])
async def test_a_timeout_reaches_code_that_blocks(app: Callable[..., TestApp], queue: str, trace: Path) -> None:
    """The child itself stops the handler when the cancel frame arrives: no signal of the worker is needed."""
    async with app(process_grace="1h") as one:
        assert await one.run_job("fine")  # the child has imported the handlers: the timeout meets the handler itself
        with pytest.raises(RunFailed, match="timeout"):
            await one.run_job(queue, {"trace": str(trace)})
        await until(lambda: "stopped" in trace.read_text(), 20)
        assert await one.run_job("fine")


async def test_what_a_child_has_forked_ends_with_it(app: Callable[..., TestApp], trace: Path) -> None:
    async with app() as one:
        assert await one.run_job("forks", {"trace": str(trace)}) == 2
        pid = int(trace.read_text())
        await until(lambda: not is_alive(pid), 20)


@pytest.mark.spec("000-3.33", "000-6.17")
async def test_a_leak_is_stopped_at_the_memory_limit(app: Callable[..., TestApp]) -> None:
    async with app(process_memory=150) as one:
        assert await one.run_job("leaks") == 2
        (failed,) = await failures(one, "leaks")
        assert "process_memory" in failed["error"] or failed["name"] == "MemoryError"


async def grow_by_printing(app: TestApp, mb: int) -> float:
    """Let a child print twice this many MB; return by how many MB the peak of this process's memory grew."""
    await app.run_job("fine")
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is used now
    before = read_peak_mb()
    job = await app.enqueue("prints", {"mb": mb})

    async def has_ended() -> bool:
        found = await app.jobs.get(job)
        return found is not None and found.state == "completed"

    await until(has_ended, 240)
    return read_peak_mb() - before


def read_peak_mb() -> float:
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024


async def test_large_output_does_not_grow_the_worker(app: Callable[..., TestApp]) -> None:
    """The output is read and dropped, so a handler that prints much is not blocked either. At full length: 1 GB."""
    async with app() as one:
        assert await grow_by_printing(one, 512 if IS_FULL else 100) < MAX_GROWTH_MB


async def test_the_log_says_how_much_it_leaves_out(
    app: Callable[..., TestApp], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.runner")
    async with app() as one:
        await one.run_job("chatters")

        def count_dropped() -> int:
            return sum(int(record.args[2]) for record in caplog.records if "more than" in record.msg)  # type: ignore

        def shows_all() -> bool:
            lines = sum("): " in text for text in caplog.messages)
            return lines + count_dropped() == 1000

        await until(shows_all, 20)
        assert count_dropped() > 0


async def test_print_cannot_forge_a_frame(app: Callable[..., TestApp]) -> None:
    async with app() as one:
        assert await one.run_job("forges") == "real"


async def test_cpu_time_and_files_are_limited(app: Callable[..., TestApp]) -> None:
    async with app(process_cpu=1, process_files=64) as one:
        assert await one.run_job("opens-files") == "OSError24"
        assert await one.run_job("burns") == 2
        (failed,) = await failures(one, "burns")
        assert "SIGXCPU" in failed["error"]


@pytest.mark.spec("000-3.32")
async def test_the_timeout_of_handlers_without_one(app: Callable[..., TestApp]) -> None:
    async with app(process_timeout="2s") as one:
        assert await one.run_job("fine")
        with pytest.raises(RunFailed, match=r"longer than its timeout of 2 s"):
            await one.run_job("no-timeout")


async def test_calls_of_other_threads_have_no_order(app: Callable[..., TestApp]) -> None:
    async with app() as one:
        assert await one.run_job("threads") == ["B", "A"]


@pytest.mark.spec("000-3.27")
async def test_children_give_way_by_their_cpu_shares(app: Callable[..., TestApp]) -> None:
    """1024 are those of the worker; at half of them the system gives a busy process half the time."""
    own = os.nice(0)
    for shares, nice in ((1024, 0), (512, 3), (2, 19)):
        async with app(cpu_shares=shares) as one:
            assert await one.run_job("niceness") == min(own + nice, 19)


@pytest.mark.spec("000-3.29", "000-3.30", "000-3.34")
async def test_the_environment_is_an_allow_list(app: Callable[..., TestApp], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")
    monkeypatch.setenv("REGION", "eu")
    async with app(process_env=["MODE=fast"], process_env_allow=["REGION"]) as one:
        found, _, _ = await one.run_job("environment")
        assert "DATABASE_PASSWORD" not in found
        assert (found["MODE"], found["REGION"], found["PATH"]) == ("fast", "eu", os.environ["PATH"])
        folder = Path(found["TMPDIR"])
        assert folder.is_dir()
    assert not folder.parent.exists(), "its temporary files are removed"


async def test_a_child_is_replaced_after_some_jobs(app: Callable[..., TestApp]) -> None:
    async with app(process_jobs=2, process_pool=1) as one:
        pids = [await one.run_job("fine") for _ in range(5)]
        assert [pids[0] == pids[1], pids[1] == pids[2], pids[2] == pids[3], pids[3] == pids[4]] == [
            *(True, False, True, False)
        ]


@pytest.mark.parametrize("shares", [1024, 512], ids=["normal", "nice"])
@pytest.mark.parametrize("command", ["/no/such/python", "no-such-python -X dev"])
async def test_an_interpreter_that_does_not_exist_is_named(
    app: Callable[..., TestApp], command: str, shares: int
) -> None:
    """Also if it is started by `nice`, which only ends with exit code 127."""
    async with app(process_python=command, cpu_shares=shares) as one:
        with pytest.raises(RunFailed, match=f"interpreter '{command.split()[0]}' .*process_python"):
            await one.run_job("fine")
        (failed,) = await failures(one, "fine")
        assert failed["code"] == PythonMissing.code


async def test_another_interpreter_runs_the_handlers(app: Callable[..., TestApp], tmp_path: Path) -> None:
    """A virtual environment of its own, which finds Penstock where this one has it."""
    folder = tmp_path / "other"
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "only_here.py").write_text("VALUE = 7\n")
    (packages / "penstock.pth").write_text("\n".join(path for path in sys.path if path))
    async with app(process_python=f"{folder}/bin/python -X utf8") as one:
        _, executable, _ = await one.run_job("environment")
        assert executable == f"{folder}/bin/python"
        assert await one.run_job("imports-other") == [7, str(folder)]
    assert importlib.util.find_spec("only_here") is None


async def test_an_idle_child_that_does_not_answer_is_replaced(
    app: Callable[..., TestApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app(process_pool=1) as one:
        pid = await one.run_job("fine")
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(pool, "SILENCE_S", 0.5)
        await until(lambda: not is_alive(pid), 20)
        assert await one.run_job("fine") != pid


async def test_children_that_end_at_once_are_started_with_pauses(
    app: Callable[..., TestApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [pool.backoff_s(failures) for failures in (1, 2, 3, 9, 5000)] == [0.1, 0.2, 0.4, 25.6, 30]
    counted: list[int] = []
    monkeypatch.setattr(pool, "backoff_s", lambda failures: counted.append(failures) or 0.0)
    async with app(process_pool=1, process_python="false") as one:
        for _ in range(3):
            with pytest.raises(RunFailed, match="cannot be started"):
                await one.run_job("fine")
    assert counted == sorted(set(counted)), "each pause is longer than the one before"
    assert len(counted) >= 2


async def test_a_child_that_was_killed_takes_no_task() -> None:
    """It is among the idle ones until its end is noticed."""
    one = pool.Pool(ProcessOptions())
    dying, usable = Mock(killed_for="it was idle and did not answer"), Mock(killed_for=None)
    one._idle.extend((usable, dying))
    assert one.take_idle() is usable
    one._idle.append(dying)
    assert one.take_idle() is None
    await one.close()
