"""Signals: every change wakes its listeners. Signals carry no data and may be spurious, so only arrival is tested."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ...ports.store import ScheduleRow, Store
from ...ports.unit import Completed, Dead, Released, RetryAt
from ..clock import FakeClock
from .samples import (
    ERROR,
    QUEUE,
    STREAM,
    add,
    add_and_claim,
    apply,
    claim,
    claim_request,
    event,
    job,
    run,
    started,
    unit,
)
from .store_under_test import StoreUnderTest

SIGNAL_TIMEOUT_S = 5.0  # a loaded machine is slow, a missing signal never comes
Wait = Callable[[float], Awaitable[bool]]


class SignalsContract(StoreUnderTest):
    """A listener is woken by every change under its topics."""

    async def test_a_new_job_wakes_its_queue(self, store: Store, clock: FakeClock) -> None:
        for n, due in enumerate((0, clock.now_ms() + 60_000)):
            with store.signals.listen(f"queue:{QUEUE}") as listener:
                await add(store, job(f"j{n}", due=due))
                assert await listener.wait(SIGNAL_TIMEOUT_S)

    async def test_jobs_left_by_a_claim_wake_other_workers(self, store: Store) -> None:
        one = await add_and_claim(store, "j")
        with store.signals.listen(f"queue:{QUEUE}") as listener:
            done = unit(claim=one, outcome=Completed(), jobs=[job("k1"), job("k2")])
            reply = await store.commit([done], claim_request(limit=1))
            assert len(reply.claimed.claims) == 1
            assert await listener.wait(SIGNAL_TIMEOUT_S)

    async def test_an_event_wakes_its_stream(self, store: Store) -> None:
        with store.signals.listen(f"stream:{STREAM}") as listener:
            await apply(store, unit(events=[event(stream="nq:flow:x"), event()]))
            assert await listener.wait(SIGNAL_TIMEOUT_S)

    async def test_any_event_wakes_readers_of_the_feed(self, store: Store) -> None:
        with store.signals.listen("events") as listener:
            await apply(store, unit(events=[event(stream="nq:flow:x")]))
            assert await listener.wait(SIGNAL_TIMEOUT_S)

    async def test_cancelling_wakes_workers(self, store: Store) -> None:
        await apply(store, unit(run=run("r")))
        with store.signals.listen("cancelled") as listener:
            await apply(store, unit(run=run("r", 1, status="cancelled", closed=True, cancel_jobs=True)))
            assert await listener.wait(SIGNAL_TIMEOUT_S)

    async def test_a_schedule_wakes_the_scheduler(self, store: Store) -> None:
        with store.signals.listen("schedules") as listener:
            await store.put_schedule(ScheduleRow("s", b"{}", b"{}", 1000), None)
            assert await listener.wait(SIGNAL_TIMEOUT_S)

    async def test_a_claim_wakes_the_stream_it_writes(self, store: Store) -> None:
        await add(store, job("j", started=started()))
        with store.signals.listen(f"stream:{STREAM}") as listener:
            await claim(store)
            assert await listener.wait(SIGNAL_TIMEOUT_S)

    async def test_closing_a_run_wakes_its_waiters(self, store: Store) -> None:
        await apply(store, unit(run=run("r")))
        with store.signals.listen("run:r") as listener:
            await apply(store, unit(run=run("r", 1, status="completed", closed=True)))
            assert await listener.wait(SIGNAL_TIMEOUT_S)

    @pytest.mark.parametrize("later", [False, True])
    async def test_a_retried_or_released_job_wakes_its_queue(self, store: Store, clock: FakeClock, later: bool) -> None:
        due = clock.now_ms() + 1000 if later else 0
        for n, outcome in enumerate((RetryAt(due, ERROR), Released(due))):
            one = await add_and_claim(store, f"j{n}", f"q{n}")
            with store.signals.listen(f"queue:q{n}") as listener:
                await apply(store, unit(claim=one, outcome=outcome))
                assert await listener.wait(SIGNAL_TIMEOUT_S)

    async def test_promote_retry_and_resume_wake_the_queue(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("later", due=clock.now_ms() + 60_000))
        one = await add_and_claim(store, "dead")
        await apply(store, unit(claim=one, outcome=Dead(ERROR)))
        await store.pause(QUEUE)
        for move in (store.promote("later"), store.retry("dead"), store.resume(QUEUE)):
            with store.signals.listen(f"queue:{QUEUE}") as listener:
                await move
                assert await listener.wait(SIGNAL_TIMEOUT_S)

    async def test_a_change_before_the_wait_is_remembered(self, store: Store) -> None:
        with store.signals.listen(f"stream:{STREAM}") as listener:
            for _ in range(3):
                await apply(store, unit(events=[event()]))
            assert await listener.wait(SIGNAL_TIMEOUT_S)

    async def test_a_wait_in_progress_is_woken(self, store: Store) -> None:
        with store.signals.listen(f"stream:{STREAM}") as listener:
            await _wait_until_idle(listener.wait)
            waiting = asyncio.create_task(listener.wait(SIGNAL_TIMEOUT_S))
            await asyncio.sleep(0)
            await apply(store, unit(events=[event()]))
            assert await waiting

    async def test_one_listener_for_many_topics_and_many_for_one(self, store: Store) -> None:
        topics = (f"queue:{QUEUE}", f"stream:{STREAM}", "run:r")
        changes = (unit(jobs=[job("j")]), unit(events=[event()]), unit(run=run("r", closed=True)))
        for change in changes:
            with store.signals.listen(*topics) as one, store.signals.listen(*topics) as two:
                await apply(store, change)
                assert await one.wait(SIGNAL_TIMEOUT_S)
                assert await two.wait(SIGNAL_TIMEOUT_S)

    async def test_a_listener_sleeps_without_changes(self, store: Store) -> None:
        with store.signals.listen(f"queue:{QUEUE}") as listener:
            await add(store, job("j"))
            # Spurious wake-ups are allowed, endless ones are not.
            await _wait_until_idle(listener.wait)

    async def test_a_closed_listener_does_not_affect_others(self, store: Store) -> None:
        with store.signals.listen(f"stream:{STREAM}") as stays:
            with store.signals.listen(f"stream:{STREAM}"):
                pass
            await apply(store, unit(events=[event()]))
            assert await stays.wait(SIGNAL_TIMEOUT_S)

    async def test_a_completed_job_with_new_work_wakes_both(self, store: Store) -> None:
        one = await add_and_claim(store, "j")
        with (
            store.signals.listen("queue:letters") as letters,
            store.signals.listen(f"stream:{STREAM}") as stream,
        ):
            await apply(store, unit(claim=one, outcome=Completed(), jobs=[job("k", "letters")], events=[event()]))
            assert await letters.wait(SIGNAL_TIMEOUT_S)
            assert await stream.wait(SIGNAL_TIMEOUT_S)


async def _wait_until_idle(wait: Wait) -> None:
    for _ in range(20):
        if not await wait(0.05):
            return
    raise AssertionError("20 wake-ups in a row without a change")
