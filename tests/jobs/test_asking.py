"""What a worker asks for: no slot for two asks, and nobody's slot forgotten."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from penstock.jobs.asking import Asking, QueueLimits
from penstock.jobs.committer import Committer, Intent
from penstock.ports.unit import Ask, Claim, CommitReply, Committed, Completed, Unit

QUEUES = {"wide": QueueLimits(4), "narrow": QueueLimits(1)}


class Room:
    """How much may be held beyond the slots, set by hand."""

    def __init__(self) -> None:
        self.more = 0

    def most(self, slots: int) -> int:
        return self.more if slots > 1 else 0


class Desk:
    """Asks, and answers by hand."""

    def __init__(self) -> None:
        self.room = Room()
        ahead: Any = self.room
        self.asking = Asking("w", 4, 30_000, ahead)
        self._claims = 0

    def ask(self, *finishing: str) -> Ask | None:
        return self.asking.ask(QUEUES, Counter(finishing))

    def wants(self, *finishing: str) -> dict[str, int] | None:
        ask = self.ask(*finishing)
        return None if ask is None else {want.queue: want.limit for want in ask.wants}

    def answer(self, ask: Ask | None, *queues: str, finishing: tuple[str, ...] = ()) -> bool:
        assert ask is not None
        return self.asking.answered(ask, Counter(finishing), [self.claim(queue) for queue in queues])

    def claim(self, queue: str) -> Claim:
        self._claims += 1
        job = f"j{self._claims}"
        return Claim(job, queue, "job", b"1", b"{}", job, 1, job, 0, 0)

    def left(self, queue: str) -> None:
        self.asking.left(self.claim(queue))


def test_all_that_is_free_is_asked_for_once() -> None:
    desk = Desk()
    first = desk.ask()
    assert first is not None
    assert {want.queue: want.limit for want in first.wants} == {"wide": 4, "narrow": 1}
    assert first.limit == 4
    assert desk.wants() is None, "the slots are kept for the first answer"
    desk.answer(first, "wide", "wide", "narrow")
    assert desk.wants() == {"wide": 1}


def test_a_commit_asks_for_the_slots_it_frees() -> None:
    desk = Desk()
    desk.answer(desk.ask(), "wide", "wide", "wide", "narrow")
    assert desk.wants() is None
    first = desk.ask("narrow")
    assert desk.wants("wide") == {"wide": 1}, "of another commit under way"
    desk.answer(first, "narrow", finishing=("narrow",))
    desk.left("narrow")
    assert desk.wants() is None


def test_who_is_denied_hears_when_an_answer_leaves_room() -> None:
    desk = Desk()
    first = desk.ask()
    assert desk.ask() is None
    assert desk.answer(first, "wide")
    assert not desk.answer(desk.ask(), "wide"), "nobody was denied meanwhile"
    second = desk.ask()
    assert desk.ask() is None
    assert not desk.answer(second, "wide", "wide"), "it left no room"


def test_when_less_is_to_be_held_nothing_is_asked_for_until_there_is_room() -> None:
    desk = Desk()
    desk.room.more = 4
    desk.answer(desk.ask(), *["wide"] * 8)
    desk.room.more = 0
    for _ in range(4):
        assert desk.wants("wide") is None
        desk.left("wide")
    assert desk.wants("wide") == {"wide": 1, "narrow": 1}


class Slow:
    """A store that answers when told to."""

    lanes = 2

    def __init__(self) -> None:
        self.asked: list[Ask | None] = []
        self.go = asyncio.Event()

    async def commit(self, units: list[Unit], ask: Ask | None = None) -> CommitReply:
        self.asked.append(ask)
        await self.go.wait()
        return CommitReply([Committed() for _ in units])


class Source:
    """A worker that asks for the queues it is told to."""

    active = 1

    def __init__(self) -> None:
        self.desk = Desk()

    def ask(self, finishing: Counter[str]) -> Ask | None:
        return self.desk.asking.ask(QUEUES, finishing)

    def take(self, ask: Ask, finishing: Counter[str], work: Any) -> None:
        self.desk.asking.answered(ask, finishing, [])


async def test_an_attempt_is_told_that_its_commit_asked_for_nothing() -> None:
    """Whatever others ask for meanwhile: its slot was not free yet."""
    store: Any = Slow()
    committer, source = Committer(store), Source()
    committer.worker = source
    source.desk.room.more = 4
    source.desk.answer(source.desk.ask(), *["wide"] * 5)
    source.desk.room.more = 0
    intents = [_end("wide", n) for n in range(2)]
    ends = [asyncio.create_task(committer.submit(intents[0]))]
    while not store.asked:
        await asyncio.sleep(0)
    source.desk.left("wide")
    ends.append(asyncio.create_task(committer.submit(intents[1])))
    store.go.set()
    await asyncio.gather(*ends)
    assert [ask is None for ask in store.asked] == [True, False]
    assert [intent.refilled for intent in intents] == [False, True]


def _end(queue: str, n: int) -> Intent:
    unit = Unit(f"u{n}", outcome=Completed(b"null"))
    return Intent(lambda _version, _record: unit, frees=queue)
