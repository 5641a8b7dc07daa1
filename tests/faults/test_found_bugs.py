"""Bugs that the fault suites found, each in its smallest form, on every store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
import pytest_asyncio
from faultkit.backends import SQLITE_FILE, SQLITE_MEMORY, Backend

from penstock import App, flow, job
from penstock.commit.committer import CommitRequest, Committer
from penstock.core.errors import PenstockError, StoreUnavailable
from penstock.core.events import EventBody, encode_body
from penstock.ports.store import Store
from penstock.ports.unit import (
    Claim,
    ClaimRequest,
    Committed,
    Completed,
    Conflict,
    Fenced,
    NewEvent,
    NewJob,
    QueueDemand,
    Released,
    RunWrite,
    Unit,
)
from penstock.testing.clock import FakeClock
from penstock.testing.faults import FaultStore, NoFaults, When
from penstock.testing.until import until


@pytest_asyncio.fixture
async def store(backend: Backend, tmp_path: Path) -> AsyncIterator[Store]:
    store = backend.open(tmp_path, FakeClock())
    await store.open()
    yield store
    await store.close()


def write(expect: int, record: str = "{}", after: str | None = None, **more: Any) -> RunWrite:
    return RunWrite("r", expect, record.encode(), "shop", more.pop("status", "running"), after=after, **more)


def log_event(text: str) -> NewEvent:
    return NewEvent("nq:flow:r", encode_body(EventBody("log", data=msgspec.Raw(msgspec.json.encode(text)))))


async def start_and_claim(store: Store, *jobs: str) -> list[Claim]:
    """Start a run and claim its jobs."""
    await store.commit(
        [Unit("start", run=write(0), jobs=[NewJob(f"r.{id}.1", "q", id, b"{}", run="r") for id in jobs])]
    )
    return (await store.claim(ClaimRequest((QueueDemand("q", 10),), 30_000, "w1"))).claims


async def commit_one(store: Store, unit: Unit) -> Any:
    return (await store.commit([unit])).receipts[0]


async def test_a_unit_based_on_a_refused_unit_conflicts_even_if_the_version_number_matches(store: Store) -> None:
    """The second unit of a batch is based on the first. The first is refused, and another process has meanwhile
    written the version number that the second expects: a different version 2."""
    a, b = await start_and_claim(store, "a", "b")
    lost = msgspec.structs.replace(a, token="another's")
    await store.commit([Unit("elsewhere", run=write(1, '"by another process"'))])
    first = Unit("first", claim=lost, outcome=Completed(), run=write(1, '"by the first"'))
    second = Unit("second", claim=b, outcome=Completed(), run=write(2, '"by both"', after="first"))
    receipts = (await store.commit([first, second])).receipts
    assert receipts == [Fenced(), Conflict(2, b'"by another process"')]


async def test_a_unit_based_on_a_committed_unit_is_committed(store: Store) -> None:
    a, b = await start_and_claim(store, "a", "b")
    first = Unit("first", claim=a, outcome=Completed(), run=write(1))
    second = Unit("second", claim=b, outcome=Completed(), run=write(2, after="first"))
    receipts = (await store.commit([first, second])).receipts
    assert all(isinstance(receipt, Committed) for receipt in receipts)


@pytest.mark.parametrize("outcome", [None, Released()], ids=["active", "released"])
async def test_a_cancelled_run_records_nothing_more(store: Store, outcome: Any) -> None:
    """A running attempt of a cancelled run may end, but cannot append logs."""
    [a] = await start_and_claim(store, "a")
    await store.commit(
        [Unit("cancel", run=write(1, status="cancelled", closed=True, cancel_jobs=True), events=[log_event("x")])]
    )
    assert await commit_one(store, Unit("late", claim=a, outcome=outcome, events=[log_event("late")])) == Fenced()
    assert len(await store.read("nq:flow:r")) == 1
    assert isinstance(await commit_one(store, Unit("end", claim=a, outcome=Released())), Committed)


class Outage(NoFaults):
    """Commits wait for `release`, and fail before they reach the store while `is_down`."""

    def __init__(self) -> None:
        self.is_down = False
        self.waiting = 0
        self.release = asyncio.Event()
        self.release.set()

    async def on_call(self, method: str, when: When) -> None:
        if method == "commit" and when == "before" and not self.release.is_set():
            self.waiting += 1
            await self.release.wait()
            return
        if self.is_down and method == "commit" and when == "before":
            raise StoreUnavailable("down")


async def test_a_step_based_on_a_failed_cancellation_is_decided_again(tmp_path: Path) -> None:
    """A step ends in the same batch as the cancellation of its run, and the store is down. The cancellation fails; the
    step, decided on a cancelled run, must not end as cancelled: that would leave a stuck run."""
    release = asyncio.Event()

    @flow("one", emits=[])
    async def only(ctx: Any) -> str:
        await release.wait()
        return "done"

    outage = Outage()
    store: Any = FaultStore(SQLITE_MEMORY.open(tmp_path, FakeClock()), outage)
    async with App(":memory:", handlers=[only], store=store) as app, app.workers.background():
        await app.start("one", key="r")
        await until(lambda: _active(app))
        # While one commit is in flight, both wait for the next batch: the cancellation first.
        outage.release.clear()
        unrelated = asyncio.create_task(app.emit("world.turned"))
        await until(lambda: outage.waiting)
        cancelling = asyncio.create_task(app.runs.cancel("r"))
        await until(lambda: app._committer._pending)
        release.set()
        await until(lambda: len(app._committer._pending) == 2)
        outage.is_down = True
        outage.release.set()
        with pytest.raises(StoreUnavailable):
            await cancelling
        outage.is_down = False
        await asyncio.wait((unrelated,))
        assert await app.result("r", timeout="60s") == "done"
        assert await app.store.stuck_runs() == []


async def _active(app: App) -> bool:
    row = await app.store.job("r.only.1")
    return row is not None and row.state.value == "active"


async def test_an_app_closes_while_its_store_is_down(tmp_path: Path) -> None:
    """Live output of a handler waits for the store, but must not keep the process from ending."""

    @job(queue="chatty")
    async def chatty(ctx: Any) -> None:
        while True:
            ctx.log("still here")
            await asyncio.sleep(0.01)

    outage = Outage()
    store: Any = FaultStore(SQLITE_MEMORY.open(tmp_path, FakeClock()), outage)
    async with asyncio.timeout(30):
        async with App(":memory:", handlers=[chatty], store=store, grace="100ms") as app, app.workers.background():
            await app.enqueue("chatty")
            await until(lambda: _has_logged(app))
            outage.is_down = True


async def _has_logged(app: App) -> bool:
    return any(event.kind == "log" for event in await app.store.read("nq:queue:chatty"))


async def test_a_committer_whose_task_was_cancelled_before_it_started_still_closes(tmp_path: Path) -> None:
    store = SQLITE_MEMORY.open(tmp_path, FakeClock())
    await store.open()
    committer = Committer(store)
    waiting = asyncio.create_task(committer.submit(CommitRequest(lambda _v, _r: Unit("u", events=[log_event("x")]))))
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait((waiting,))
    async with asyncio.timeout(30):
        await committer.close()
    await store.close()


async def test_an_event_whose_first_reply_was_lost_is_recorded_once(tmp_path: Path) -> None:
    class Lost(NoFaults):
        is_injected = False

        async def on_call(self, method: str, when: When) -> None:
            if method == "commit" and when == "after" and not self.is_injected:
                self.is_injected = True
                raise StoreUnavailable("the reply is lost")

    store: Any = FaultStore(SQLITE_MEMORY.open(tmp_path, FakeClock()), Lost())
    async with App(":memory:", handlers=[], store=store) as app:
        await app.emit("world.turned", {"n": 1})
        assert len(await app.events.read("nq:global")) == 1


async def test_a_locked_file_fails_all_waiting_commits_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process is stopped during a write. Twenty commits wait once, not twenty times in a row."""
    monkeypatch.setattr("penstock.stores.sqlite.connection.BUSY_TIMEOUT_S", 0.5)
    store = SQLITE_FILE.open(tmp_path, FakeClock())
    await store.open()
    holder = apsw.Connection(str(tmp_path / "penstock.db"))
    holder.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await store.commit([Unit("alone", events=[log_event("x")])])
    one_wait, started = time.monotonic() - started, time.monotonic()
    problems = await asyncio.gather(
        *(store.commit([Unit(f"u{n}", events=[log_event("x")])]) for n in range(20)), return_exceptions=True
    )
    # Two waits: one for the first commit and one for the rest; twenty if each waited alone.
    assert time.monotonic() - started < 10 * one_wait
    assert all(isinstance(problem, StoreUnavailable) for problem in problems)
    holder.execute("ROLLBACK")
    holder.close()
    await store.close()


async def test_a_run_whose_first_job_id_is_taken_is_not_acknowledged(tmp_path: Path) -> None:
    """Step `only` of run `order-7` has the job `order-7.only.1`; a plain job may already have that id."""

    @flow("one", emits=[])
    async def only(ctx: Any) -> None: ...

    @job(queue="others")
    async def other(ctx: Any) -> None: ...

    async with App(":memory:", handlers=[only, other]) as app:
        with suppress(PenstockError):  # refusing either of them is fine
            await app.enqueue("others", key="order-7.only.1")
            await app.start("one", key="order-7")
        assert await app.store.stuck_runs() == []
