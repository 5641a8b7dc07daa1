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
