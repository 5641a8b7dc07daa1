"""Concurrent commits, limited by the profile of the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.commit.committer import MIN_CONCURRENT_BATCH, CommitRequest, Committer
from penstock.ports.store import StoreProfile
from penstock.ports.unit import ClaimRequest, CommitReply, Committed, Receipt, RunWrite, Unit
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


def make_run_request(version: int) -> CommitRequest:
    """Return a request that increments the version of run `r`."""

    def build(now: int, _record: bytes | None) -> Unit:
        return Unit(f"r.{now}", run=RunWrite("r", now, b"{}", "f", "running"))

    return CommitRequest(build, run="r", version=version, record=b"{}")


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
