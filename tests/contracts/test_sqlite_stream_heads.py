"""Remembered stream positions: another connection's commit, a rollback and a deleted stream make them invalid."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.stores.sqlite import SqliteStore
from penstock.stores.sqlite.stream_heads import MAX_KNOWN, StreamHeads
from penstock.testing.contracts.samples import apply, event, unit

STREAM = "nq:flow:r"


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def positions(store: SqliteStore) -> list[int]:
    return [int(one.id.rpartition("-")[2]) for one in await store.read(STREAM, limit=1000)]


async def write_in_turn(path: Path) -> list[int]:
    """Append to one stream from two connections, in turn. Return its positions."""
    async with opened(path) as a, opened(path) as b:
        for store in (a, a, b, a, b, b, a):
            await apply(store, unit(events=[event("x", STREAM)]))
        return await positions(a)


@pytest.fixture
def rollbacks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect an entry for each rollback."""
    found: list[str] = []
    forget = StreamHeads.forget

    def note(self: StreamHeads) -> None:
        found.append("rollback")
        forget(self)

    monkeypatch.setattr(StreamHeads, "forget", note)
    return found


async def test_two_connections_write_one_stream(tmp_path: Path, rollbacks: list[str]) -> None:
    assert await write_in_turn(tmp_path / "a.db") == [1, 2, 3, 4, 5, 6, 7]
    assert rollbacks == []


async def test_the_check_for_other_connections_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rollbacks: list[str]
) -> None:
    """Without it, the position is taken: the commit fails and is repeated with what the file holds."""
    monkeypatch.setattr(StreamHeads, "begin", lambda *_: None)
    assert await write_in_turn(tmp_path / "a.db") == [1, 2, 3, 4, 5, 6, 7]
    assert rollbacks


async def fail_in_between(path: Path) -> list[int]:
    """Append, then fail a transaction that has appended, then append."""
    async with opened(path) as store:
        await apply(store, unit(events=[event("x", STREAM)]))

        def fail(_: object) -> None:
            store._writer.heads.known[STREAM].seq += 1
            raise ValueError("the transaction fails")

        with pytest.raises(ValueError, match="fails"):
            await store._writer.run(fail)
        await apply(store, unit(events=[event("x", STREAM)]))
        return await positions(store)


async def test_a_failed_transaction_leaves_no_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await fail_in_between(tmp_path / "a.db") == [1, 2]
    monkeypatch.setattr(StreamHeads, "forget", lambda _: None)
    assert await fail_in_between(tmp_path / "b.db") == [1, 3]


async def test_a_stream_that_was_deleted_starts_again(tmp_path: Path) -> None:
    """The careful commit reads its position again: an event with the old one would belong to no stream."""
    async with opened(tmp_path / "a.db") as store:
        for _ in range(3):
            await apply(store, unit(events=[event("x", STREAM)]))
            await store._writer.run(lambda cursor: cursor.execute("DELETE FROM events").execute("DELETE FROM streams"))
        await apply(store, unit(events=[event("x", STREAM)]))
        assert await positions(store) == [1]


async def test_the_memory_is_bounded(tmp_path: Path) -> None:
    async with opened(tmp_path / "a.db") as store:
        for start in range(0, MAX_KNOWN + 3000, 1000):
            await asyncio.gather(
                *(apply(store, unit(events=[event("x", f"nq:flow:r{n}")])) for n in range(start, start + 1000))
            )
        assert 0 < len(store._writer.heads.known) <= MAX_KNOWN
