"""The runner contract, for handlers on the event loop, on threads and in child processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from shared_processes import SharedProcesses

import redis_server
from penstock.ports.frames import Done, Emit, decode_handler_frame, encode_frame
from penstock.ports.runner import Runner
from penstock.runners.inprocess import InProcessRunner
from penstock.runners.process.options import ProcessOptions
from penstock.runners.process.runner import ProcessRunner
from penstock.runners.remote import RemoteHandlerError, to_error, to_exception
from penstock.testing.contracts import RunnerContract
from penstock.testing.contracts.runner_edges import CrashCases


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def processes() -> AsyncIterator[ProcessRunner]:
    processes = ProcessRunner(ProcessOptions(size=2, grace_s=1.0))
    yield processes
    await processes.close()


class TestAsyncHandlers(RunnerContract):
    def make_runner(self, concurrency: int) -> Runner:
        return InProcessRunner(concurrency)


class TestAsyncHandlersOnRedis(TestAsyncHandlers):
    def make_url(self) -> str:
        return redis_server.url()


class TestThreadHandlers(TestAsyncHandlers):
    is_async = False


class TestThreadHandlersOnRedis(TestAsyncHandlersOnRedis):
    is_async = False


@pytest.mark.spec("000-6.1", "000-6.12", "000-6.13", "000-6.14", "000-5.5")
class TestProcessHandlers(CrashCases, RunnerContract):
    @pytest.fixture(autouse=True)
    def _share(self, processes: ProcessRunner) -> None:
        self._shared = processes

    def make_runner(self, concurrency: int) -> Runner:
        return SharedProcesses(self._shared, concurrency)


class TestProcessHandlersOnRedis(TestProcessHandlers):
    def make_url(self) -> str:
        return redis_server.url()


class TestSyncProcessHandlers(TestProcessHandlers):
    is_async = False


class TestSyncProcessHandlersOnRedis(TestProcessHandlersOnRedis):
    is_async = False


def test_frames_are_json_objects_with_a_type() -> None:
    assert encode_frame(Emit("order.paid", {"id": 7})) == b'{"type":"emit","kind":"order.paid","data":{"id":7}}'
    assert encode_frame(Done()) == b'{"type":"done"}'
    assert decode_handler_frame(b'{"type":"done","result":[1]}') == Done([1])


def test_an_exception_of_another_process_keeps_its_names() -> None:
    problem = to_exception(to_error(KeyError("x")), {})
    assert isinstance(problem, RemoteHandlerError)
    assert [cls.__name__ for cls in type(problem).__mro__[:3]] == ["KeyError", "LookupError", "RemoteHandlerError"]
