"""A disk that is full, where Postgres keeps its tables or its log: commands are told so, nothing acknowledged is lost, and
work goes on by itself when there is room."""

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
from faultkit.trouble import Load, under_way

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
    """A small file system of the server's own."""
    place = own.folder / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        own.own(place)
        yield place
    finally:
        own.stop()
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    """Leaves no byte."""
    with (place / "ballast").open("wb", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def free(place: Path) -> None:
    (place / "ballast").unlink()


async def too_much(load: Load, kind: type[StoreUnavailable]) -> StoreUnavailable:
    """Starts something large until it is refused."""
    for n in range(2000):
        try:
            await load.app.start("line", {"filler": os.urandom(20_000).hex()}, key=f"large-{n}")
        except kind as problem:
            return problem
        load.acknowledged.append(f"large-{n}")
    raise AssertionError("the disk never was full")


def crashed_for_lack_of_space(own: postgres_server.Server) -> bool:
    lines = (own.folder / "postgres.log").read_text().splitlines()
    return any("PANIC" in line and "No space left on device" in line for line in lines)


@asynccontextmanager
async def kept_running(own: postgres_server.Server) -> AsyncIterator[None]:
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
            is_over = True  # a start under way is finished: nobody else knows its process yet


async def test_no_room_for_tables(own: postgres_server.Server, tmp_path: Path, tell: Callable[[str], None]) -> None:
    with small_disk(own, 48) as place:
        own.do(f"CREATE TABLESPACE small LOCATION '{place}'")
        own.do("CREATE DATABASE shop TABLESPACE small")
        async with under_way(own.url("brim").replace("/postgres?", "/shop?"), tmp_path, pace=0.05) as load:
            await load.more(10, TEST_TIMEOUT_S)
            fill(place)
            problem = await too_much(load, StoreFull)
            assert problem.code == "store_full"
            assert "free some disk space" in str(problem)
            refused = load.refused
            await until(lambda: load.refused > refused, TEST_TIMEOUT_S)
            free(place)
            back = await load.back(TEST_TIMEOUT_S)
    tell(f"no room for tables, {load}; work went on after {back:.1f} s")
    assert load.problems == []


async def test_no_room_for_the_log(own: postgres_server.Server, tmp_path: Path, tell: Callable[[str], None]) -> None:
    """Postgres cannot go on then: it crashes, and recovers by itself or stops, as the space left in its log allows. Somebody
    makes room and starts it if it has stopped."""
    with small_disk(own, 24) as place:
        own.stop()
        log = own.folder / "data" / "pg_wal"
        shutil.move(log, place / "log")
        for path in (place / "log", *(place / "log").rglob("*")):
            own.own(path)
        log.symlink_to(place / "log")
        own.start()
        async with under_way(own.url("brim"), tmp_path, pace=0.05) as load:
            await load.more(10, TEST_TIMEOUT_S)
            fill(place)
            await too_much(load, StoreUnavailable)
            await until(lambda: crashed_for_lack_of_space(own), TEST_TIMEOUT_S)
            free(place)
            async with kept_running(own):
                back = await load.back(TEST_TIMEOUT_S)
    tell(f"no room for the log, {load}; work went on after {back:.1f} s")
    assert load.problems == []
