"""The servers that the HTTP benchmark measures: processes of their own, in an empty folder."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from . import peers

WORKER = """
from penstock import flow


@flow("noop")
async def noop(_input, ctx):
    return None


@flow("answer")
async def answer(_input, ctx):
    for _ in range(1000):
        ctx.partial("x" * 1024)
    return None
"""
# As installed by pip, with compiled files, which this process may be set not to write.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Bench(NamedTuple):
    """A running server and its store."""

    port: int
    url: str
    pid: int
    ready_s: float


@asynccontextmanager
async def serve(url: str | None, *options: str) -> AsyncIterator[Bench]:
    """Start `penstock serve` in an empty folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "workers").mkdir()
        (folder / "workers" / "bench.py").write_text(WORKER)
        url = url or f"sqlite:///{name}/bench.db"
        command = [sys.executable, "-m", "penstock.cli", "serve", "--port", "0", "--json", "--url", url, *options]
        started = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT
        )
        assert process.stdout is not None
        try:
            address = json.loads(await process.stdout.readline())["address"]
            yield Bench(int(address.rpartition(":")[2]), url, process.pid, time.perf_counter() - started)
        finally:
            process.terminate()
            await process.wait()


@asynccontextmanager
async def serve_celery(broker: str) -> AsyncIterator[Bench]:
    """Start the FastAPI application with the Celery route."""
    script = Path(__file__).parent / "contenders" / "celery_fastapi.py"
    process = await asyncio.create_subprocess_exec(*peers.command("web"), script, broker, stdout=subprocess.PIPE)
    assert process.stdout is not None
    started = time.perf_counter()
    try:
        port = int(await process.stdout.readline())
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
        writer.close()
        yield Bench(port, broker, process.pid, time.perf_counter() - started)
    finally:
        process.terminate()
        await process.wait()


def read_memory(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_cpu(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds. Other work on the machine hardly changes it."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def describe(seconds: list[float]) -> str:
    """Return p50 and p99 in milliseconds."""
    ordered = sorted(seconds)
    p50, p99 = (ordered[int(len(ordered) * share)] * 1000 for share in (0.5, 0.99))
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"
