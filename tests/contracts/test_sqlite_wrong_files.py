"""Files that are not ours, that cannot be written, or that someone else could read."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from importlib import resources
from pathlib import Path

import apsw
import pytest

from penstock.core.errors import StoreCorrupt, StoreError, StoreUnavailable
from penstock.ports.unit import ClaimRequest, Dedupe, NewJob, Parent, QueueDemand, Unit
from penstock.stores import sqlite
from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite.connection import OURS
from penstock.testing.contracts.samples import apply, event, job, unit


async def opening(path: Path) -> None:
    store = SqliteStore(str(path))
    try:
        await store.open()
    finally:
        await store.close()


def other_program(path: Path, format_: int) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE contacts (name TEXT)")
    connection.execute("INSERT INTO contacts VALUES ('Ada')")
    connection.execute(f"PRAGMA user_version = {format_}")
    connection.close()


@pytest.mark.parametrize("content", [b"hello", b"x" * 5000, b"SQLite format 3\x00" + b"\xff" * 5000])
async def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=r"notes\.txt"):
        await opening(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("format_", [0, 1, 7])
async def test_another_programs_database_is_refused_and_left_as_it_was(tmp_path: Path, format_: int) -> None:
    path = tmp_path / "contacts.db"
    other_program(path, format_)
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="something else"):
        await opening(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["contacts.db"]


async def test_a_newer_format(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    await opening(path)
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match=r"newer Penstock \(format 99.*upgrade"):
        await opening(path)


async def test_a_file_of_the_first_format_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    connection = apsw.Connection(str(path))
    connection.execute(resources.files(sqlite).joinpath("schema.sql").read_text("utf-8"))
    connection.execute("PRAGMA user_version = 1")
    connection.execute(f"PRAGMA application_id = {OURS}")
    connection.execute("INSERT INTO queues (name) VALUES ('letters')")
    connection.close()
    for _ in range(2):
        store = SqliteStore(str(path))
        await store.open()
        try:
            await apply(store, unit(jobs=[job("p", waits_for_children=True), job("c", parent=Parent("p", "orders"))]))
            assert [row.id for row in await store.children("p")] == ["c"]
            assert [queue.name for queue in await store.queues()] == ["letters", "orders"]
        finally:
            await store.close()


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    await opening(path)
    await opening(path)


async def test_a_damaged_schema(tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    await opening(path)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xee" * (len(content) - 4096))
    with pytest.raises(StoreCorrupt, match=r"damaged\.db.*backup"):
        await opening(path)


async def test_a_damaged_table(tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    await opening(path)
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
    with pytest.raises(StoreUnavailable, match="path you may write to"):
        await opening(tmp_path / "file" / "store.db")
    with pytest.raises(StoreUnavailable, match="check the path"):
        await opening(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a place where nobody can write")
async def test_a_place_where_nobody_can_write() -> None:
    with pytest.raises(StoreUnavailable, match="path you may write to"):
        await opening(Path("/proc/self/store.db"))


async def test_a_read_only_file_and_a_read_only_folder(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    await opening(path)
    path.chmod(0o400)
    if os.access(path, os.W_OK):
        pytest.skip("root may write anywhere")
    with pytest.raises(StoreUnavailable, match="permissions"):
        await opening(path)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreUnavailable, match="path you may write to"):
            await opening(tmp_path / "other.db")
    finally:
        tmp_path.chmod(0o700)


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
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


async def test_a_store_that_did_not_open_answers_and_closes(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"x" * 5000)
    store = SqliteStore(str(path))
    with pytest.raises(StoreCorrupt):
        await store.open()
    async with asyncio.timeout(10):
        with pytest.raises(StoreUnavailable):
            await apply(store, unit(events=[event()]))
        await store.close()


@pytest.mark.parametrize("memory", [False, True])
async def test_a_closed_store_says_so(tmp_path: Path, memory: bool) -> None:
    store = SqliteStore(":memory:" if memory else str(tmp_path / "store.db"))
    await store.close()  # never opened: nothing to do
    store = SqliteStore(":memory:" if memory else str(tmp_path / "store.db"))
    await store.open()
    await store.queues()
    await store.close()
    await store.close()
    async with asyncio.timeout(10):
        for call in (apply(store, unit(events=[event()])), store.queues(), store.read("nq:flow:r")):
            with pytest.raises(StoreUnavailable, match="closed"):
                await call
        with pytest.raises(StoreUnavailable, match="closed"):
            await asyncio.to_thread(store.renew, [], 1000)


async def test_a_file_of_the_format_before_is_brought_up(tmp_path: Path) -> None:
    """Its jobs are there, and it can do what the new format brought."""
    path = tmp_path / "old.db"
    connection = apsw.Connection(str(path))
    connection.execute(resources.files("penstock.stores.sqlite").joinpath("schema.sql").read_text("utf-8"))
    connection.execute(
        "INSERT INTO queues (name) VALUES ('orders');"
        "INSERT INTO jobs (id, queue, name, state, priority, due, created, opts, payload)"
        " VALUES ('old', 'orders', 'charge', 0, 0, 0, 0, CAST('{}' AS BLOB), CAST('1' AS BLOB))"
    )
    connection.execute(f"PRAGMA user_version = 1; PRAGMA application_id = {OURS}")
    connection.close()
    for _ in range(2):  # the second time there is nothing to bring up
        store = SqliteStore(str(path))
        await store.open()
        await store.commit([Unit("u", jobs=[NewJob("new", "orders", "charge", b"2", dedupe=Dedupe("key"))])])
        await store.close()
    store = SqliteStore(str(path))
    await store.open()
    claims = (await store.claim(ClaimRequest((QueueDemand("orders", 10),), 1000, "w1"))).claims
    await store.close()
    assert [claim.job for claim in claims] == ["old", "new"]
