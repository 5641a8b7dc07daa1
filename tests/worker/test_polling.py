"""When a worker polls again: an answer for some queues does not overwrite the due times of others."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock import job
from penstock.core.outage_retry import OutageLog
from penstock.ports.unit import ClaimBatch, ClaimRequest, QueueDemand
from penstock.testing import FakeClock
from penstock.worker import polling
from penstock.worker.capacity import CapacityTracker, Prefetcher, QueueLimits
from penstock.worker.polling import ClaimPoller

LIMITED, OTHER = QueueDemand("limited", 10), QueueDemand("other", 10)


def make_poller(clock: FakeClock) -> ClaimPoller:
    unused: Any = None
    prefetcher = Prefetcher(10, lambda: 0.0, max_held=0)
    return ClaimPoller(
        unused, clock, CapacityTracker("w", 10, 30_000, prefetcher),
        {"limited": QueueLimits(10), "other": QueueLimits(10)},
        worker="w", outages=OutageLog(), instrumentation=None, held=(), may_claim=lambda: True, accept=unused,
    )  # fmt: skip


def answer(poller: ClaimPoller, due: int | None, *demands: QueueDemand) -> int | None:
    """Return when the poller polls again after a request for these queues and its answer."""
    poller.take_claims(ClaimRequest(demands, 30_000, "w", limit=0), Counter(), ClaimBatch(next_due=due))
    return poller.next_due


async def test_an_answer_for_other_queues_does_not_delay_the_next_poll() -> None:
    clock = FakeClock()
    poller, now = make_poller(clock), clock.now_ms()
    assert answer(poller, now + 400, LIMITED, OTHER) == now + 400
    assert answer(poller, now + 1000, OTHER) == now + 400
    assert answer(poller, None, OTHER) == now + 400
    assert answer(poller, now + 100, OTHER) == now + 100


async def test_an_answer_for_all_queues_sets_the_next_poll() -> None:
    clock = FakeClock()
    poller, now = make_poller(clock), clock.now_ms()
    answer(poller, now + 400, LIMITED, OTHER)
    assert answer(poller, now + 1000, LIMITED, OTHER) == now + 1000
    assert answer(poller, None, LIMITED, OTHER) is None


async def test_a_due_time_in_the_past_is_dropped() -> None:
    clock = FakeClock()
    poller, now = make_poller(clock), clock.now_ms()
    answer(poller, now + 400, LIMITED, OTHER)
    clock.advance("500ms")
    assert answer(poller, now + 1500, OTHER) == now + 1500


async def test_a_signal_during_a_commit_is_not_lost(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot of the ending attempt is reserved for the answer, which has no job: the queue was paused at that time."""
    release, answer = asyncio.Event(), asyncio.Event()

    @job(queue="q", concurrency=1)
    async def held() -> str:
        await release.wait()
        return "ended"

    async with app(held) as a, a.workers.background():
        commit = a.store.commit

        async def late(units: Any, request: Any = None) -> Any:
            reply = await commit(units, request)
            if release.is_set():
                await answer.wait()
            return reply

        first, second = await a.enqueue("q"), await a.enqueue("q")
        await a.wait_for_state(first, "active")
        await a.queues.pause("q")
        monkeypatch.setattr(a.store, "commit", late)
        release.set()
        await a.wait_for_state(first, "completed")
        await a.queues.resume("q")
        for _ in range(100):  # the worker polls, and finds no free slot
            await asyncio.sleep(0)
        answer.set()
        assert await a.jobs.result(second, timeout=20) == "ended"


async def test_an_unexpected_error_of_a_claim_is_logged_and_does_not_end_the_worker(
    memory: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @job(queue="mail")
    async def send() -> str:
        return "sent"

    async with memory(send) as a:
        claim, failed = a.store.claim, []

        async def fail_twice(request: ClaimRequest) -> ClaimBatch:
            if len(failed) < 2:
                failed.append(request)
                raise IndexError("an answer that cannot be decoded")
            return await claim(request)  # type: ignore[no-any-return]

        monkeypatch.setattr(a.store, "claim", fail_twice)
        monkeypatch.setattr(polling, "CLAIM_RETRY_MS", 1)
        id = await a.enqueue("mail")
        async with a.workers.background():
            assert await a.jobs.result(id, timeout=20) == "sent"
    assert len(failed) == 2
    assert "cannot claim jobs because of an unexpected error" in caplog.text
    assert "an answer that cannot be decoded" in caplog.text


async def test_pauses_after_unexpected_errors_grow_and_no_signal_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    poller = make_poller(FakeClock())

    class Broken:
        async def claim(self, request: ClaimRequest) -> ClaimBatch:
            poller.poll_soon()
            raise IndexError("broken")

    async def note(wait: Any, timeout: float) -> None:
        wait.close()
        pauses.append(timeout)

    monkeypatch.setattr(poller, "_store", Broken())
    monkeypatch.setattr(asyncio, "wait_for", note)
    for _ in range(6):
        await poller._poll(asyncio.Event())
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
