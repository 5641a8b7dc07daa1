"""The runner contract, for handlers on the event loop, on threads and in another process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from process_runner import ProcessRunner

from penstock import flow
from penstock.core.errors import RunnerLost
from penstock.ports.frames import Done, Emit, decode_handler_frame, encode_frame
from penstock.ports.runner import Runner
from penstock.runners.inprocess import InProcessRunner
from penstock.runners.remote import RemoteHandlerError, to_error, to_exception
from penstock.testing import TestApp, auto_clock
from penstock.testing.contracts import RunnerContract


@pytest.fixture
def slow_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a test more time: a child starts a Python for every attempt."""
    monkeypatch.setattr(auto_clock, "TIMEOUT_S", 60.0)


class TestAsyncHandlers(RunnerContract):
    def make_runner(self, concurrency: int) -> Runner:
        return InProcessRunner(concurrency)


class TestThreadHandlers(RunnerContract):
    is_async = False

    def make_runner(self, concurrency: int) -> Runner:
        return InProcessRunner(concurrency)


@pytest.mark.spec("000-6.1")
class TestProcessHandlers(RunnerContract):
    @pytest.fixture(autouse=True)
    def _allow_more_time(self, slow_children: None) -> None: ...

    def make_runner(self, concurrency: int) -> Runner:
        self.runner = ProcessRunner(concurrency)
        return self.runner

    async def test_handlers_run_in_children_that_are_gone_afterwards(self, app: TestApp) -> None:
        await app.run_flow("echo", 1)
        assert self.runner.pids
        assert os.getpid() not in self.runner.pids
        for pid in self.runner.pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@flow("dies", emits=[], retry={"attempts": 2, "backoff": {"type": "fixed", "delayMs": 1}})
async def dies(input: Any, ctx: Any) -> int:
    if ctx.attempt == 1:
        os._exit(9)
    return int(ctx.attempt)


@flow("garbles", emits=[])
async def garbles(input: Any, ctx: Any) -> None:
    with Path(f"/proc/self/fd/{ctx._wire._out.fileno()}").open("wb", buffering=0) as pipe:
        pipe.write(b'{"type": "emit", "kind": 7}\n')


@pytest.mark.usefixtures("slow_children")
async def test_a_child_that_dies_fails_the_attempt() -> None:
    async with TestApp(handlers=[dies], runner=ProcessRunner) as app:
        view = await app.run_flow("dies")
        assert view.result == 2
        failed = [event for event in await app.events.read_all(f"nq:flow:{view.id}") if "error" in (event.data or {})]
        assert [event.data["code"] for event in failed] == [RunnerLost.code]


@pytest.mark.usefixtures("slow_children")
async def test_a_bad_frame_fails_the_attempt() -> None:
    async with TestApp(handlers=[garbles], runner=ProcessRunner) as app:
        view = await app.run_flow("garbles")
        (failed,) = [event for event in await app.events.read_all(f"nq:flow:{view.id}") if event.kind == "step.failed"]
        assert failed.data["code"] == RunnerLost.code
        assert "sent a bad frame" in failed.data["error"]


def test_frames_are_json_objects_with_a_type() -> None:
    assert encode_frame(Emit("order.paid", {"id": 7})) == b'{"type":"emit","kind":"order.paid","data":{"id":7}}'
    assert encode_frame(Done()) == b'{"type":"done"}'
    assert decode_handler_frame(b'{"type":"done","result":[1]}') == Done([1])


def test_an_exception_of_another_process_keeps_its_names() -> None:
    problem = to_exception(to_error(KeyError("x")), {})
    assert isinstance(problem, RemoteHandlerError)
    assert [cls.__name__ for cls in type(problem).__mro__[:3]] == ["KeyError", "LookupError", "RemoteHandlerError"]
