"""Commits that travel together: who breaks, breaks alone; who goes away, is not forgotten; what was said, stays."""

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
from penstock.testing.contracts.snapshot import take_snapshot
from penstock.testing.until import until


async def opened(path: Path, clock: FakeClock | None = None) -> SqliteStore:
    store = SqliteStore(str(path), clock=clock or FakeClock())
    await store.open()
    return store


async def test_a_broken_commit_hurts_no_neighbour(tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
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


async def test_a_commit_whose_caller_went_away_is_written(tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    try:
        with store.signals.listen(f"stream:{STREAM}") as listener:
            task = asyncio.create_task(apply(store, unit(events=[event()])))
            await asyncio.sleep(0)  # it is on its way
            task.cancel()
            # Readers are told as well, although nobody waits for the receipt.
            assert await listener.wait(5)
        await until(lambda: store.read(STREAM))
        assert task.cancelled()
    finally:
        await store.close()


async def test_commits_on_their_way_are_written_before_the_store_closes(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await opened(path)
    going = [asyncio.create_task(apply(store, unit(events=[event()]))) for _ in range(50)]
    await asyncio.sleep(0)
    await store.close()
    assert all(isinstance(receipt, Committed) for receipt in await asyncio.gather(*going))
    again = await opened(path)
    try:
        assert len(await again.read(STREAM)) == 50
    finally:
        await again.close()


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await opened(path)
    whole = (await seed_store(store)).full_unit()
    await apply(store, whole)
    before = await take_snapshot(store)
    await store.close()
    again = await opened(path)
    try:
        assert await take_snapshot(again) == before
        assert await apply(again, whole) == Committed(repeated=True)
    finally:
        await again.close()


async def test_threads_end_with_the_store(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    store = await opened(tmp_path / "store.db")
    await store.queues()
    ours = {thread for thread in set(threading.enumerate()) - before if thread.name.startswith("penstock")}
    assert ours
    await store.close()
    assert not any(thread.is_alive() for thread in ours)


class SlowDoor:
    """The writer's inbox, with a pause between the caller's look at the door and the step through it."""

    def __init__(self, inbox: Any) -> None:
        self._inbox = inbox
        self.entering = threading.Event()
        self.closed = threading.Event()

    def put(self, ticket: object) -> None:
        if ticket is not None:
            self.entering.set()
            self.closed.wait(0.2)  # runs out when nobody can close the door meanwhile, as it should
        self._inbox.put(ticket)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inbox, name)


async def test_a_renewal_never_hangs_on_a_store_that_is_closing(tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    door: Any = SlowDoor(store._writer._inbox)
    store._writer._inbox = door
    renewal = threading.Thread(target=_renew, args=(store,), daemon=True)
    renewal.start()
    await asyncio.to_thread(door.entering.wait)
    await store.close()
    door.closed.set()
    await until(lambda: not renewal.is_alive(), timeout=5)


def _renew(store: SqliteStore) -> None:
    try:
        store.renew([], 1000)
    except StoreUnavailable:
        pass


async def test_a_look_that_fails_does_not_end_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(tmp_path / "store.db")
    looked = 0

    def broken(cursor: apsw.Cursor) -> int:
        nonlocal looked
        looked += 1
        raise apsw.IOError("the disk went away for a moment")

    monkeypatch.setattr(writer, "_data_version", broken)
    try:
        await until(lambda: looked > 2)
        async with asyncio.timeout(10):
            assert isinstance(await apply(store, unit(events=[event()])), Committed)
    finally:
        await store.close()


async def test_sweeping_forgets_what_only_repeats_need(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "store.db"
    store = await opened(path, clock)
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
async def test_memos_stay_while_a_job_may_read_them(tmp_path: Path, verb: str) -> None:
    store = await opened(tmp_path / "store.db")
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
