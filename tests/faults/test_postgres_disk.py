"""A full disk for the tables or the write-ahead log: commands fail with `store_full`, nothing acknowledged is lost, and work
continues by itself when there is space."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from faultkit.load import Load, run_load

import postgres_server
from penstock.core.errors import StoreFull, StoreUnavailable
from penstock.testing.until import until

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(600)]

TEST_TIMEOUT_S = 60
SMALL_LOG = ("max_wal_size=4MB", "min_wal_size=2MB", "wal_recycle=off")


@pytest.fixture
def own() -> Iterator[postgres_server.Server]:
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as folder:
        server = postgres_server.Server(Path(folder), *SMALL_LOG, durable=True, initdb=("--wal-segsize=1",))
        yield server
        server.stop()


@contextmanager
def small_disk(own: postgres_server.Server, megabytes: int) -> Iterator[Path]:
    """Mount a small file system for the server."""
    folder = own.folder / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        own.own(folder)
        yield folder
    finally:
        own.stop()
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Use up every byte."""
    with (folder / "ballast").open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def free(folder: Path) -> None:
    (folder / "ballast").unlink()


async def start_until_refused(load: Load, kind: type[StoreUnavailable]) -> StoreUnavailable:
    """Start large runs until one is refused. Return the error."""
    for n in range(2000):
        try:
            await load.app.start("line", {"filler": os.urandom(20_000).hex()}, key=f"large-{n}")
        except kind as problem:
            return problem
        load.acknowledged.append(f"large-{n}")
    raise AssertionError("the disk never filled up")


def has_crashed_for_lack_of_space(own: postgres_server.Server) -> bool:
    lines = (own.folder / "postgres.log").read_text().splitlines()
    return any("PANIC" in line and "No space left on device" in line for line in lines)


@asynccontextmanager
async def keep_running(own: postgres_server.Server) -> AsyncIterator[None]:
    """Start the server again each time it has stopped, as an administrator or systemd does."""
    is_over = False

    async def watch() -> None:
        while not is_over:
            if own.process.poll() is not None:
                await asyncio.to_thread(own.start)
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch())
        try:
            yield
        finally:
            is_over = True  # let a start in progress finish: until then only its thread knows the process


async def test_no_space_for_tables(own: postgres_server.Server, tmp_path: Path, show: Callable[[str], None]) -> None:
    with small_disk(own, 48) as folder:
        own.do(f"CREATE TABLESPACE small LOCATION '{folder}'")
        own.do("CREATE DATABASE shop TABLESPACE small")
        async with run_load(own.url("brim").replace("/postgres?", "/shop?"), tmp_path, pace=0.05) as load:
            await load.wait_for_starts(10, TEST_TIMEOUT_S)
            fill(folder)
            problem = await start_until_refused(load, StoreFull)
            assert problem.code == "store_full"
            assert "no disk space left" in str(problem)
            refused = load.refused
            await until(lambda: load.refused > refused, TEST_TIMEOUT_S)
            free(folder)
            back = await load.wait_for_recovery(TEST_TIMEOUT_S)
    show(f"no space for tables, {load}; work continued after {back:.1f} s")
    assert load.problems == []


async def test_no_space_for_the_write_ahead_log(
    own: postgres_server.Server, tmp_path: Path, show: Callable[[str], None]
) -> None:
    """Postgres crashes, and recovers or stops, as the space left in its log allows. An administrator makes space and starts it if
    it has stopped."""
    with small_disk(own, 24) as folder:
        own.stop()
        log = own.folder / "data" / "pg_wal"
        shutil.move(log, folder / "log")
        for path in (folder / "log", *(folder / "log").rglob("*")):
            own.own(path)
        log.symlink_to(folder / "log")
        own.start()
        async with run_load(own.url("brim"), tmp_path, pace=0.05) as load:
            await load.wait_for_starts(10, TEST_TIMEOUT_S)
            fill(folder)
            await start_until_refused(load, StoreUnavailable)
            await until(lambda: has_crashed_for_lack_of_space(own), TEST_TIMEOUT_S)
            free(folder)
            async with keep_running(own):
                back = await load.wait_for_recovery(TEST_TIMEOUT_S)
    show(f"no space for the log, {load}; work continued after {back:.1f} s")
    assert load.problems == []
