"""Connections that the server cuts while handlers use the store: no run fails, whatever the handler was doing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from faultkit.config import FULL

import postgres_server
import redis_server
from penstock import App, Node, flow, job
from penstock.core.errors import StoreUnavailable
from penstock.core.outage_retry import OutageRetry

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(300)]

RUNS = 150 if FULL else 30
MAX_CUTS = 200 if FULL else 25  # then the rest of the work ends without cuts, however slow the machine
CUT_PAUSE_S = 0.1
TEST_TIMEOUT_S = 240
CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY random() LIMIT 2"
)


class CuttingServer:
    """A server whose connections can be cut."""

    def __init__(self, server: postgres_server.Server | redis_server.Server, url: str) -> None:
        self._server = server
        self.url = url
        self.cuts = 0

    @asynccontextmanager
    async def cutting(self) -> AsyncIterator[None]:
        """Cut connections every few milliseconds, `MAX_CUTS` times, and first before the block starts."""
        has_cut = asyncio.Event()
        task = asyncio.create_task(self._cut_redis(has_cut) if self.is_redis else self._cut_postgres(has_cut))
        await has_cut.wait()
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def is_redis(self) -> bool:
        return isinstance(self._server, redis_server.Server)

    async def _cut_postgres(self, has_cut: asyncio.Event) -> None:
        rng = random.Random(3)
        connection = await asyncpg.connect(self.url.partition("?")[0])
        try:
            while self.cuts < MAX_CUTS:
                await connection.execute(CUT)
                self.cuts += 1
                has_cut.set()
                await asyncio.sleep(rng.random() * CUT_PAUSE_S)
        finally:
            connection.terminate()

    async def _cut_redis(self, has_cut: asyncio.Event) -> None:
        rng = random.Random(3)
        assert isinstance(self._server, redis_server.Server)
        while self.cuts < MAX_CUTS:
            await asyncio.to_thread(self._server.command, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            self.cuts += 1
            has_cut.set()
            await asyncio.sleep(rng.random() * CUT_PAUSE_S)


@pytest.fixture(scope="module", params=["postgres", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[postgres_server.Server | redis_server.Server]:
    with tempfile.TemporaryDirectory(prefix="penstock-cut-") as name:
        is_redis = request.param == "redis"
        one = redis_server.Server(Path(name)) if is_redis else postgres_server.Server(Path(name))
        yield one
        one.stop()


@pytest.fixture
def cutter(server: postgres_server.Server | redis_server.Server) -> CuttingServer:
    if isinstance(server, redis_server.Server):
        server.command("FLUSHALL")
        return CuttingServer(server, server.url())
    return CuttingServer(server, server.url(f"cut{os.urandom(4).hex()}"))


async def _pause() -> None:
    await asyncio.sleep(0.002)


async def _get(n: int, ctx: Any) -> int:
    for _ in range(10):
        assert await ctx.state.get("nothing", 7) == 7
        assert await ctx.state.list("no") == {}
        await _pause()
    return n


async def _patch(n: int, ctx: Any) -> int:
    for _ in range(3):
        await ctx.shared.patch("total", lambda old: (old or 0) + 1)
        await _pause()
    return n


async def _durable(n: int, ctx: Any) -> int:
    for k in range(5):
        assert await ctx.run(f"call {k}", lambda k=k: k) == k
    return n


async def _wait(n: int, ctx: Any) -> int:
    await ctx.wait.time("10ms")
    await ctx.wait.time("10ms")
    return n


@pytest.mark.parametrize("body", [_get, _patch, _durable, _wait], ids=["get", "patch", "run", "wait"])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "def"])
async def test_no_run_fails_when_connections_are_cut(
    cutter: CuttingServer, body: Callable[..., Any], is_async: bool
) -> None:
    patient = OutageRetry("the test", has_answered=True)  # the first read of a wait is not repeated
    work = flow("work")(body if is_async else _in_thread(body))
    async with App(cutter.url, handlers=[work], lease="30s") as app:
        ids = [await app.start("work", n) for n in range(RUNS)]
        async with app.workers.background(concurrency=20), cutter.cutting():
            runs = await asyncio.gather(*(patient.call(app.runs.wait, id, timeout=TEST_TIMEOUT_S) for id in ids))
        assert cutter.cuts > 0
        failed = [run.id for run in runs if run.status != "completed"]
        assert [(await app.runs.get(id)).error for id in failed] == []
        if body is _patch:
            assert await app.state.get("total") == 3 * RUNS


def _in_thread(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler as a `def`, which runs on a thread."""

    def get(n: int, ctx: Any) -> int:
        for _ in range(5):
            assert ctx.state.get("nothing", 7) == 7
        return n

    def patch(n: int, ctx: Any) -> int:
        for _ in range(3):
            ctx.shared.patch("total", lambda old: (old or 0) + 1)
        return n

    def durable(n: int, ctx: Any) -> int:
        for k in range(5):
            assert ctx.run(f"call {k}", lambda k=k: k) == k
        return n

    def wait(n: int, ctx: Any) -> int:
        ctx.wait.time("10ms")
        ctx.wait.time("10ms")
        return n

    return {_get: get, _patch: patch, _durable: durable, _wait: wait}[body]


async def test_no_job_fails_when_connections_are_cut_while_it_reads_its_children(cutter: CuttingServer) -> None:
    @job(queue="leaf")
    async def leaf(n: int) -> int:
        return n

    @job(queue="root")
    async def root(n: int, ctx: Any) -> int:
        for _ in range(5):
            values = await ctx.children_values()
            assert sorted(values.values()) == [n, n + 1]
            assert await ctx.failed_children() == {}
        return sum(values.values())

    patient = OutageRetry("the test", has_answered=True)
    async with App(cutter.url, handlers=[leaf, root], lease="5s") as app:
        trees = [
            await app.jobs.enqueue_tree(Node(root, n, children=[Node(leaf, n), Node(leaf, n + 1)])) for n in range(RUNS)
        ]
        async with app.workers.background(concurrency=20), cutter.cutting():
            results = [await patient.call(app.jobs.result, tree.id, timeout=TEST_TIMEOUT_S) for tree in trees]
        assert results == [2 * n + 1 for n in range(RUNS)]


async def test_only_our_own_errors_leave_a_store_whose_connections_are_cut(cutter: CuttingServer) -> None:
    """An outside read may fail, with an error that names the server; never with one of the driver's."""
    problems: list[str] = []

    async def read(app: App) -> None:
        for n in range(300):
            try:
                await app.state.get(f"k{n}")
                await app.state.set(f"k{n}", n)
            except StoreUnavailable as problem:
                problems.append(str(problem))

    async with App(cutter.url, handlers=[]) as app, cutter.cutting():
        await asyncio.gather(*(read(app) for _ in range(8)))
    assert not [text for text in problems if "another operation" in text or "protocol" in text]
