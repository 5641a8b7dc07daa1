"""Files of other programs or schema versions, damaged files, and permissions."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path

import apsw
import pytest

from penstock.core.errors import StoreCorrupt, StoreError, StoreUnavailable
from penstock.stores.sqlite import SqliteStore, schema
from penstock.testing.contracts.samples import apply, event, job, unit


async def open_and_close(path: Path) -> None:
    store = SqliteStore(str(path))
    try:
        await store.open()
    finally:
        await store.close()


def create_foreign_database(path: Path, version: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE contacts (name TEXT)")
    connection.execute("INSERT INTO contacts VALUES ('Ada')")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


@pytest.mark.parametrize("content", [b"hello", b"x" * 5000, b"SQLite format 3\x00" + b"\xff" * 5000])
async def test_not_a_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=r"notes\.txt"):
        await open_and_close(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("version", [0, 1, 4, 7])
async def test_a_database_of_another_program_is_refused_unchanged(tmp_path: Path, version: int) -> None:
    path = tmp_path / "contacts.db"
    create_foreign_database(path, version)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="another program"):
        await open_and_close(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["contacts.db"]


def set_version(path: Path, version: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


async def test_a_new_file_has_the_current_schema_version(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await open_and_close(path)
    connection = apsw.Connection(str(path))
    versions = [connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")]
    connection.close()
    assert versions == [(schema.APPLICATION_ID,), (schema.SCHEMA_VERSION,)]


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    await open_and_close(path)
    set_version(path, 99)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer version of Penstock: its schema version is 99.*Upgrade Penstock"):
        await open_and_close(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [0, 1, schema.FIRST_VERSION - 1])
async def test_an_unreleased_schema_is_refused(tmp_path: Path, version: int) -> None:
    path = tmp_path / "old.db"
    await open_and_close(path)
    set_version(path, version)
    before = path.read_bytes()
    with pytest.raises(
        StoreError, match=rf"older version of Penstock .* its schema version is {version}, .*use a new file"
    ):
        await open_and_close(path)
    assert path.read_bytes() == before


def add_migration(monkeypatch: pytest.MonkeyPatch, statements: str) -> None:
    """Pretend that the next version of the schema adds `statements`."""
    read = schema._read
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, "test.sql"))
    monkeypatch.setattr(schema, "SCHEMA_VERSION", schema.SCHEMA_VERSION + 1)
    monkeypatch.setattr(schema, "_read", lambda file: statements if file == "test.sql" else read(file))


async def test_an_older_schema_is_migrated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.db"
    store = SqliteStore(str(path))
    await store.open()
    await apply(store, unit(jobs=[job("kept")]))
    await store.close()
    add_migration(monkeypatch, "CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('migrated')")
    for _ in range(2):
        await open_and_close(path)
    connection = apsw.Connection(str(path))
    notes = connection.execute("SELECT text FROM notes").fetchall()
    jobs = connection.execute("SELECT id FROM jobs").fetchall()
    version = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    assert (notes, jobs, version) == ([("migrated",)], [("kept",)], (schema.SCHEMA_VERSION,))


async def test_concurrent_opens_migrate_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.db"
    await open_and_close(path)
    add_migration(monkeypatch, "CREATE TABLE notes (text TEXT)")  # a second time it would fail
    await asyncio.gather(*(open_and_close(path) for _ in range(5)))


async def test_a_failing_migration_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "old.db"
    await open_and_close(path)
    with monkeypatch.context() as newer:
        add_migration(newer, "CREATE TABLE notes (text TEXT); INSERT INTO missing VALUES (1)")
        with pytest.raises(StoreError, match="no such table: missing"):
            await open_and_close(path)
    await open_and_close(path)
    connection = apsw.Connection(str(path))
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE name = 'notes'").fetchall()
    connection.close()
    assert tables == []


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    await open_and_close(path)
    await open_and_close(path)


async def test_a_damaged_schema(tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    await open_and_close(path)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xee" * (len(content) - 4096))
    with pytest.raises(StoreCorrupt, match=r"damaged\.db.*backup"):
        await open_and_close(path)


@pytest.mark.parametrize("is_read_only", [False, True])
@pytest.mark.parametrize("part", [0.99, 0.5, 0.1])
async def test_a_truncated_file_is_refused_unchanged(tmp_path: Path, part: float, is_read_only: bool) -> None:
    path = tmp_path / "cut.db"
    await open_and_close(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    before = path.read_bytes()
    store = SqliteStore(str(path), read_only=is_read_only)
    with pytest.raises(StoreCorrupt, match=r"cut\.db.*restore it from a backup or use another path"):
        await store.open()
    await store.close()
    assert path.read_bytes() == before


async def write_and_keep_log(path: Path, folder: Path) -> Path:
    """Write jobs a and b with a commit each, and return a copy of the file and its log as a killed process leaves them."""
    store = SqliteStore(str(path))
    await store.open()
    for id in "ab":
        await apply(store, unit(jobs=[job(id)]))
    folder.mkdir()
    for suffix in ("", "-wal"):
        (folder / f"{path.name}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    await store.close()
    return folder / path.name


@pytest.mark.parametrize("cut", [1, 100, 2000])
async def test_a_torn_commit_at_the_end_of_the_log_is_dropped(tmp_path: Path, cut: int) -> None:
    copy = await write_and_keep_log(tmp_path / "store.db", tmp_path / "killed")
    log = Path(f"{copy}-wal")
    log.write_bytes(log.read_bytes()[:-cut])
    store = SqliteStore(str(copy))
    await store.open()
    assert [await store.job(id) is not None for id in "ab"] == [True, False]
    await store.close()


async def test_a_log_of_junk_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(str(path))
    await store.open()
    await apply(store, unit(jobs=[job("a")]))
    await store.close()  # copies the log into the file
    Path(f"{path}-wal").write_bytes(b"\xee" * 40_000)
    store = SqliteStore(str(path))
    await store.open()
    assert await store.job("a") is not None
    await store.close()


async def test_a_damaged_table(tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    await open_and_close(path)
    connection = apsw.Connection(str(path))
    ((root,),) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'queues'")
    connection.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xee" * 4096)
    store = SqliteStore(str(path))
    await store.open()
    try:
        with pytest.raises(StoreCorrupt, match=r"damaged\.db.*backup"):
            await apply(store, unit(jobs=[job("j")]))
        with pytest.raises(StoreCorrupt, match=r"damaged\.db.*backup"):
            await store.queues()
    finally:
        await store.close()


async def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailable, match="path that you can write to"):
        await open_and_close(tmp_path / "file" / "store.db")
    with pytest.raises(StoreUnavailable, match="is a folder, not a file"):
        await open_and_close(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder where nobody can write")
async def test_a_folder_where_nobody_can_write() -> None:
    with pytest.raises(StoreUnavailable, match="path that you can write to"):
        await open_and_close(Path("/proc/self/store.db"))


async def test_a_read_only_file_and_a_read_only_folder(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await open_and_close(path)
    path.chmod(0o400)
    if os.access(path, os.W_OK):
        pytest.skip("root may write anywhere")
    with pytest.raises(StoreUnavailable, match="permissions"):
        await open_and_close(path)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreUnavailable, match="path that you can write to"):
            await open_and_close(tmp_path / "other.db")
    finally:
        tmp_path.chmod(0o700)


async def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "store.db"
    mask = os.umask(0)
    try:
        store = SqliteStore(str(path))
        await store.open()
        try:
            await apply(store, unit(events=[event()]))
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        finally:
            await store.close()
    finally:
        os.umask(mask)
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}


async def test_a_store_that_did_not_open_raises_and_closes(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"x" * 5000)
    store = SqliteStore(str(path))
    with pytest.raises(StoreCorrupt):
        await store.open()
    async with asyncio.timeout(60):
        with pytest.raises(StoreUnavailable):
            await apply(store, unit(events=[event()]))
        await store.close()


@pytest.mark.parametrize("memory", [False, True])
async def test_a_closed_store_raises(tmp_path: Path, memory: bool) -> None:
    store = SqliteStore(":memory:" if memory else str(tmp_path / "store.db"))
    await store.close()  # it was never opened
    store = SqliteStore(":memory:" if memory else str(tmp_path / "store.db"))
    await store.open()
    await store.queues()
    await store.close()
    await store.close()
    async with asyncio.timeout(60):
        for call in (apply(store, unit(events=[event()])), store.queues(), store.read("nq:flow:r")):
            with pytest.raises(StoreUnavailable, match="closed"):
                await call
        with pytest.raises(StoreUnavailable, match="closed"):
            await asyncio.to_thread(store.renew, [], 1000)
