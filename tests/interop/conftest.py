"""Fixtures: BullMQ and pg-boss for Node, on the same Redis and Postgres as our tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import postgres_server
import redis_server
from node_programs import installed
from node_programs import node as node_binary
from penstock.testing.until import until

HERE = Path(__file__).parent
TEST_TIMEOUT_S = 30
SCRIPT = "peer.mjs"


@pytest.fixture(scope="session")
def node_program() -> Path:
    """BullMQ's program."""
    return installed(HERE, SCRIPT)


@pytest.fixture(scope="session")
def boss_program() -> Path:
    """pg-boss' program."""
    return installed(HERE / "pgboss", SCRIPT)


class NodeProcess:
    """A Node program that answers commands and reports events."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._replies: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.events: list[dict[str, Any]] = []
        self.reading = asyncio.create_task(self._read())

    async def call(self, verb: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
        async with asyncio.timeout(TEST_TIMEOUT_S):
            reply = await self._replies.get()
        assert "error" not in reply, reply
        return reply["reply"]

    async def wait_for_event(self, event: str, job: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            return next((one for one in self.events if one["event"] == event and one["jobId"] == job), None)

        return await until(found, TEST_TIMEOUT_S)  # type: ignore[no-any-return]

    async def job_in(self, queue: str, id: str, state: str) -> dict[str, Any]:
        async def there() -> dict[str, Any] | None:
            job = await self.call("job", queue=queue, id=id)
            return job if job is not None and job["state"] == state else None

        return await until(there, TEST_TIMEOUT_S)  # type: ignore[no-any-return]

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            message = json.loads(line)
            if "event" in message:
                self.events.append(message)
            else:
                self._replies.put_nowait(message)

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(TEST_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self.reading


@pytest.fixture
def redis_url() -> str:
    """Return the URL of an empty database."""
    return redis_server.url()


@pytest_asyncio.fixture
async def node(node_program: Path, redis_url: str) -> AsyncIterator[NodeProcess]:
    port, db = redis_url.rpartition(":")[2].split("/")
    async with _started(node_program, port, db) as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def boss(boss_program: Path) -> AsyncIterator[NodeProcess]:
    """pg-boss in the schema `pgboss` of the database that `postgres_server.url()` is in."""
    async with _started(boss_program, postgres_server.server().url().partition("?")[0], "pgboss") as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def boss_tables(boss_program: Path) -> str:
    """Return a schema with the tables of a pg-boss that does not run: no maintenance of its own meets our rows."""
    postgres_server.server().run("DROP SCHEMA IF EXISTS badboss CASCADE")
    async with _started(boss_program, postgres_server.server().url().partition("?")[0], "badboss") as process:
        await process.call("schedules")
    return "badboss"


@asynccontextmanager
async def _started(program: Path, *arguments: str) -> AsyncIterator[NodeProcess]:
    process = await asyncio.create_subprocess_exec(
        node_binary(), str(program), *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    node_process = NodeProcess(process)
    try:
        yield node_process
    finally:
        await node_process.end()
