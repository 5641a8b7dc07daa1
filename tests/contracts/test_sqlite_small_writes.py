"""A small write that finds nothing under way is done on the loop itself, unless that could hold the loop up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from penstock.ports.unit import Committed
from penstock.stores.sqlite import SqliteStore, writer
from penstock.testing.contracts.samples import STREAM, apply, event, job, unit
from penstock.testing.until import until


@pytest.fixture(autouse=True)
def any_disk_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "QUICK", 60.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "store.db"))
    await store.open()
    await apply(store, unit(events=[event()]))  # the thread's, which finds the disk quick
    yield store
    await store.close()


class Where:
    """Work that notes the thread it is done on."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def __call__(self, cursor: apsw.Cursor) -> None:
        self.threads.append(threading.current_thread())

    @property
    def here(self) -> list[bool]:
        return [thread is threading.current_thread() for thread in self.threads]


async def done_here(store: SqliteStore) -> bool:
    """Whether a small write is done by its caller; now and then the thread has the connection for a glance."""
    where = Where()
    await store._writer.run(where, small=True)
    return where.here == [True]


async def test_a_lone_small_write_is_done_by_its_caller(store: SqliteStore) -> None:
    await until(lambda: done_here(store))


async def test_a_write_of_unknown_size_is_the_threads(store: SqliteStore) -> None:
    where = Where()
    await store._writer.run(where)
    assert where.here == [False]


async def test_one_commit_in_a_turn_of_the_loop_is_done_here(store: SqliteStore) -> None:
    """Else a caller that writes in a loop would keep everybody else from running."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    for _ in range(50):
        await apply(store, unit(events=[event()]))
    other.runs.cancel()
    assert turns >= 25


async def test_a_commit_of_many_jobs_is_the_threads(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    small: list[bool] = []
    run = store._writer.run

    async def noted(*args: object, **kwargs: object) -> object:
        small.append(bool(kwargs.get("small")))
        return await run(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(store._writer, "run", noted)
    await apply(store, unit(jobs=[job(f"j{n}") for n in range(100)]))
    await apply(store, unit(jobs=[job("one more")]))
    assert small == [False, True]


async def test_a_slow_file_is_the_threads(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "QUICK", 0.0)
    await store._writer.run(Where())  # the thread finds out
    assert not any([await done_here(store) for _ in range(20)])


async def test_another_process_is_not_waited_for_on_the_loop(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps, nap, ours = set[threading.Thread](), time.sleep, threading.current_thread()

    def noted(seconds: float) -> None:
        naps.add(threading.current_thread())
        assert threading.current_thread() is not ours
        nap(seconds)

    monkeypatch.setattr(time, "sleep", noted)
    with closing(apsw.Connection(str(tmp_path / "store.db"))) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(apply(store, unit(events=[event(data="at last")])))
        await until(lambda: naps)
        other.execute("COMMIT")
    assert isinstance(await waiting, Committed)
    assert ours not in naps
    assert [e.data for e in await store.read(STREAM)][-1] == "at last"


class SlowHands:
    """The lock of the connection, which the thread takes only when told."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __enter__(self) -> None:
        self.reached.set()
        self.go_on.wait(10)
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


async def test_a_small_write_overtakes_nothing(store: SqliteStore) -> None:
    order: list[str] = []
    hands: Any = SlowHands(store._writer._hands)
    store._writer._hands = hands
    first = asyncio.create_task(store._writer.run(lambda c: order.append("first")))
    await asyncio.to_thread(hands.reached.wait)
    await until(store._writer._inbox.empty)  # the thread has it, and nothing in hand yet
    second = asyncio.create_task(store._writer.run(lambda c: order.append("second"), small=True))
    await asyncio.sleep(0)
    hands.go_on.set()
    await asyncio.gather(first, second)
    assert order == ["first", "second"]


async def test_a_small_write_that_fails_is_told_of_and_undone(store: SqliteStore) -> None:
    def broken(cursor: apsw.Cursor) -> None:
        cursor.execute("DELETE FROM events")
        raise LookupError("as it happens")

    with pytest.raises(LookupError, match="as it happens"):
        await store._writer.run(broken, small=True)
    assert len(await store.read(STREAM)) == 1


async def test_nothing_small_gets_into_a_closed_store(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    await store.open()
    await apply(store, unit(events=[event()]))
    await store.close()
    with pytest.raises(Exception, match="is closed"):
        await store._writer.run(Where(), small=True)


async def test_the_log_is_brought_into_the_file(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LONG_LOG", 20)
    size = (tmp_path / "store.db").stat().st_size
    for n in range(30):
        await apply(store, unit(events=[event(data="x" * 4000)], jobs=[job(f"j{n}")]))
    await until(lambda: (tmp_path / "store.db").stat().st_size > size)
