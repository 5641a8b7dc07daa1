"""A small write runs on the event loop if the writer is idle, unless it could block the loop."""

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
def every_disk_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "INLINE_MAX_S", 60.0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "store.db"))
    await store.open()
    await apply(store, unit(events=[event()]))  # on the thread, which finds the disk fast
    yield store
    await store.close()


class ThreadRecorder:
    """Work that records the thread it runs on."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def __call__(self, cursor: apsw.Cursor) -> None:
        self.threads.append(threading.current_thread())

    @property
    def is_inline(self) -> list[bool]:
        return [thread is threading.current_thread() for thread in self.threads]


async def runs_inline(store: SqliteStore) -> bool:
    """Return whether a small write runs inline. Sometimes the thread holds the connection for a poll."""
    recorder = ThreadRecorder()
    await store._writer.run(recorder, is_small=True)
    return recorder.is_inline == [True]


async def test_a_small_write_runs_inline(store: SqliteStore) -> None:
    await until(lambda: runs_inline(store))


async def test_a_write_of_unknown_size_runs_on_the_thread(store: SqliteStore) -> None:
    recorder = ThreadRecorder()
    await store._writer.run(recorder)
    assert recorder.is_inline == [False]


async def test_one_inline_commit_per_turn_of_the_loop(store: SqliteStore) -> None:
    """Otherwise a caller that commits in a loop would block all other tasks."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    for _ in range(50):
        await apply(store, unit(events=[event()]))
    other.cancel()
    assert turns >= 25


async def test_a_commit_of_many_jobs_runs_on_the_thread(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    is_small: list[bool] = []
    run = store._writer.run

    async def noted(*args: object, **kwargs: object) -> object:
        is_small.append(bool(kwargs.get("is_small")))
        return await run(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(store._writer, "run", noted)
    await apply(store, unit(jobs=[job(f"j{n}") for n in range(100)]))
    await apply(store, unit(jobs=[job("one more")]))
    assert is_small == [False, True]


async def test_a_slow_disk_is_written_on_the_thread(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "INLINE_MAX_S", 0.0)
    await store._writer.run(ThreadRecorder())  # the thread measures the disk
    assert not any([await runs_inline(store) for _ in range(20)])


async def test_the_loop_does_not_wait_for_another_process(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleepers, sleep, loop_thread = set[threading.Thread](), time.sleep, threading.current_thread()

    def noted(seconds: float) -> None:
        sleepers.add(threading.current_thread())
        assert threading.current_thread() is not loop_thread
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", noted)
    with closing(apsw.Connection(str(tmp_path / "store.db"))) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(apply(store, unit(events=[event(data="at last")])))
        await until(lambda: sleepers)
        other.execute("COMMIT")
    assert isinstance(await waiting, Committed)
    assert loop_thread not in sleepers
    assert [e.data for e in await store.read(STREAM)][-1] == "at last"


class SlowLock:
    """The lock of the connection, which the thread acquires only after `go_on`."""

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
    lock: Any = SlowLock(store._writer._connection_lock)
    store._writer._connection_lock = lock
    first = asyncio.create_task(store._writer.run(lambda c: order.append("first")))
    await asyncio.to_thread(lock.reached.wait)
    await until(store._writer._inbox.empty)  # the thread has taken it and not started it
    second = asyncio.create_task(store._writer.run(lambda c: order.append("second"), is_small=True))
    await asyncio.sleep(0)
    lock.go_on.set()
    await asyncio.gather(first, second)
    assert order == ["first", "second"]


async def test_a_failing_small_write_is_rolled_back(store: SqliteStore) -> None:
    def broken(cursor: apsw.Cursor) -> None:
        cursor.execute("DELETE FROM events")
        raise LookupError("as it happens")

    with pytest.raises(LookupError, match="as it happens"):
        await store._writer.run(broken, is_small=True)
    assert len(await store.read(STREAM)) == 1


async def test_a_closed_store_refuses_small_writes(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "store.db"))
    await store.open()
    await apply(store, unit(events=[event()]))
    await store.close()
    with pytest.raises(Exception, match="is closed"):
        await store._writer.run(ThreadRecorder(), is_small=True)


async def test_checkpoint(store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_PAGES", 20)
    size = (tmp_path / "store.db").stat().st_size
    for n in range(30):
        await apply(store, unit(events=[event(data="x" * 4000)], jobs=[job(f"j{n}")]))
    await until(lambda: (tmp_path / "store.db").stat().st_size > size)
