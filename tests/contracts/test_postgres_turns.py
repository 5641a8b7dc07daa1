"""Which commits of one process may be under way at once on Postgres: two connections have no order."""

from __future__ import annotations

import asyncio

from penstock.ports.unit import Claim, Completed, NewEvent, Unit
from penstock.stores.postgres.turns import Turns, only_ends


async def _settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Visits:
    """Visitors who stay until they are let go, and the order in which they came in."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.inside: list[str] = []
        self._go: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def come(self, name: str, *, alone: bool = False) -> None:
        self._go[name] = asyncio.Event()
        self._tasks.append(asyncio.create_task(self._visit(name, alone)))

    async def _visit(self, name: str, alone: bool) -> None:
        async with self.turns.alone() if alone else self.turns.beside():
            self.inside.append(name)
            await self._go[name].wait()
            self.inside.remove(name)

    async def leave(self, name: str) -> None:
        self._go[name].set()
        await _settled()


async def test_ends_are_at_it_together() -> None:
    visits = Visits()
    for name in ("a", "b"):
        visits.come(name)
    await _settled()
    assert visits.inside == ["a", "b"]


async def test_who_goes_alone_waits_for_all_before_and_holds_up_all_after() -> None:
    visits = Visits()
    visits.come("a")
    visits.come("b")
    visits.come("claim", alone=True)
    visits.come("c")
    await _settled()
    assert visits.inside == ["a", "b"]
    await visits.leave("b")
    assert visits.inside == ["a"]
    await visits.leave("a")
    assert visits.inside == ["claim"]
    await visits.leave("claim")
    assert visits.inside == ["c"]


async def test_one_that_is_given_up_lets_the_others_in() -> None:
    visits = Visits()
    visits.come("a")
    visits.come("claim", alone=True)
    visits.come("b")
    await _settled()
    visits._tasks[1].cancel()
    await _settled()
    assert visits.inside == ["a", "b"]


def test_only_ends_of_attempts_have_no_order() -> None:
    claim = Claim("j", "q", "n", b"{}", b"{}", "j", 1, "t", 0, 0)
    end = Unit("end", claim=claim, outcome=Completed())
    assert only_ends([end])
    assert not only_ends([])
    assert not only_ends([end, Unit("said", events=[NewEvent("s", b"{}")])])
    assert not only_ends([Unit("spoken", claim=claim, events=[NewEvent("s", b"{}")])])
