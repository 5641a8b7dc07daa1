"""Claim requests: no slot is requested twice, and no free slot is forgotten."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from penstock.commit.committer import CommitRequest, Committer
from penstock.ports.store import StoreProfile
from penstock.ports.unit import (
    Claim,
    ClaimRequest,
    CommitReply,
    Committed,
    Completed,
    Fenced,
    QueueDemand,
    Receipt,
    Refused,
    Unit,
)
from penstock.worker.capacity import CapacityTracker, QueueLimits

QUEUES = {"wide": QueueLimits(4), "narrow": QueueLimits(1)}


class FixedPrefetch:
    """How much may be held beyond the slots, set by hand."""

    def __init__(self) -> None:
        self.more = 0

    def limit(self, slots: int) -> int:
        return self.more if slots > 1 else 0


class Desk:
    """Asks, and answers by hand."""

    def __init__(self) -> None:
        self.room = FixedPrefetch()
        ahead: Any = self.room
        self.tracker = CapacityTracker("w", 4, 30_000, ahead)
        self._claims = 0

    def ask(self, *finishing: str) -> ClaimRequest | None:
        """With a commit that ends these; without any, it is a look."""
        if not finishing:
            self.tracker.note_poll()
        return self.tracker.request(QUEUES, Counter(finishing))

    def wants(self, *finishing: str) -> dict[str, int] | None:
        ask = self.ask(*finishing)
        return None if ask is None else {want.queue: want.limit for want in ask.queues}

    def answer(self, ask: ClaimRequest | None, *queues: str, finishing: tuple[str, ...] = ()) -> bool:
        assert ask is not None
        return self.tracker.settle(ask, Counter(finishing), [self.claim(queue) for queue in queues])

    def claim(self, queue: str) -> Claim:
        self._claims += 1
        job = f"j{self._claims}"
        return Claim(job, queue, "job", b"1", b"{}", job, 1, job, 0, 0)

    def left(self, *queues: str, ask: ClaimRequest | None = None) -> bool:
        return self.tracker.release(Counter(queues), ask)


def test_all_that_is_free_is_asked_for_once() -> None:
    desk = Desk()
    first = desk.ask()
    assert first is not None
    assert {want.queue: want.limit for want in first.queues} == {"wide": 4, "narrow": 1}
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


def test_who_looked_in_vain_looks_again_when_an_answer_leaves_room() -> None:
    desk = Desk()
    first = desk.ask()
    assert desk.ask() is None
    assert desk.answer(first, "wide")
    assert not desk.answer(desk.ask(), "wide"), "nobody looked meanwhile"
    second = desk.ask()
    assert desk.ask() is None
    assert not desk.answer(second, "wide", "wide"), "it left no room"


def test_a_look_right_after_a_commit_finds_the_slots_it_freed() -> None:
    """Attempts have left when their commit is answered, not when their tasks get to hear of it."""
    desk = Desk()
    desk.answer(desk.ask(), "narrow")
    ask = desk.ask("narrow")
    assert not desk.left("narrow", ask=ask)
    desk.answer(ask, finishing=("narrow",))
    assert desk.wants() == {"wide": 4, "narrow": 1}


def test_a_look_is_not_repeated_for_its_own_sake() -> None:
    desk = Desk()
    desk.answer(desk.ask(), "wide", "wide", "wide")
    first = desk.ask("wide")
    assert desk.ask() is None
    desk.left("wide", ask=first)
    assert desk.answer(first, "wide", finishing=("wide",)), "it left room that was looked for"
    look = desk.ask()
    second = desk.ask("wide")
    assert not desk.answer(look), "nobody has looked since"
    desk.left("wide", ask=second)
    assert not desk.answer(second, finishing=("wide",))


def test_a_full_answer_does_not_hide_that_another_is_under_way() -> None:
    desk = Desk()
    desk.answer(desk.ask(), "wide", "wide", "wide", "narrow")
    first, second = desk.ask("wide"), desk.ask("wide")
    assert desk.ask() is None
    assert not desk.answer(first, "wide", finishing=("wide",))
    assert desk.answer(second, finishing=("wide",))


def test_when_less_is_to_be_held_nothing_is_asked_for_until_there_is_room() -> None:
    desk = Desk()
    desk.room.more = 4
    desk.answer(desk.ask(), *["wide"] * 8)
    desk.room.more = 0
    for _ in range(4):
        assert desk.wants("wide") is None
        desk.left("wide")
    assert desk.wants("wide") == {"wide": 1, "narrow": 1}


def test_who_left_without_an_ask_for_its_slot_has_somebody_look() -> None:
    desk = Desk()
    desk.answer(desk.ask(), "wide", "wide", "wide", "narrow")
    ask = desk.ask("wide")
    assert desk.left("wide", "narrow", ask=ask), "nobody asked for the narrow one"
    assert not desk.left("wide", ask=ask)
    assert not desk.left(ask=None), "nobody left"
    assert desk.left("wide", ask=None)


class Store:
    """Answers with the receipts of its constructor."""

    profile = StoreProfile()

    def __init__(self, *receipts: Receipt) -> None:
        self._receipts = list(receipts)

    async def commit(self, units: list[Unit], ask: ClaimRequest | None = None) -> CommitReply:
        return CommitReply([self._receipts.pop(0) for _ in units])


class Source:
    """A worker with nothing to do but to count."""

    active = 1

    def __init__(self) -> None:
        self.heard: list[tuple[str, ...]] = []

    def request_claims(self, finishing: Counter[str]) -> ClaimRequest | None:
        return ClaimRequest((QueueDemand("wide", 1),), 30_000, "w", 1)

    def take_claims(self, request: ClaimRequest, finishing: Counter[str], work: Any) -> None:
        self.heard.append(("take", *finishing))

    def release_slots(self, ended: Counter[str], request: ClaimRequest | None) -> None:
        self.heard.append(("free", *ended))


@pytest.mark.parametrize(
    ("receipt", "ended"), [(Committed(), True), (Fenced(), True), (Refused("children", "j"), False)], ids=repr
)
async def test_a_commit_says_which_attempts_are_over_before_its_answer_is_taken(receipt: Receipt, ended: bool) -> None:
    store: Any = Store(receipt)
    committer, source = Committer(store), Source()
    committer.worker = source
    request = CommitRequest(lambda _version, _record: Unit("u", outcome=Completed(b"null")), slot_queue="wide")
    assert await committer.submit(request) == receipt
    assert source.heard == [("free", "wide") if ended else ("free",), ("take", "wide")]
    assert request.has_freed_slot is ended
