"""Concurrent commits, limited by the profile of the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.commit import committer as committers
from penstock.commit.committer import MIN_CONCURRENT_BATCH, CommitRequest, Committer
from penstock.core.errors import BrokenQueue, StoreUnavailable
from penstock.ports.store import StoreProfile
from penstock.ports.unit import (
    BROKEN_QUEUE,
    ClaimRequest,
    CommitReply,
    Committed,
    Completed,
    Receipt,
    Refused,
    RunWrite,
    Unit,
)
from penstock.testing.until import until


class BlockingStore:
    """A store that answers a commit when the test calls `answer`."""

    def __init__(self, max_in_flight: int = 2) -> None:
        self.profile = StoreProfile(max_commits_in_flight=max_in_flight)
        self.calls: list[tuple[list[Unit], asyncio.Future[None]]] = []

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        answered = asyncio.get_running_loop().create_future()
        self.calls.append((list(units), answered))
        await answered
        return CommitReply([Committed() for _ in units])

    def answer(self, number: int) -> None:
        self.calls[number][1].set_result(None)

    def ids(self, number: int) -> list[str]:
        return [unit.id for unit in self.calls[number][0]]


class UnorderedStore(BlockingStore):
    """A store that keeps no order between concurrent commits."""

    def __init__(self) -> None:
        super().__init__()
        self.profile = StoreProfile(max_unordered_finishes=2)


def make_requests(count: int, first: int = 0, slot_queue: str | None = None) -> list[CommitRequest]:
    units = range(first, first + count)
    return [CommitRequest(lambda _v, _r, n=n: Unit(f"u{n}"), slot_queue=slot_queue) for n in units]  # type: ignore[misc]


def make_run_request(version: int, run: str = "r", slot_queue: str | None = None) -> CommitRequest:
    """Return a request that increments the version of a run."""

    def build(now: int, _record: bytes | None) -> Unit:
        return Unit(f"{run}.{now}", run=RunWrite(run, now, b"{}", "f", "running"))

    return CommitRequest(build, run=run, version=version, record=b"{}", slot_queue=slot_queue)


def submit(committer: Committer, requests: Sequence[CommitRequest]) -> list[asyncio.Task[Receipt]]:
    return [asyncio.create_task(committer.submit(request)) for request in requests]


async def run_pending_tasks() -> None:
    """Let the loop run until everything waits for an answer of the store."""
    for _ in range(20):
        await asyncio.sleep(0)


async def answer_all(store: Any, waiting: Sequence[asyncio.Task[Receipt]]) -> None:
    async def done() -> bool:
        for _, answered in store.calls:
            if not answered.done():
                answered.set_result(None)
        return all(task.done() for task in waiting)

    await until(done)


async def test_many_requests_are_sent_in_two_concurrent_halves() -> None:
    store: Any = BlockingStore()
    committer = Committer(store)
    waiting = submit(committer, make_requests(4 * MIN_CONCURRENT_BATCH))
    await run_pending_tasks()
    assert [len(units) for units, _ in store.calls] == [2 * MIN_CONCURRENT_BATCH, 2 * MIN_CONCURRENT_BATCH]
    await answer_all(store, waiting)
    assert sorted(store.ids(0) + store.ids(1)) == sorted(f"u{n}" for n in range(4 * MIN_CONCURRENT_BATCH))


class BusyWorker:
    """A worker with a fixed number of attempts that claims nothing."""

    def __init__(self, active: int) -> None:
        self.active = active

    def note_jobs(self, _units: Any) -> None:
        return None

    def request_claims(self, _finishing: Counter[str]) -> None:
        return None


async def test_all_waiting_requests_are_sent_if_as_many_attempts_are_still_active() -> None:
    store: Any = BlockingStore()
    committer = Committer(store)
    committer.worker = BusyWorker(active=8 * MIN_CONCURRENT_BATCH)  # type: ignore[assignment]
    waiting = submit(committer, make_requests(4 * MIN_CONCURRENT_BATCH))
    await run_pending_tasks()
    assert [len(units) for units, _ in store.calls] == [4 * MIN_CONCURRENT_BATCH]
    waiting += submit(committer, make_requests(4 * MIN_CONCURRENT_BATCH, first=100))
    await run_pending_tasks()
    assert [len(units) for units, _ in store.calls] == [4 * MIN_CONCURRENT_BATCH, 4 * MIN_CONCURRENT_BATCH]
    await answer_all(store, waiting)


async def test_waiting_requests_are_split_if_few_attempts_are_still_active() -> None:
    store: Any = BlockingStore()
    committer = Committer(store)
    committer.worker = BusyWorker(active=6 * MIN_CONCURRENT_BATCH)  # type: ignore[assignment]
    waiting = submit(committer, make_requests(4 * MIN_CONCURRENT_BATCH))
    await run_pending_tasks()
    assert [len(units) for units, _ in store.calls] == [3 * MIN_CONCURRENT_BATCH, MIN_CONCURRENT_BATCH]
    await answer_all(store, waiting)


async def test_a_limit_of_one_sends_one_commit_at_a_time() -> None:
    store: Any = BlockingStore(max_in_flight=1)
    committer = Committer(store)
    waiting = submit(committer, make_requests(4 * MIN_CONCURRENT_BATCH))
    await run_pending_tasks()
    waiting += submit(committer, make_requests(4 * MIN_CONCURRENT_BATCH, first=100))
    await run_pending_tasks()
    assert [len(units) for units, _ in store.calls] == [4 * MIN_CONCURRENT_BATCH]
    await answer_all(store, waiting)


async def test_few_requests_wait_for_the_commit_in_flight_and_share_the_next() -> None:
    store: Any = BlockingStore()
    committer = Committer(store)
    waiting = submit(committer, make_requests(1))
    await run_pending_tasks()
    waiting += submit(committer, make_requests(MIN_CONCURRENT_BATCH - 1, first=1))
    await run_pending_tasks()
    assert len(store.calls) == 1
    store.answer(0)
    await until(lambda: len(store.calls) == 2)
    assert store.ids(1) == [f"u{n}" for n in range(1, MIN_CONCURRENT_BATCH)]
    await answer_all(store, waiting)


async def test_requests_of_a_run_wait_for_its_commit_in_flight() -> None:
    store: Any = BlockingStore()
    committer = Committer(store)
    waiting = submit(committer, [make_run_request(1)])
    await run_pending_tasks()
    waiting += submit(committer, [make_run_request(1), *make_requests(2 * MIN_CONCURRENT_BATCH)])
    await run_pending_tasks()
    assert store.ids(0) == ["r.1"]
    assert store.ids(1) == [f"u{n}" for n in range(2 * MIN_CONCURRENT_BATCH)]
    store.answer(1)
    store.answer(0)
    await until(lambda: len(store.calls) == 3)
    assert store.ids(2) == ["r.2"], "based on the record of the first unit, not on the submitted one"
    await answer_all(store, waiting)


async def test_requests_that_wait_for_their_run_are_sent_whichever_commit_ends_first() -> None:
    """The free sender ends when all remaining requests must wait; the other one sends them."""
    store: Any = BlockingStore()
    committer = Committer(store)
    waiting = submit(committer, [make_run_request(1)])
    await run_pending_tasks()
    waiting += submit(committer, make_requests(MIN_CONCURRENT_BATCH))
    await run_pending_tasks()
    waiting += submit(committer, [make_run_request(1) for _ in range(MIN_CONCURRENT_BATCH)])
    await run_pending_tasks()
    assert len(store.calls) == 2
    store.answer(1)
    await run_pending_tasks()
    assert len(store.calls) == 2, "all remaining requests belong to the run in flight"
    store.answer(0)
    await until(lambda: len(store.calls) == 3)
    assert store.ids(2) == [f"r.{n}" for n in range(2, 2 + MIN_CONCURRENT_BATCH)]
    await answer_all(store, waiting)
    await committer.close()


async def test_finished_attempts_are_sent_concurrently_without_order() -> None:
    store: Any = UnorderedStore()
    committer = Committer(store)
    waiting = submit(committer, make_requests(4 * MIN_CONCURRENT_BATCH, slot_queue="q"))
    await run_pending_tasks()
    assert [len(units) for units, _ in store.calls] == [2 * MIN_CONCURRENT_BATCH, 2 * MIN_CONCURRENT_BATCH]
    await answer_all(store, waiting)


async def test_the_ends_of_one_runs_attempts_share_a_commit() -> None:
    """They could not overlap: a half of them would only be one more commit to wait for."""
    store: Any = UnorderedStore()
    committer = Committer(store)
    count = 4 * MIN_CONCURRENT_BATCH
    waiting = submit(committer, [make_run_request(1, slot_queue="q") for _ in range(count)])
    await run_pending_tasks()
    assert [store.ids(n) for n in range(len(store.calls))] == [[f"r.{n}" for n in range(1, count + 1)]]
    await answer_all(store, waiting)


async def test_the_ends_of_several_runs_attempts_are_split_between_the_runs() -> None:
    store: Any = UnorderedStore()
    committer = Committer(store)
    mixed = [make_run_request(1, run, "q") for _ in range(MIN_CONCURRENT_BATCH) for run in "abcd"]
    waiting = submit(committer, mixed)
    await run_pending_tasks()
    assert [{id[0] for id in store.ids(n)} for n in range(len(store.calls))] == [{"a", "b"}, {"c", "d"}]
    assert [id for id in store.ids(0) if id[0] == "a"] == [f"a.{n}" for n in range(1, MIN_CONCURRENT_BATCH + 1)]
    await answer_all(store, waiting)


async def test_commands_are_never_sent_concurrently_without_order() -> None:
    store: Any = UnorderedStore()
    committer = Committer(store)
    waiting = submit(committer, make_requests(4 * MIN_CONCURRENT_BATCH))
    await run_pending_tasks()
    waiting += submit(committer, make_requests(2 * MIN_CONCURRENT_BATCH, first=100, slot_queue="q"))
    await run_pending_tasks()
    assert [len(units) for units, _ in store.calls] == [4 * MIN_CONCURRENT_BATCH], (
        "finished attempts wait for the commands in flight"
    )
    store.answer(0)
    await until(lambda: len(store.calls) == 3)
    assert [len(units) for units, _ in store.calls] == [
        4 * MIN_CONCURRENT_BATCH,
        MIN_CONCURRENT_BATCH,
        MIN_CONCURRENT_BATCH,
    ]
    await answer_all(store, waiting)


async def test_a_command_blocks_later_requests_and_is_sent_with_earlier_ones() -> None:
    store: Any = UnorderedStore()
    committer = Committer(store)
    waiting = submit(committer, make_requests(MIN_CONCURRENT_BATCH, slot_queue="q"))
    await run_pending_tasks()
    waiting += submit(
        committer,
        [
            *make_requests(MIN_CONCURRENT_BATCH, 100, "q"),
            *make_requests(1, 200),
            *make_requests(MIN_CONCURRENT_BATCH, 300, "q"),
        ],
    )
    await run_pending_tasks()
    assert len(store.calls) == 1, "a command keeps its order"
    store.answer(0)
    await until(lambda: len(store.calls) == 2)
    assert store.ids(1) == [
        *(f"u{100 + n}" for n in range(MIN_CONCURRENT_BATCH)),
        "u200",
        *(f"u{300 + n}" for n in range(MIN_CONCURRENT_BATCH)),
    ]
    await answer_all(store, waiting)


class FailingStore(BlockingStore):
    """A store that cannot write units with some ids, nor a batch that has one of them."""

    def __init__(self, *bad: str) -> None:
        super().__init__()
        self.bad = bad
        self.written: list[str] = []

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        if any(unit.id in self.bad for unit in units):
            raise ValueError("cannot be written")
        self.written += [unit.id for unit in units]
        return CommitReply([Committed() for _ in units])


async def test_only_the_unit_that_the_store_cannot_write_fails() -> None:
    store: Any = FailingStore("u3")
    done = await asyncio.gather(*submit(Committer(store), make_requests(6)), return_exceptions=True)
    assert [isinstance(one, ValueError) for one in done] == [False, False, False, True, False, False]
    assert sorted(store.written) == ["u0", "u1", "u2", "u4", "u5"]


async def test_a_caller_that_was_cancelled_gets_no_answer() -> None:
    store: Any = FailingStore("u0")
    (waiting,) = submit(Committer(store), make_requests(1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    request = make_requests(1)[0]
    request.future = asyncio.get_running_loop().create_future()
    request.future.cancel()
    request.fail(ValueError("too late"))
    request.settle(Committed())
    assert request.future.cancelled()


class BrokenQueueStore(BlockingStore):
    """A store that refuses every unit: a key of its queue is broken."""

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        self.calls.append((list(units), asyncio.get_running_loop().create_future()))
        return CommitReply([Refused(BROKEN_QUEUE, "bull:q:wait") for _ in units])


async def test_a_result_that_is_held_for_a_broken_queue_fails_when_the_committer_closes() -> None:
    store: Any = BrokenQueueStore()
    committer = Committer(store)
    (waiting,) = submit(committer, make_requests(1, slot_queue="q"))
    await until(lambda: bool(committer._held))
    await committer.close()
    with pytest.raises(BrokenQueue):
        await waiting


async def test_a_held_result_whose_caller_has_gone_is_not_sent_again() -> None:
    store: Any = BrokenQueueStore()
    committer = Committer(store)
    (waiting,) = submit(committer, make_requests(1, slot_queue="q"))
    await until(lambda: bool(committer._held))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    sent = len(store.calls)
    await until(lambda: not committer._held)
    await run_pending_tasks()
    assert len(store.calls) == sent


async def test_a_request_without_a_unit_is_built_as_before() -> None:
    (request,) = make_requests(1)
    request.rebuild()
    assert (request.unit, request.sent_id) == (None, None)


async def test_the_records_of_few_runs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committers, "REMEMBERED_RUNS", 2)
    committer = Committer(FailingStore())  # type: ignore[arg-type]
    for run in ("r1", "r2", "r3"):
        unit = Unit(run, run=RunWrite(run, 0, b"{}", "f", "running"))
        await committer.submit(CommitRequest(lambda _v, _r, unit=unit: unit, run=run))  # type: ignore[misc]
    assert list(committer._known) == ["r2", "r3"]


class RewoundStore(BlockingStore):
    """A store that may lose acknowledged writes, and cannot be reached once."""

    rewind_epoch = 0

    def __init__(self) -> None:
        super().__init__()
        self.profile = StoreProfile(may_rewind=True)
        self.sent: list[Unit] = []

    async def commit(self, units: Sequence[Unit], request: ClaimRequest | None = None) -> CommitReply:
        self.sent += units
        if len(self.sent) == len(units):
            raise StoreUnavailable("away")
        return CommitReply([Committed() for _ in units])


async def test_the_end_of_an_attempt_without_a_version_is_decided_again_after_an_outage() -> None:
    """The reason for it, a closed run, may be lost with the server's last writes."""
    store: Any = RewoundStore()
    ends = [Unit("first", outcome=Completed(b"null")), Unit("second", outcome=Completed(b"null"))]
    request = CommitRequest(lambda _v, _r: ends.pop(0), run="r", version=1, record=b"{}")
    assert isinstance(await Committer(store).submit(request), Committed)
    assert [unit.id for unit in store.sent] == ["first", "first"]  # the second build has the id of the first
    assert ends == []
