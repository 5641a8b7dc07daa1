"""Several connections and processes on one file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest
import pytest_asyncio

from penstock.core.clock import SystemClock
from penstock.ports.store import ScheduleRow
from penstock.ports.unit import Committed, Completed
from penstock.stores.sqlite import SqliteStore, connection
from penstock.testing.clock import FakeClock
from penstock.testing.contracts.samples import (
    QUEUE,
    STREAM,
    add,
    add_and_claim,
    apply,
    claim,
    claim_one,
    event,
    first,
    job,
    names,
    run,
    seqs,
    unit,
)
from penstock.testing.until import until

SIGNAL_TIMEOUT_S = 60.0  # a signal takes about 20 ms, and longer on a machine under load
CHILD = Path(__file__).parent / "child.py"


@pytest_asyncio.fixture
async def two(tmp_path: Path) -> AsyncIterator[tuple[SqliteStore, SqliteStore]]:
    path = str(tmp_path / "store.db")
    one, other = SqliteStore(path), SqliteStore(path)
    await one.open()
    await other.open()
    yield one, other
    await one.close()
    await other.close()


@pytest.mark.parametrize("topic", [f"queue:{QUEUE}", f"stream:{STREAM}", "run:r", "events", "cancelled", "schedules"])
async def test_signals_cross_connections(two: tuple[SqliteStore, SqliteStore], topic: str) -> None:
    here, there = two
    with here.signals.listen(topic) as listener:
        if topic == "schedules":
            await there.put_schedule(ScheduleRow("s", b"{}", b"{}", 1000), None)
        else:
            closed = run("r", closed=True, cancel_jobs=True)
            await apply(there, unit(jobs=[job("j")], events=[event()], run=closed))
        assert await listener.wait(SIGNAL_TIMEOUT_S)


async def test_signals_of_admin_commands_cross_connections(two: tuple[SqliteStore, SqliteStore]) -> None:
    here, there = two
    await there.pause(QUEUE)
    await until(lambda: _has_no_signal(here))
    with here.signals.listen(f"queue:{QUEUE}") as listener:
        await there.resume(QUEUE)
        assert await listener.wait(SIGNAL_TIMEOUT_S)


async def _has_no_signal(store: SqliteStore) -> bool:
    with store.signals.listen(f"queue:{QUEUE}") as listener:
        return not await listener.wait(0.1)


async def test_a_busy_writer_sees_commits_of_another(two: tuple[SqliteStore, SqliteStore]) -> None:
    here, there = two
    stop = asyncio.Event()

    async def busy() -> None:
        while not stop.is_set():
            await apply(here, unit(events=[event(stream="nq:flow:noise")]))

    noise = asyncio.create_task(busy())
    try:
        with here.signals.listen(f"stream:{STREAM}") as listener:
            await apply(there, unit(events=[event()]))
            assert await listener.wait(SIGNAL_TIMEOUT_S)
    finally:
        stop.set()
        await noise


async def test_a_commit_here_is_read_there(two: tuple[SqliteStore, SqliteStore]) -> None:
    here, there = two
    mine = await add_and_claim(here, "j")
    assert await claim(there) == []
    assert isinstance(await apply(there, unit(claim=mine, outcome=Completed(b"1"))), Committed)
    assert await asyncio.to_thread(here.renew, [mine], 1000) == [mine]
    row = await here.job("j")
    assert row is not None
    assert row.result == b"1"


async def test_two_connections_write_one_stream_without_gaps(two: tuple[SqliteStore, SqliteStore]) -> None:
    tail = asyncio.create_task(first(two[0].tail(STREAM), 120))

    async def write(store: SqliteStore, name: str) -> None:
        for n in range(60):
            await apply(store, unit(events=[event(data=[name, n])]))

    await asyncio.gather(*(write(store, name) for store, name in zip(two, "ab", strict=True)))
    async with asyncio.timeout(20):
        found = await tail
    assert seqs(found) == list(range(1, 121))
    assert sorted(e.data for e in found) == [[name, n] for name in "ab" for n in range(60)]


async def test_two_connections_share_a_queue(two: tuple[SqliteStore, SqliteStore]) -> None:
    await add(two[0], *(job(f"j{n:02}") for n in range(40)))
    batches = await asyncio.gather(*(claim(store, limit=3, worker=f"w{n}") for n in range(10) for store in two))
    assert sorted(name for batch in batches for name in names(batch)) == [f"j{n:02}" for n in range(40)]


async def test_opening_a_new_file_concurrently(tmp_path: Path) -> None:
    for n in range(5):
        stores = [SqliteStore(str(tmp_path / f"new{n}.db")) for _ in range(6)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(apply(store, unit(events=[event()])) for store in stores))
        assert len(await stores[0].read(STREAM)) == 6
        await asyncio.gather(*(store.close() for store in stores))


async def test_opening_waits_for_another_opener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new.db"
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")  # as a process that is switching the file to the write-ahead log
    sleeps = 0

    def sleep(seconds: float) -> None:
        nonlocal sleeps
        sleeps += 1
        if sleeps == 3:
            other.execute("ROLLBACK")

    monkeypatch.setattr(connection.time, "sleep", sleep)
    store = SqliteStore(str(path))
    await store.open()
    other.close()
    await store.close()
    assert sleeps == 3


# A child process


@contextlib.asynccontextmanager
async def child(verb: str, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), verb, str(path), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(20):
        return (await process.stdout.readline()).decode().strip()


async def test_a_tail_sees_another_process(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(str(path))
    await store.open()
    try:
        tail = asyncio.create_task(first(store.tail(STREAM), 30))
        async with child("write", path):
            async with asyncio.timeout(20):
                found = await tail
        assert seqs(found) == list(range(1, 31))
        assert [e.data for e in found] == list(range(30))
    finally:
        await store.close()


async def test_acknowledged_commits_survive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with child("write", path) as process:
        acknowledged = [await line(process) for _ in range(25)]
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
    store = SqliteStore(str(path))
    await store.open()
    try:
        read = await store.read(STREAM, limit=100_000)
        assert seqs(read) == list(range(1, len(read) + 1))
        assert [str(e.data) for e in read][: len(acknowledged)] == acknowledged
        # A unit's events and jobs are both there, or neither is.
        assert [await store.job(f"j{e.data}") is not None for e in read] == [True] * len(read)
        assert await store.job(f"j{len(read)}") is None
    finally:
        await store.close()


async def test_the_job_of_a_killed_process_is_claimed_again(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    clock = FakeClock(SystemClock().now_ms())
    store = SqliteStore(str(path), clock=clock)
    await store.open()
    try:
        await add(store, job("j"))
        async with child("claim", path) as process:
            assert await line(process) == "j 1"
            os.kill(process.pid, signal.SIGKILL)
            await process.wait()
        assert await claim(store) == []
        clock.advance("2m")
        again = await claim_one(store)
        assert (again.job, again.attempt, again.crashes) == ("j", 2, 1)
    finally:
        await store.close()


async def test_two_processes_read_one_clock(tmp_path: Path) -> None:
    """A file is used on one machine, so the store's clock is the machine's."""
    path = tmp_path / "store.db"
    store = SqliteStore(str(path))
    await store.open()
    try:
        before = store.clock.now_ms()
        async with child("time", path) as process:
            shown = int(await line(process))
            await process.wait()
        assert before <= shown <= store.clock.now_ms()
    finally:
        await store.close()


async def test_three_processes_write_one_stream(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = SqliteStore(str(path))
    await store.open()
    try:
        async with child("write", path) as one, child("write", path) as two:
            await asyncio.gather(line(one), line(two))
            for n in range(100):
                assert isinstance(await apply(store, unit(events=[event(data=f"parent{n}")])), Committed)
            for process in (one, two):
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
        read = await store.read(STREAM, limit=100_000)
        assert seqs(read) == list(range(1, len(read) + 1))
        assert [e.data for e in read if isinstance(e.data, str)] == [f"parent{n}" for n in range(100)]
    finally:
        await store.close()
