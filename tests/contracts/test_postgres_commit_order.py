"""Which commits of one process may be in flight at once on Postgres: two connections keep no order."""

from __future__ import annotations

import asyncio

from penstock.ports.unit import Claim, Completed, NewEvent, Unit
from penstock.stores.postgres.commit_order import CommitOrder, only_finishes


async def _run_tasks() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Holders:
    """Tasks that hold the lock until they are released, in the order in which they got it."""

    def __init__(self) -> None:
        self.order = CommitOrder()
        self.holding: list[str] = []
        self._release: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def acquire(self, name: str, *, exclusive: bool = False) -> None:
        self._release[name] = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._hold(name, exclusive)))

    async def _hold(self, name: str, exclusive: bool) -> None:
        async with self.order.exclusive() if exclusive else self.order.shared():
            self.holding.append(name)
            await self._release[name].wait()
            self.holding.remove(name)

    async def release(self, name: str) -> None:
        self._release[name].set()
        await _run_tasks()

    def cancel(self, index: int) -> None:
        self._tasks[index].cancel()


async def test_shared_holders_run_at_once() -> None:
    holders = Holders()
    for name in ("a", "b"):
        holders.acquire(name)
    await _run_tasks()
    assert holders.holding == ["a", "b"]


async def test_an_exclusive_holder_waits_for_earlier_ones_and_blocks_later_ones() -> None:
    holders = Holders()
    holders.acquire("a")
    holders.acquire("b")
    holders.acquire("claim", exclusive=True)
    holders.acquire("c")
    await _run_tasks()
    assert holders.holding == ["a", "b"]
    await holders.release("b")
    assert holders.holding == ["a"]
    await holders.release("a")
    assert holders.holding == ["claim"]
    await holders.release("claim")
    assert holders.holding == ["c"]


async def test_a_cancelled_exclusive_holder_unblocks_the_others() -> None:
    holders = Holders()
    holders.acquire("a")
    holders.acquire("claim", exclusive=True)
    holders.acquire("b")
    await _run_tasks()
    holders.cancel(1)
    await _run_tasks()
    assert holders.holding == ["a", "b"]


def test_only_units_that_end_an_attempt_have_no_order() -> None:
    claim = Claim("j", "q", "n", b"{}", b"{}", "j", 1, "t", 0, 0)
    finish = Unit("finish", claim=claim, outcome=Completed())
    assert only_finishes([finish])
    assert not only_finishes([])
    assert not only_finishes([finish, Unit("event", events=[NewEvent("s", b"{}")])])
    assert not only_finishes([Unit("log", claim=claim, events=[NewEvent("s", b"{}")])])
