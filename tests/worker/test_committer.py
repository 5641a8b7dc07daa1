"""Several commits in flight, as far as the store's profile allows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from penstock.commit.committer import MIN_CONCURRENT_BATCH, CommitRequest, Committer
from penstock.ports.store import StoreProfile
from penstock.ports.unit import ClaimRequest, CommitReply, Committed, Receipt, RunWrite, Unit
from penstock.testing.until import until


class Held:
    """A store that answers a commit when the test calls `answer`."""

    def __init__(self, lanes: int = 2) -> None:
        self.profile = StoreProfile(max_commits_in_flight=lanes)
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


class Unordered(Held):
    """A store that keeps no order between concurrent commits."""

    def __init__(self) -> None:
        super().__init__()
        self.profile = StoreProfile(max_unordered_finishes=2)


def several(count: int, first: int = 0, slot_queue: str | None = None) -> list[CommitRequest]:
    units = range(first, first + count)
    return [CommitRequest(lambda _v, _r, n=n: Unit(f"u{n}"), slot_queue=slot_queue) for n in units]  # type: ignore[misc]


def of_run(version: int) -> CommitRequest:
    """Moves run `r` on from the version it is decided on."""

    def build(now: int, _record: bytes | None) -> Unit:
        return Unit(f"r.{now}", run=RunWrite("r", now, b"{}", "f", "running"))

    return CommitRequest(build, run="r", version=version, record=b"{}")


def submit(committer: Committer, requests: Sequence[CommitRequest]) -> list[asyncio.Task[Receipt]]:
    return [asyncio.create_task(committer.submit(request)) for request in requests]


async def a_while() -> None:
    """So many turns that whatever is to happen without an answer has happened."""
    for _ in range(20):
        await asyncio.sleep(0)


async def all_answered(store: Any, waiting: Sequence[asyncio.Task[Receipt]]) -> None:
    async def done() -> bool:
        for _, answered in store.calls:
            if not answered.done():
                answered.set_result(None)
        return all(task.done() for task in waiting)

    await until(done)


async def test_many_requests_are_sent_in_two_concurrent_halves() -> None:
    store: Any = Held()
    committer = Committer(store)
    waiting = submit(committer, several(4 * MIN_CONCURRENT_BATCH))
    await a_while()
    assert [len(units) for units, _ in store.calls] == [2 * MIN_CONCURRENT_BATCH, 2 * MIN_CONCURRENT_BATCH]
    await all_answered(store, waiting)
    assert sorted(store.ids(0) + store.ids(1)) == sorted(f"u{n}" for n in range(4 * MIN_CONCURRENT_BATCH))


class Busy:
    """A worker with a fixed number of attempts that claims nothing."""

    def __init__(self, active: int) -> None:
        self.active = active

    def request_claims(self, _finishing: Counter[str]) -> None:
        return None


async def test_all_waiting_requests_are_sent_if_as_many_attempts_are_still_active() -> None:
    store: Any = Held()
    committer = Committer(store)
    committer.worker = Busy(active=8 * MIN_CONCURRENT_BATCH)  # type: ignore[assignment]
    waiting = submit(committer, several(4 * MIN_CONCURRENT_BATCH))
    await a_while()
    assert [len(units) for units, _ in store.calls] == [4 * MIN_CONCURRENT_BATCH]
    waiting += submit(committer, several(4 * MIN_CONCURRENT_BATCH, first=100))
    await a_while()
    assert [len(units) for units, _ in store.calls] == [4 * MIN_CONCURRENT_BATCH, 4 * MIN_CONCURRENT_BATCH]
    await all_answered(store, waiting)


async def test_waiting_requests_are_split_if_few_attempts_are_still_active() -> None:
    store: Any = Held()
    committer = Committer(store)
    committer.worker = Busy(active=6 * MIN_CONCURRENT_BATCH)  # type: ignore[assignment]
    waiting = submit(committer, several(4 * MIN_CONCURRENT_BATCH))
    await a_while()
    assert [len(units) for units, _ in store.calls] == [3 * MIN_CONCURRENT_BATCH, MIN_CONCURRENT_BATCH]
    await all_answered(store, waiting)


async def test_a_limit_of_one_sends_one_commit_at_a_time() -> None:
    store: Any = Held(lanes=1)
    committer = Committer(store)
    waiting = submit(committer, several(4 * MIN_CONCURRENT_BATCH))
    await a_while()
    waiting += submit(committer, several(4 * MIN_CONCURRENT_BATCH, first=100))
    await a_while()
    assert [len(units) for units, _ in store.calls] == [4 * MIN_CONCURRENT_BATCH]
    await all_answered(store, waiting)


async def test_few_requests_wait_for_the_commit_in_flight_and_share_the_next() -> None:
    store: Any = Held()
    committer = Committer(store)
    waiting = submit(committer, several(1))
    await a_while()
    waiting += submit(committer, several(MIN_CONCURRENT_BATCH - 1, first=1))
    await a_while()
    assert len(store.calls) == 1
    store.answer(0)
    await until(lambda: len(store.calls) == 2)
    assert store.ids(1) == [f"u{n}" for n in range(1, MIN_CONCURRENT_BATCH)]
    await all_answered(store, waiting)


async def test_requests_of_a_run_wait_for_its_commit_in_flight() -> None:
    store: Any = Held()
    committer = Committer(store)
    waiting = submit(committer, [of_run(1)])
    await a_while()
    waiting += submit(committer, [of_run(1), *several(2 * MIN_CONCURRENT_BATCH)])
    await a_while()
    assert store.ids(0) == ["r.1"]
    assert store.ids(1) == [f"u{n}" for n in range(2 * MIN_CONCURRENT_BATCH)]
    store.answer(1)
    store.answer(0)
    await until(lambda: len(store.calls) == 3)
    assert store.ids(2) == ["r.2"], "decided on what the first one wrote, not on what it was handed in with"
    await all_answered(store, waiting)


async def test_requests_that_wait_for_their_run_are_sent_whichever_commit_ends_first() -> None:
    """The lane that is free ends when all that is left must wait; the other one goes on with it."""
    store: Any = Held()
    committer = Committer(store)
    waiting = submit(committer, [of_run(1)])
    await a_while()
    waiting += submit(committer, several(MIN_CONCURRENT_BATCH))
    await a_while()
    waiting += submit(committer, [of_run(1) for _ in range(MIN_CONCURRENT_BATCH)])
    await a_while()
    assert len(store.calls) == 2
    store.answer(1)
    await a_while()
    assert len(store.calls) == 2, "all that is left belongs to the run in flight"
    store.answer(0)
    await until(lambda: len(store.calls) == 3)
    assert store.ids(2) == [f"r.{n}" for n in range(2, 2 + MIN_CONCURRENT_BATCH)]
    await all_answered(store, waiting)
    await committer.close()


async def test_finished_attempts_are_sent_concurrently_without_order() -> None:
    store: Any = Unordered()
    committer = Committer(store)
    waiting = submit(committer, several(4 * MIN_CONCURRENT_BATCH, slot_queue="q"))
    await a_while()
    assert [len(units) for units, _ in store.calls] == [2 * MIN_CONCURRENT_BATCH, 2 * MIN_CONCURRENT_BATCH]
    await all_answered(store, waiting)


async def test_commands_are_never_sent_concurrently_without_order() -> None:
    store: Any = Unordered()
    committer = Committer(store)
    waiting = submit(committer, several(4 * MIN_CONCURRENT_BATCH))
    await a_while()
    waiting += submit(committer, several(2 * MIN_CONCURRENT_BATCH, first=100, slot_queue="q"))
    await a_while()
    assert [len(units) for units, _ in store.calls] == [4 * MIN_CONCURRENT_BATCH], (
        "the ends wait for the commands under way"
    )
    store.answer(0)
    await until(lambda: len(store.calls) == 3)
    assert [len(units) for units, _ in store.calls] == [
        4 * MIN_CONCURRENT_BATCH,
        MIN_CONCURRENT_BATCH,
        MIN_CONCURRENT_BATCH,
    ]
    await all_answered(store, waiting)


async def test_a_command_blocks_later_requests_and_is_sent_with_earlier_ones() -> None:
    store: Any = Unordered()
    committer = Committer(store)
    waiting = submit(committer, several(MIN_CONCURRENT_BATCH, slot_queue="q"))
    await a_while()
    waiting += submit(
        committer,
        [*several(MIN_CONCURRENT_BATCH, 100, "q"), *several(1, 200), *several(MIN_CONCURRENT_BATCH, 300, "q")],
    )
    await a_while()
    assert len(store.calls) == 1, "the command may not overtake, nor be overtaken"
    store.answer(0)
    await until(lambda: len(store.calls) == 2)
    assert store.ids(1) == [
        *(f"u{100 + n}" for n in range(MIN_CONCURRENT_BATCH)),
        "u200",
        *(f"u{300 + n}" for n in range(MIN_CONCURRENT_BATCH)),
    ]
    await all_answered(store, waiting)
