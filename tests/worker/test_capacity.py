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


class ManualTracker:
    """A capacity tracker whose requests the test answers."""

    def __init__(self) -> None:
        self.prefetch = FixedPrefetch()
        prefetch: Any = self.prefetch
        self.tracker = CapacityTracker("w", 4, 30_000, prefetch)
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

    def release(self, *queues: str, request: ClaimRequest | None = None) -> bool:
        return self.tracker.release(Counter(queues), request)


def test_free_slots_are_requested_once() -> None:
    manual = ManualTracker()
    first = manual.request()
    assert first is not None
    assert {want.queue: want.limit for want in first.queues} == {"wide": 4, "narrow": 1}
    assert first.limit == 4
    assert manual.wants() is None, "the slots are kept for the first answer"
    manual.answer(first, "wide", "wide", "narrow")
    assert manual.wants() == {"wide": 1}


def test_a_commit_requests_the_slots_it_frees() -> None:
    manual = ManualTracker()
    manual.answer(manual.request(), "wide", "wide", "wide", "narrow")
    assert manual.wants() is None
    first = manual.request("narrow")
    assert manual.wants("wide") == {"wide": 1}, "for another commit in flight"
    manual.answer(first, "narrow", finishing=("narrow",))
    manual.release("narrow")
    assert manual.wants() is None


def test_a_poll_without_free_slots_is_repeated_when_an_answer_leaves_slots() -> None:
    manual = ManualTracker()
    first = manual.request()
    assert manual.request() is None
    assert manual.answer(first, "wide")
    assert not manual.answer(manual.request(), "wide"), "no poll meanwhile"
    second = manual.request()
    assert manual.request() is None
    assert not manual.answer(second, "wide", "wide"), "it left no slots"


def test_a_poll_after_a_commit_finds_the_freed_slots() -> None:
    """Slots are free when the commit is answered, not when the tasks of the attempts continue."""
    manual = ManualTracker()
    manual.answer(manual.request(), "narrow")
    request = manual.request("narrow")
    assert not manual.release("narrow", request=request)
    manual.answer(request, finishing=("narrow",))
    assert manual.wants() == {"wide": 4, "narrow": 1}


def test_a_poll_is_repeated_only_if_needed() -> None:
    manual = ManualTracker()
    manual.answer(manual.request(), "wide", "wide", "wide")
    first = manual.request("wide")
    assert manual.request() is None
    manual.release("wide", request=first)
    assert manual.answer(first, "wide", finishing=("wide",)), "it left slots for the poll"
    poll = manual.request()
    second = manual.request("wide")
    assert not manual.answer(poll), "no poll since"
    manual.release("wide", request=second)
    assert not manual.answer(second, finishing=("wide",))


def test_a_full_answer_does_not_hide_another_request() -> None:
    manual = ManualTracker()
    manual.answer(manual.request(), "wide", "wide", "wide", "narrow")
    first, second = manual.request("wide"), manual.request("wide")
    assert manual.request() is None
    assert not manual.answer(first, "wide", finishing=("wide",))
    assert manual.answer(second, finishing=("wide",))


def test_nothing_is_requested_while_more_is_held_than_allowed() -> None:
    manual = ManualTracker()
    manual.prefetch.more = 4
    manual.answer(manual.request(), *["wide"] * 8)
    manual.prefetch.more = 0
    for _ in range(4):
        assert manual.wants("wide") is None
        manual.release("wide")
    assert manual.wants("wide") == {"wide": 1, "narrow": 1}


def test_a_slot_that_no_commit_requested_causes_a_poll() -> None:
    manual = ManualTracker()
    manual.answer(manual.request(), "wide", "wide", "wide", "narrow")
    request = manual.request("wide")
    assert manual.release("wide", "narrow", request=request), "no request for the narrow queue"
    assert not manual.release("wide", request=request)
    assert not manual.release(request=None), "no slot was freed"
    assert manual.release("wide", request=None)


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

    def note_jobs(self, _units: Any) -> None:
        return None

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
