"""Group commit: a failing commit fails alone, a cancelled caller's commit is written, and commits are durable."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from penstock.core.errors import StoreUnavailable
from penstock.ports.store import Retention
from penstock.ports.unit import Committed, Completed, Dead, Memo, Released
from penstock.stores.sqlite import SqliteStore, writer
from penstock.stores.sqlite.store import SMALL_COMMIT_ROWS
from penstock.testing.clock import FakeClock
from penstock.testing.contracts.samples import (
    ERROR,
    STREAM,
    add_and_claim,
    apply,
    claim_one,
    event,
    job,
    seqs,
    unit,
)
from penstock.testing.contracts.seeded_store import seed_store
from penstock.testing.contracts.store_under_test import take_snapshot
from penstock.testing.until import until


async def open_store(path: Path, clock: FakeClock | None = None) -> SqliteStore:
    store = SqliteStore(str(path), clock=clock or FakeClock())
    await store.open()
    return store


async def test_a_failing_commit_fails_alone(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "store.db")
    broken: Any = object()

    async def commit(n: int) -> object:
        new = job(f"j{n}", f"q{n:02}", opts=broken if n == 7 else b"{}")
        try:
            return await apply(store, unit(events=[event(data=n)], jobs=[new]))
        except TypeError as problem:
            return problem

    try:
        answers = await asyncio.gather(*map(commit, range(20)))
        assert [n for n, answer in enumerate(answers) if isinstance(answer, TypeError)] == [7]
        read = await store.read(STREAM)
        assert seqs(read) == list(range(1, 20))
        others = [n for n in range(20) if n != 7]
        assert sorted(e.data for e in read) == others
        assert [queue.name for queue in await store.queues()] == [f"q{n:02}" for n in others]
    finally:
        await store.close()


async def test_the_commit_of_a_cancelled_caller_is_written(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "store.db")
    try:
        with store.signals.listen(f"stream:{STREAM}") as listener:
            # A small write may run on this thread, before it can be cancelled.
            large = unit(events=[event() for _ in range(SMALL_COMMIT_ROWS + 1)])
            task = asyncio.create_task(apply(store, large))
            await asyncio.sleep(0)  # it is in the inbox
            task.cancel()
            # Listeners are notified too, although nobody waits for the receipt.
            assert await listener.wait(5)
        await until(lambda: store.read(STREAM))
        assert task.cancelled()
    finally:
        await store.close()


async def test_closing_writes_pending_commits(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await open_store(path)
    tasks = [asyncio.create_task(apply(store, unit(events=[event()]))) for _ in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert all(isinstance(receipt, Committed) for receipt in await asyncio.gather(*tasks))
    again = await open_store(path)
    try:
        assert len(await again.read(STREAM)) == 50
    finally:
        await again.close()


async def test_everything_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await open_store(path)
    whole = (await seed_store(store)).full_unit()
    await apply(store, whole)
    before = await take_snapshot(store)
    await store.close()
    again = await open_store(path)
    try:
        assert await take_snapshot(again) == before
        assert await apply(again, whole) == Committed(repeated=True)
    finally:
        await again.close()


async def test_threads_end_with_the_store(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    store = await open_store(tmp_path / "store.db")
    await store.queues()
    ours = {thread for thread in set(threading.enumerate()) - before if thread.name.startswith("penstock")}
    assert ours
    await store.close()
    assert not any(thread.is_alive() for thread in ours)


class SlowInbox:
    """The writer's inbox, with a pause between the check whether the store is closed and the put."""

    def __init__(self, inbox: Any) -> None:
        self._inbox = inbox
        self.entering = threading.Event()
        self.closed = threading.Event()

    def put(self, item: object) -> None:
        if item is not None:
            self.entering.set()
            self.closed.wait(0.2)  # times out, because the store cannot be closed meanwhile
        self._inbox.put(item)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inbox, name)


async def test_a_renewal_never_hangs_while_the_store_closes(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "store.db")
    inbox: Any = SlowInbox(store._writer._inbox)
    store._writer._inbox = inbox
    renewal = threading.Thread(target=_renew, args=(store,), daemon=True)
    renewal.start()
    await asyncio.to_thread(inbox.entering.wait)
    await store.close()
    inbox.closed.set()
    await until(lambda: not renewal.is_alive(), timeout=30)


def _renew(store: SqliteStore) -> None:
    try:
        store.renew([], 1000)
    except StoreUnavailable:
        pass


async def test_a_failing_poll_does_not_end_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(tmp_path / "store.db")
    polls = 0

    def broken(cursor: apsw.Cursor) -> int:
        nonlocal polls
        polls += 1
        raise apsw.IOError("the disk went away for a moment")

    monkeypatch.setattr(writer, "_data_version", broken)
    try:
        await until(lambda: polls > 2)
        async with asyncio.timeout(60):
            assert isinstance(await apply(store, unit(events=[event()])), Committed)
    finally:
        await store.close()


async def test_sweeping_deletes_old_once_keys_and_units(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "store.db"
    store = await open_store(path, clock)
    try:
        for n in range(30):
            await apply(store, unit(once_key=f"key{n}", events=[event()]))
        clock.advance("8d")
        await apply(store, unit(once_key="fresh", events=[event()]))
        await store.sweep(Retention())
    finally:
        await store.close()
    connection = apsw.Connection(str(path))
    left = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone() for table in ("once", "units")}
    connection.close()
    assert left == {"once": (1,), "units": (1,)}


@pytest.mark.parametrize("verb", ["remove", "sweep", "drain"])
async def test_memos_stay_while_a_job_can_read_them(tmp_path: Path, verb: str) -> None:
    store = await open_store(tmp_path / "store.db")
    try:
        first = await add_and_claim(store, "j")
        outcome = Released() if verb == "drain" else Dead(ERROR)
        await apply(store, unit(claim=first, outcome=outcome, memos=[Memo("j", "rate#1", b"1")]))
        await apply(store, unit(jobs=[job("j.redrive-1", "other", scope="j")]))
        if verb == "remove":
            assert await store.remove("j")
        elif verb == "drain":
            assert await store.drain("orders") == 1
        else:
            assert (await store.sweep(Retention(jobs_before=10**15)))["jobs"] == 1
        redriven = await claim_one(store, "other")
        assert redriven.memos == {"rate#1": b"1"}
        await apply(store, unit(claim=redriven, outcome=Completed()))
        await store.remove("j.redrive-1")
        assert (await add_and_claim(store, "probe", scope="j")).memos == {}
    finally:
        await store.close()
