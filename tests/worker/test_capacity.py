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
    """A prefetch limit set by hand."""

    def __init__(self) -> None:
        self.more = 0

    def limit(self, slots: int) -> int:
        return self.more if slots > 1 else 0


class Desk:
    """Makes requests, and answers them by hand."""

    def __init__(self) -> None:
        self.room = FixedPrefetch()
        ahead: Any = self.room
        self.tracker = CapacityTracker("w", 4, 30_000, ahead)
        self._claims = 0

    def request(self, *finishing: str) -> ClaimRequest | None:
        """Request claims with a commit that finishes these queues; without any, poll."""
        if not finishing:
            self.tracker.note_poll()
        return self.tracker.request(QUEUES, Counter(finishing))

    def wants(self, *finishing: str) -> dict[str, int] | None:
        request = self.request(*finishing)
        return None if request is None else {want.queue: want.limit for want in request.queues}

    def answer(self, request: ClaimRequest | None, *queues: str, finishing: tuple[str, ...] = ()) -> bool:
        assert request is not None
        return self.tracker.settle(request, Counter(finishing), [self.claim(queue) for queue in queues])

    def claim(self, queue: str) -> Claim:
        self._claims += 1
        job = f"j{self._claims}"
        return Claim(job, queue, "job", b"1", b"{}", job, 1, job, 0, 0)

    def left(self, *queues: str, request: ClaimRequest | None = None) -> bool:
        return self.tracker.release(Counter(queues), request)


def test_free_slots_are_requested_once() -> None:
    desk = Desk()
    first = desk.request()
    assert first is not None
    assert {want.queue: want.limit for want in first.queues} == {"wide": 4, "narrow": 1}
    assert first.limit == 4
    assert desk.wants() is None, "the slots are kept for the first answer"
    desk.answer(first, "wide", "wide", "narrow")
    assert desk.wants() == {"wide": 1}


def test_a_commit_requests_the_slots_it_frees() -> None:
    desk = Desk()
    desk.answer(desk.request(), "wide", "wide", "wide", "narrow")
    assert desk.wants() is None
    first = desk.request("narrow")
    assert desk.wants("wide") == {"wide": 1}, "of another commit under way"
    desk.answer(first, "narrow", finishing=("narrow",))
    desk.left("narrow")
    assert desk.wants() is None


def test_a_poll_without_free_slots_is_repeated_when_an_answer_leaves_slots() -> None:
    desk = Desk()
    first = desk.request()
    assert desk.request() is None
    assert desk.answer(first, "wide")
    assert not desk.answer(desk.request(), "wide"), "no poll meanwhile"
    second = desk.request()
    assert desk.request() is None
    assert not desk.answer(second, "wide", "wide"), "it left no room"


def test_a_poll_after_a_commit_finds_the_freed_slots() -> None:
    """Attempts have left when their commit is answered, not when their tasks get to hear of it."""
    desk = Desk()
    desk.answer(desk.request(), "narrow")
    request = desk.request("narrow")
    assert not desk.left("narrow", request=request)
    desk.answer(request, finishing=("narrow",))
    assert desk.wants() == {"wide": 4, "narrow": 1}


def test_a_poll_is_repeated_only_if_needed() -> None:
    desk = Desk()
    desk.answer(desk.request(), "wide", "wide", "wide")
    first = desk.request("wide")
    assert desk.request() is None
    desk.left("wide", request=first)
    assert desk.answer(first, "wide", finishing=("wide",)), "it left room that was looked for"
    poll = desk.request()
    second = desk.request("wide")
    assert not desk.answer(poll), "no poll since"
    desk.left("wide", request=second)
    assert not desk.answer(second, finishing=("wide",))


def test_a_full_answer_does_not_hide_another_request() -> None:
    desk = Desk()
    desk.answer(desk.request(), "wide", "wide", "wide", "narrow")
    first, second = desk.request("wide"), desk.request("wide")
    assert desk.request() is None
    assert not desk.answer(first, "wide", finishing=("wide",))
    assert desk.answer(second, finishing=("wide",))


def test_nothing_is_requested_while_more_is_held_than_allowed() -> None:
    desk = Desk()
    desk.room.more = 4
    desk.answer(desk.request(), *["wide"] * 8)
    desk.room.more = 0
    for _ in range(4):
        assert desk.wants("wide") is None
        desk.left("wide")
    assert desk.wants("wide") == {"wide": 1, "narrow": 1}


def test_a_slot_that_no_commit_requested_causes_a_poll() -> None:
    desk = Desk()
    desk.answer(desk.request(), "wide", "wide", "wide", "narrow")
    request = desk.request("wide")
    assert desk.left("wide", "narrow", request=request), "no request for the narrow queue"
    assert not desk.left("wide", request=request)
    assert not desk.left(request=None), "no slot was freed"
    assert desk.left("wide", request=None)


class Store:
    """Answers with the receipts of its constructor."""

    profile = StoreProfile()

    def __init__(self, *receipts: Receipt) -> None:
        self._receipts = list(receipts)

    async def commit(self, units: list[Unit], request: ClaimRequest | None = None) -> CommitReply:
        return CommitReply([self._receipts.pop(0) for _ in units])


class Source:
    """A claim source that records its calls."""

    active = 1

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def request_claims(self, finishing: Counter[str]) -> ClaimRequest | None:
        return ClaimRequest((QueueDemand("wide", 1),), 30_000, "w", 1)

    def take_claims(self, request: ClaimRequest, finishing: Counter[str], work: Any) -> None:
        self.calls.append(("take", *finishing))

    def release_slots(self, ended: Counter[str], request: ClaimRequest | None) -> None:
        self.calls.append(("free", *ended))


@pytest.mark.parametrize(
    ("receipt", "ended"), [(Committed(), True), (Fenced(), True), (Refused("children", "j"), False)], ids=repr
)
async def test_a_commit_frees_slots_before_its_claims_are_taken(receipt: Receipt, ended: bool) -> None:
    store: Any = Store(receipt)
    committer, source = Committer(store), Source()
    committer.worker = source
    request = CommitRequest(lambda _version, _record: Unit("u", outcome=Completed(b"null")), slot_queue="wide")
    assert await committer.submit(request) == receipt
    assert source.calls == [("free", "wide") if ended else ("free",), ("take", "wide")]
    assert request.has_freed_slot is ended
