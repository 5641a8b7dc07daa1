"""When a worker looks at the store again: what one answer says of a queue is not forgotten by an answer about others."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from penstock import job
from penstock.ports.unit import ClaimBatch, ClaimRequest, QueueDemand
from penstock.testing import FakeClock
from penstock.worker.capacity import QueueLimits
from penstock.worker.worker import Worker

LIMITED, OTHER = QueueDemand("limited", 10), QueueDemand("other", 10)


def worker(clock: FakeClock) -> Worker:
    parts: Any = None  # it is only told what a store has answered
    return Worker(
        name="w", store=parts, committer=parts, engine=parts, runner=parts, clock=clock,
        queues={"limited": QueueLimits(10), "other": QueueLimits(10)}, concurrency=10, lease_ms=30_000, grace=0,
        max_crashes=3, unit_id=lambda: "u",
    )  # fmt: skip


def told(one: Worker, due: int | None, *wants: QueueDemand) -> int | None:
    """When it looks again after an ask for these and its answer."""
    one.take(ClaimRequest(wants, 30_000, "w", limit=0), Counter(), ClaimBatch(next_due=due))
    return one.next_due


async def test_an_answer_about_other_queues_does_not_put_off_the_next_look() -> None:
    clock = FakeClock()
    one, now = worker(clock), clock.now_ms()
    assert told(one, now + 400, LIMITED, OTHER) == now + 400
    assert told(one, now + 1000, OTHER) == now + 400
    assert told(one, None, OTHER) == now + 400
    assert told(one, now + 100, OTHER) == now + 100


async def test_an_answer_about_all_queues_is_the_newest_there_is() -> None:
    clock = FakeClock()
    one, now = worker(clock), clock.now_ms()
    told(one, now + 400, LIMITED, OTHER)
    assert told(one, now + 1000, LIMITED, OTHER) == now + 1000
    assert told(one, None, LIMITED, OTHER) is None


async def test_a_moment_that_has_passed_is_not_waited_for_again() -> None:
    clock = FakeClock()
    one, now = worker(clock), clock.now_ms()
    told(one, now + 400, LIMITED, OTHER)
    clock.advance("500ms")
    assert told(one, now + 1500, OTHER) == now + 1500


async def test_what_is_heard_while_a_commit_is_answered_is_not_lost(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot of the attempt that ends is kept for the answer. It brings nothing: the queue was paused when it was made."""
    gate, answer = asyncio.Event(), asyncio.Event()

    @job(queue="q", concurrency=1)
    async def held() -> str:
        await gate.wait()
        return "ended"

    async with app(held) as a, a.working():
        commit = a.store.commit

        async def late(units: Any, ask: Any = None) -> Any:
            reply = await commit(units, ask)
            if gate.is_set():
                await answer.wait()
            return reply

        first, second = await a.enqueue("q"), await a.enqueue("q")
        await a.wait_for_state(first, "active")
        await a.queues.pause("q")
        monkeypatch.setattr(a.store, "commit", late)
        gate.set()
        await a.wait_for_state(first, "completed")
        await a.queues.resume("q")
        for _ in range(100):  # the worker looks, and finds no slot for it
            await asyncio.sleep(0)
        answer.set()
        assert await a.job_result(second, timeout=20) == "ended"
