"""A file opened read-only: neither the file nor its folder changes, and each read sees one state."""

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
from penstock.stores.sqlite import SqliteStore, schema
from penstock.testing.contracts.samples import apply, event, job, unit


@asynccontextmanager
async def open_store(path: Path, *, read_only: bool = False) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path), read_only=read_only)
    try:
        await store.open()
        yield store
    finally:
        await store.close()


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """Return the path of a closed store with one job."""
    path = tmp_path / "a store?.db"
    async with open_store(path) as store:
        await apply(store, unit(jobs=[job("first")], events=[event()]))
    return path


def files(path: Path) -> dict[str, bytes]:
    """Return every file of the folder except the log's index, which readers of a live file change."""
    return {file.name: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")}


async def jobs(store: SqliteStore) -> list[str]:
    return [row.id for row in await store.jobs("orders", JobState.WAITING)]


async def test_everything_can_be_read(path: Path) -> None:
    before = files(path)
    async with open_store(path, read_only=True) as store:
        assert await jobs(store) == ["first"]
        assert [row.name for row in await store.queues()] == ["orders"]
        assert await store.job("first") is not None
        assert await store.feed(None)
        assert await store.streams()
        for nothing in (
            store.runs(),
            store.stuck_runs(),
            store.schedules(),
            store.waits_by_time(),
            store.states(""),
            store.run("r"),
        ):
            assert not await nothing
        assert (await store.describe())["bytes"] > 0
    assert files(path) == before
    assert list(path.parent.iterdir()) == [path]


async def test_nothing_can_be_written(path: Path) -> None:
    before = files(path)
    async with open_store(path, read_only=True) as store:
        for change in (apply(store, unit(jobs=[job("second")])), store.pause("orders"), store.sweep(Retention())):
            with pytest.raises(StoreError, match=r"is open read-only.*remove \?mode=ro"):
                await change
        with pytest.raises(StoreError, match="open read-only"):
            store.renew([], 1000)
    assert files(path) == before


async def test_next_to_a_writer(path: Path) -> None:
    async with open_store(path) as writing, open_store(path, read_only=True) as reading:
        await apply(writing, unit(jobs=[job("second")]))
        assert await jobs(reading) == ["first", "second"]
        await apply(writing, unit(jobs=[job("third")]))
        assert await jobs(reading) == ["first", "second", "third"]
    assert await _jobs_of(path) == ["first", "second", "third"]


async def test_a_writer_comes_and_goes(path: Path) -> None:
    async with open_store(path, read_only=True) as reading:
        assert await jobs(reading) == ["first"]
        async with open_store(path) as writing:
            await apply(writing, unit(jobs=[job("second")]))
            assert await jobs(reading) == ["first", "second"]
        async with open_store(path) as writing:
            await apply(writing, unit(jobs=[job("third")]))
        assert await jobs(reading) == ["first", "second", "third"]


async def test_a_read_during_a_write_is_refused(path: Path) -> None:
    def read_during_write(cursor: apsw.Cursor) -> Any:
        """Read while another program changes the file and closes it."""
        rows = cursor.execute("SELECT id FROM jobs").fetchall()
        other = apsw.Connection(str(path))
        other.execute("UPDATE jobs SET priority = 7")
        other.close()
        return rows

    async with open_store(path, read_only=True) as reading:
        with pytest.raises(StoreUnavailable, match="was changed while it was being read; read it again"):
            await reading._reader.run(read_during_write)
        assert await jobs(reading) == ["first"]


async def test_a_log_without_its_index(path: Path, tmp_path: Path) -> None:
    """A copy of a running store has one: to read it, SQLite would create a file."""
    elsewhere = tmp_path / "elsewhere" / "store.db"
    elsewhere.parent.mkdir()
    async with open_store(path) as writing:
        await apply(writing, unit(jobs=[job("second")]))
        shutil.copy(path, elsewhere)
        shutil.copy(f"{path}-wal", f"{elsewhere}-wal")
    before = files(elsewhere)
    with pytest.raises(
        StoreUnavailable, match=r"Copy .*store\.db and .*store\.db-wal to a folder that you can write to"
    ):
        await _jobs_of(elsewhere)
    assert files(elsewhere) == before
    assert not Path(f"{elsewhere}-shm").exists()
    async with open_store(elsewhere) as store:
        assert await jobs(store) == ["first", "second"]


async def test_files_that_cannot_be_read(tmp_path: Path, path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"file .*nope\.db not found"):
        await _jobs_of(tmp_path / "nope.db")
    assert not (tmp_path / "nope.db").exists()
    (tmp_path / "notes.txt").write_bytes(b"x" * 5000)
    with pytest.raises(StoreCorrupt, match=r"notes\.txt"):
        await _jobs_of(tmp_path / "notes.txt")
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(StoreError, match=r"older version of Penstock .* its schema version is 1, .*use a new file"):
        await _jobs_of(path)
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match=r"newer version of Penstock: its schema version is 99.*Upgrade Penstock"):
        await _jobs_of(path)
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError, match=r"empty.db has no schema yet; open it once without \?mode=ro"):
        await _jobs_of(tmp_path / "empty.db")


async def test_a_file_to_migrate(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only open does not migrate a file, and refuses it with what to do."""
    before = files(path)
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    with pytest.raises(
        StoreError, match=r"schema version \d+, but this version of Penstock reads \d+; open it once without \?mode=ro"
    ):
        await _jobs_of(path)
    assert files(path) == before


async def test_without_write_permission(path: Path) -> None:
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        if os.access(path, os.W_OK):
            pytest.skip("root may write anywhere; the command line's test has a way round it")
        assert await _jobs_of(path) == ["first"]
    finally:
        path.parent.chmod(0o700)


async def _jobs_of(path: Path) -> list[str]:
    async with open_store(path, read_only=True) as store:
        return await jobs(store)
