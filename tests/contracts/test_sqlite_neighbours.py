"""Processes on one SQLite file wake each other after a commit; polling is for those that no wake-up reaches."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.stores.sqlite import SqliteStore, neighbours, writer
from penstock.testing.clock import FakeClock
from penstock.testing.contracts.samples import STREAM, apply, claim, claim_one, event, job, unit
from penstock.testing.until import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems poll")
TOPIC = f"stream:{STREAM}"


@pytest.fixture(autouse=True)
def always_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "SCAN_INTERVAL_S", 0.0)


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "POLL_INTERVAL_S", 3600.0)


@asynccontextmanager
async def stores(path: Path, count: int) -> AsyncIterator[list[SqliteStore]]:
    """Open a file several times, as several processes do: no store hears of another one's commits by itself."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            store = SqliteStore(str(path), clock=FakeClock())
            await store.open()
            stack.push_async_callback(store.close)
            found.append(store)
        yield found


async def is_woken_by(other: SqliteStore, store: SqliteStore) -> bool:
    """Return whether a commit of one store wakes a listener of the other one."""
    with other.signals.listen(TOPIC) as listener:
        await apply(store, unit(events=[event()]))
        return await listener.wait(5)


async def test_a_commit_wakes_every_other_store(tmp_path: Path, no_polling: None) -> None:
    async with stores(tmp_path / "store.db", 3) as found:
        for store in found:
            for other in found:
                assert await is_woken_by(other, store)


async def test_a_store_that_was_opened_later_is_found(tmp_path: Path, no_polling: None) -> None:
    async with stores(tmp_path / "store.db", 1) as (first,):
        await apply(first, unit(events=[event()]))
        async with stores(tmp_path / "store.db", 1) as (second,):
            assert await is_woken_by(second, first)
        await apply(first, unit(events=[event()]))
        assert first._neighbours is not None
        assert first._neighbours._known == ()


async def test_a_claim_that_finds_nothing_wakes_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two idle workers would keep each other awake."""
    sent: list[str] = []
    monkeypatch.setattr(neighbours.Neighbours, "_send", lambda _self, address: bool(sent.append(address)))
    async with stores(tmp_path / "store.db", 1) as (store,):
        await apply(store, unit(jobs=[job("a")]))
        await claim_one(store)
        assert sent
        sent.clear()
        for _ in range(3):
            assert await claim(store) == []
        assert sent == []


async def test_wake_ups_of_a_busy_store_come_together(tmp_path: Path, no_polling: None) -> None:
    """A worker that is busy must not make an idle one look for work after each of its commits."""
    woken: list[Any] = []
    async with stores(tmp_path / "store.db", 1) as (store,):
        address = store._neighbours
        assert address is not None
        address._on_wake = lambda: woken.append(None)
        address._quiet_until = asyncio.get_running_loop().time() + 0.02
        for _ in range(20):
            address._receive()
        assert not woken
        await until(lambda: woken)
        assert len(woken) == 1


async def test_a_store_without_an_address_polls_and_wakes_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "SLOTS", 1)
    async with stores(tmp_path / "store.db", 2) as (first, second):
        assert await is_woken_by(second, first)
        monkeypatch.setattr(first._writer, "_check_foreign_commits", lambda last: last)
        assert await is_woken_by(first, second)


async def test_without_such_sockets_stores_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "other")
    async with stores(tmp_path / "store.db", 2) as (first, second):
        assert await is_woken_by(second, first)
