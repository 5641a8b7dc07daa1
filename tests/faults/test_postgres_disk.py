"""A disk that is full, where Postgres keeps its tables or its log: commands are told so, nothing acknowledged is lost, and
work goes on by itself when there is room."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """A small file system of the server's own."""
    place = own.folder / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
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


async def test_no_room_for_tables(own: postgres_server.Server, tmp_path: Path, show: Callable[[str], None]) -> None:
    with small_disk(own, 48) as place:
        own.do(f"CREATE TABLESPACE small LOCATION '{place}'")
        own.do("CREATE DATABASE shop TABLESPACE small")
        async with run_load(own.url("brim").replace("/postgres?", "/shop?"), tmp_path, pace=0.05) as load:
            await load.wait_for_starts(10, TEST_TIMEOUT_S)
            fill(place)
            problem = await too_much(load, StoreFull)
            assert problem.code == "store_full"
            assert "free some disk space" in str(problem)
            refused = load.refused
            await until(lambda: load.refused > refused, TEST_TIMEOUT_S)
            free(place)
            back = await load.wait_for_recovery(TEST_TIMEOUT_S)
    show(f"no room for tables, {load}; work went on after {back:.1f} s")
    assert load.problems == []


async def test_no_room_for_the_log(own: postgres_server.Server, tmp_path: Path, show: Callable[[str], None]) -> None:
    """Postgres cannot go on then: it stops, and somebody makes room and starts it again."""
    with small_disk(own, 24) as place:
        own.stop()
        log = own.folder / "data" / "pg_wal"
        shutil.move(log, place / "log")
        for path in (place / "log", *(place / "log").rglob("*")):
            own.own(path)
        log.symlink_to(place / "log")
        own.start()
        async with run_load(own.url("brim"), tmp_path, pace=0.05) as load:
            await load.wait_for_starts(10, TEST_TIMEOUT_S)
            fill(place)
            await too_much(load, StoreUnavailable)
            await until(lambda: own.process.poll() is not None, TEST_TIMEOUT_S)
            free(place)
            await asyncio.to_thread(own.start)
            back = await load.wait_for_recovery(TEST_TIMEOUT_S)
    assert "No space left on device" in (own.folder / "postgres.log").read_text()
    show(f"no room for the log, {load}; work went on after {back:.1f} s")
    assert load.problems == []
