"""A file that is only read: nothing in it or beside it is changed, and what is read is of one moment."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from penstock.core.errors import StoreCorrupt, StoreError, StoreUnavailable
from penstock.ports.store import Retention
from penstock.ports.unit import JobState
from penstock.stores.sqlite import SqliteStore
from penstock.testing.contracts.samples import apply, event, job, unit


@asynccontextmanager
async def opened(path: Path, *, read_only: bool = False) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path), read_only=read_only)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A store with one job, closed."""
    path = tmp_path / "a store?.db"
    async with opened(path) as store:
        await apply(store, unit(jobs=[job("first")], events=[event()]))
    return path


def seen(path: Path) -> dict[str, bytes]:
    """Every file of the folder, but for the log's index, where readers of a live file leave their marks."""
    return {file.name: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")}


async def jobs(store: SqliteStore) -> list[str]:
    return [row.id for row in await store.jobs("orders", JobState.WAITING)]


async def test_everything_can_be_read(path: Path) -> None:
    before = seen(path)
    async with opened(path, read_only=True) as store:
        assert await jobs(store) == ["first"]
        assert [row.name for row in await store.queues()] == ["orders"]
        assert await store.job("first") is not None
        assert await store.feed(None)
        assert await store.streams()
        for nothing in (
            store.runs(),
            store.stuck_runs(),
            store.schedules(),
            store.waits(),
            store.states(""),
            store.run("r"),
        ):
            assert not await nothing
        assert (await store.describe())["bytes"] > 0
    assert seen(path) == before
    assert list(path.parent.iterdir()) == [path]


async def test_nothing_can_be_written(path: Path) -> None:
    before = seen(path)
    async with opened(path, read_only=True) as store:
        for change in (apply(store, unit(jobs=[job("second")])), store.pause("orders"), store.sweep(Retention())):
            with pytest.raises(StoreError, match=r"opened to be read only.*take \?mode=ro off"):
                await change
        with pytest.raises(StoreError, match="opened to be read only"):
            store.renew([], 1000)
    assert seen(path) == before


async def test_beside_one_that_writes(path: Path) -> None:
    async with opened(path) as writing, opened(path, read_only=True) as looking:
        await apply(writing, unit(jobs=[job("second")]))
        assert await jobs(looking) == ["first", "second"]
        await apply(writing, unit(jobs=[job("third")]))
        assert await jobs(looking) == ["first", "second", "third"]
    assert await _jobs_of(path) == ["first", "second", "third"]


async def test_one_that_writes_comes_and_goes(path: Path) -> None:
    async with opened(path, read_only=True) as looking:
        assert await jobs(looking) == ["first"]
        async with opened(path) as writing:
            await apply(writing, unit(jobs=[job("second")]))
            assert await jobs(looking) == ["first", "second"]
        async with opened(path) as writing:
            await apply(writing, unit(jobs=[job("third")]))
        assert await jobs(looking) == ["first", "second", "third"]


async def test_a_read_that_is_overtaken_is_no_answer(path: Path) -> None:
    def overtaken(cursor: apsw.Cursor) -> Any:
        """Reads, while another program changes the file and is done with it."""
        rows = cursor.execute("SELECT id FROM jobs").fetchall()
        other = apsw.Connection(str(path))
        other.execute("UPDATE jobs SET priority = 7")
        other.close()
        return rows

    async with opened(path, read_only=True) as looking:
        with pytest.raises(StoreUnavailable, match="was written while it was read: ask again"):
            await looking._reader.run(overtaken)
        assert await jobs(looking) == ["first"]


async def test_a_log_that_nobody_has_brought_in(path: Path, tmp_path: Path) -> None:
    """As a copy of a running store has it: to read it, SQLite would create a file."""
    elsewhere = tmp_path / "elsewhere" / "store.db"
    elsewhere.parent.mkdir()
    async with opened(path) as writing:
        await apply(writing, unit(jobs=[job("second")]))
        shutil.copy(path, elsewhere)
        shutil.copy(f"{path}-wal", f"{elsewhere}-wal")
    before = seen(elsewhere)
    with pytest.raises(StoreUnavailable, match=r"Copy .*store\.db and .*store\.db-wal to a folder of your own"):
        await _jobs_of(elsewhere)
    assert seen(elsewhere) == before
    assert not Path(f"{elsewhere}-shm").exists()
    async with opened(elsewhere) as store:
        assert await jobs(store) == ["first", "second"]


async def test_what_is_wrong_with_the_file(tmp_path: Path, path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"there is no file .*nope\.db"):
        await _jobs_of(tmp_path / "nope.db")
    assert not (tmp_path / "nope.db").exists()
    (tmp_path / "notes.txt").write_bytes(b"x" * 5000)
    with pytest.raises(StoreCorrupt, match=r"notes\.txt"):
        await _jobs_of(tmp_path / "notes.txt")
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(StoreError, match=r"has format 1, this Penstock reads \d: open it once where it may be written"):
        await _jobs_of(path)


async def test_without_the_right_to_write(path: Path) -> None:
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        if os.access(path, os.W_OK):
            pytest.skip("root may write anywhere; the command line's test has a way round it")
        assert await _jobs_of(path) == ["first"]
    finally:
        path.parent.chmod(0o700)


async def _jobs_of(path: Path) -> list[str]:
    async with opened(path, read_only=True) as store:
        return await jobs(store)
