"""The runner contract for handlers in TypeScript."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from node_files import HANDLERS, SharedRunner, write_contract_files

import redis_server
from penstock.ports.runner import Runner
from penstock.testing import TestApp
from penstock.testing.contracts import RunnerContract
from penstock.testing.contracts.runner_edges import CrashCases


@pytest.fixture(scope="module")
def worker_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_contract_files(tmp_path_factory.mktemp("node") / "workers")


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def host() -> AsyncIterator[SharedRunner]:
    shared = SharedRunner()
    yield shared
    await shared.inner.close()


@pytest.mark.spec("000-16.11")
class NodeContract(CrashCases, RunnerContract):
    """The contract on one warm host."""

    def make_runner(self, concurrency: int) -> Runner:
        raise NotImplementedError("handlers in TypeScript name their runner themselves")

    @pytest_asyncio.fixture(loop_scope="class")
    async def app(  # type: ignore[override]
        self, worker_files: Path, host: SharedRunner, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[TestApp]:
        host.install(monkeypatch)
        async with TestApp(self.make_url(), worker_files, grace="100ms", **self.BLOBS) as app:
            assert not app.registry.problems
            yield app

    async def test_error_keeps_its_name_message_code_and_stack(self, app: TestApp) -> None:
        error = await self._error(app, await app.run_flow("fails"))
        assert (error["name"], error["error"], error["code"]) == ("PaymentError", "no money left", "card_declined")
        (line,) = [line for line in error["stack"].splitlines() if "_handlers.ts" in line]
        assert _line_of("throw new PaymentError('no money left')") in line


def _line_of(text: str) -> str:
    return f":{next(n for n, line in enumerate(HANDLERS.read_text().splitlines(), 1) if text in line)}:"


class TestNodeOnSQLite(NodeContract):
    pass


class TestNodeOnRedis(NodeContract):
    def make_url(self) -> str:
        return redis_server.url()


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def host_with_threads() -> AsyncIterator[SharedRunner]:
    shared = SharedRunner(threads=2)
    yield shared
    await shared.inner.close()


@pytest.mark.spec("000-15.4", "004-6.3")
class TestNodeThreads(NodeContract):
    """The same handlers on worker threads."""

    @pytest.fixture
    def host(self, host_with_threads: SharedRunner) -> SharedRunner:
        return host_with_threads
