"""A full disk: commands fail with StoreFull, nothing acknowledged is lost, and work resumes when there is room."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import apsw
import pytest
from faultkit.worker_flows import FLOWS, HANDLERS, TRIGGERS

from penstock import App
from penstock.core.errors import StoreFull
from penstock.testing.faults import EffectLog
from penstock.testing.history import check, read_history
from penstock.testing.until import until

pytestmark = pytest.mark.xdist_group("faults")


class Disk(Protocol):
    folder: Path

    async def fill(self, app: App) -> None: ...

    async def free(self, app: App) -> None: ...


class SmallDisk:
    """A tmpfs of 48 megabytes (the write-ahead log alone may take 16), with a ballast file to fill it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    async def fill(self, app: App) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            for size in (65536, 4096, 512, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    async def free(self, app: App) -> None:
        self._ballast.unlink()


class FewPages:
    """A file that may not grow: the same error, without root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def fill(self, app: App) -> None:
        await self._limit(app, 1)  # below the current size: SQLite then uses the current size as the limit

    async def free(self, app: App) -> None:
        await self._limit(app, 1_000_000)

    async def _limit(self, app: App, pages: int) -> None:
        store: Any = app.store
        await store._writer.run(lambda cursor: cursor.execute(f"PRAGMA max_page_count = {pages}").fetchall())


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    mount_point = folder / "small"
    mount_point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(mount_point)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield SmallDisk(mount_point)
    finally:
        subprocess.run(["umount", "-l", mount_point], check=True)


@contextmanager
def few_pages(folder: Path) -> Iterator[Disk]:
    yield FewPages(folder)


@pytest.fixture(params=[small_disk, few_pages], ids=["tmpfs", "pages"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    with request.param(tmp_path) as disk:
        yield disk


async def test_a_full_disk_loses_nothing_and_work_resumes(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, show: Callable[[str], None]
) -> None:
    effects = EffectLog(tmp_path / "effects.jsonl")
    monkeypatch.setattr("faultkit.worker_flows.EFFECTS", effects)
    acknowledged: list[str] = []
    async with App(f"sqlite:///{disk.folder / 'penstock.db'}", handlers=HANDLERS, lease="30s") as app:
        async with app.workers.background(concurrency=10):
            await _start_some(app, acknowledged, 30)
            await until(lambda: _completed(app, 3), timeout=60)
            await disk.fill(app)
            slowest = 0.0
            for _ in range(3):
                slowest = max(slowest, await _start_until_full(app))
            assert app.store is not None
            await disk.free(app)
            freed = time.monotonic()
            await _start_some(app, acknowledged, 5)
            resumed = time.monotonic() - freed
            await until(lambda: _completed(app, len(acknowledged)), timeout=60)
            recovered = time.monotonic() - freed
        history = await read_history(app.store, effects=effects.read(), acknowledged=acknowledged, triggers=TRIGGERS)
        assert check(history) == []
        assert await app.store.stuck_runs() == []
        show(
            f"refused within {slowest:.1f} s, accepted again after {resumed:.1f} s, "
            f"all {len(acknowledged)} runs completed after {recovered:.1f} s"
        )
        assert slowest <= 2.0
        assert resumed <= 10.0
    connection = apsw.Connection(str(disk.folder / "penstock.db"))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


async def _start_some(app: App, acknowledged: list[str], count: int) -> None:
    for n in range(count):
        while True:
            try:
                acknowledged.append(await app.start(FLOWS[n % 3], {"n": n, "room": "x" * 200}))
                break
            except StoreFull:
                await asyncio.sleep(0.05)


async def _completed(app: App, count: int) -> bool:
    return len(await app.store.runs(statuses=["completed"], limit=1000)) >= count


async def _start_until_full(app: App) -> float:
    """Start large runs until the disk is full; return how long the refused call took."""
    for n in range(2000):
        started = time.monotonic()
        try:
            await app.start("line", {"n": n, "filler": os.urandom(5000).hex()})
        except StoreFull as problem:
            assert "no space left" in str(problem)
            assert problem.code == "store_full"
            return time.monotonic() - started
    raise AssertionError("the disk never became full")
