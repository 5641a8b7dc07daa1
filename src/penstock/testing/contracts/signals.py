"""Wake-ups: never too few. They carry no data and may come for nothing, so only their coming is tested."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ...ports.store import ScheduleRow, Store
from ...ports.unit import Completed, Dead, Released, RetryAt
from ..clock import FakeClock
from .samples import ERROR, QUEUE, STREAM, add, apply, ask, claim, event, held, job, run, started, unit
from .subject import StoreUnderTest

BOUND = 5.0  # seconds; a machine under load is slow, a missing signal never comes
Wait = Callable[[float], Awaitable[bool]]


class SignalsContract(StoreUnderTest):
    """Whoever listens hears of every change under its topics."""

    async def test_a_new_job_wakes_its_queue(self, store: Store, clock: FakeClock) -> None:
        for n, due in enumerate((0, clock.now_ms() + 60_000)):
            with store.signals.listen(f"queue:{QUEUE}") as listener:
                await add(store, job(f"j{n}", due=due))
                assert await listener.wait(BOUND)

    async def test_work_that_the_asker_leaves_behind_wakes_the_others(self, store: Store) -> None:
        one = await held(store, "j")
        with store.signals.listen(f"queue:{QUEUE}") as listener:
            done = unit(claim=one, outcome=Completed(), jobs=[job("k1"), job("k2")])
            reply = await store.commit([done], ask(limit=1))
            assert len(reply.claimed.claims) == 1
            assert await listener.wait(BOUND)

    async def test_an_event_wakes_its_stream(self, store: Store) -> None:
        with store.signals.listen(f"stream:{STREAM}") as listener:
            await apply(store, unit(events=[event(stream="nq:flow:x"), event()]))
            assert await listener.wait(BOUND)

    async def test_any_event_wakes_those_who_follow_all(self, store: Store) -> None:
        with store.signals.listen("events") as listener:
            await apply(store, unit(events=[event(stream="nq:flow:x")]))
            assert await listener.wait(BOUND)

    async def test_cancelling_wakes_those_who_run_jobs(self, store: Store) -> None:
        await apply(store, unit(run=run("r")))
        with store.signals.listen("cancelled") as listener:
            await apply(store, unit(run=run("r", 1, status="cancelled", closed=True, cancel_jobs=True)))
            assert await listener.wait(BOUND)

    async def test_a_schedule_wakes_the_scheduler(self, store: Store) -> None:
        with store.signals.listen("schedules") as listener:
            await store.put_schedule(ScheduleRow("s", b"{}", b"{}", 1000), None)
            assert await listener.wait(BOUND)

    async def test_a_claim_wakes_the_stream_it_writes(self, store: Store) -> None:
        await add(store, job("j", started=started()))
        with store.signals.listen(f"stream:{STREAM}") as listener:
            await claim(store)
            assert await listener.wait(BOUND)

    async def test_closing_a_run_wakes_those_who_wait_for_it(self, store: Store) -> None:
        await apply(store, unit(run=run("r")))
        with store.signals.listen("run:r") as listener:
            await apply(store, unit(run=run("r", 1, status="completed", closed=True)))
            assert await listener.wait(BOUND)

    @pytest.mark.parametrize("later", [False, True])
    async def test_a_job_that_comes_back_wakes_its_queue(self, store: Store, clock: FakeClock, later: bool) -> None:
        due = clock.now_ms() + 1000 if later else 0
        for n, outcome in enumerate((RetryAt(due, ERROR), Released(due))):
            one = await held(store, f"j{n}", f"q{n}")
            with store.signals.listen(f"queue:q{n}") as listener:
                await apply(store, unit(claim=one, outcome=outcome))
                assert await listener.wait(BOUND)

    async def test_administrators_wake_the_queue(self, store: Store, clock: FakeClock) -> None:
        await add(store, job("later", due=clock.now_ms() + 60_000))
        one = await held(store, "dead")
        await apply(store, unit(claim=one, outcome=Dead(ERROR)))
        await store.pause(QUEUE)
        for move in (store.promote("later"), store.retry("dead"), store.resume(QUEUE)):
            with store.signals.listen(f"queue:{QUEUE}") as listener:
                await move
                assert await listener.wait(BOUND)

    async def test_a_change_before_the_wait_is_remembered(self, store: Store) -> None:
        with store.signals.listen(f"stream:{STREAM}") as listener:
            for _ in range(3):
                await apply(store, unit(events=[event()]))
            assert await listener.wait(BOUND)

    async def test_a_wait_in_progress_is_woken(self, store: Store) -> None:
        with store.signals.listen(f"stream:{STREAM}") as listener:
            await _until_quiet(listener.wait)
            waiting = asyncio.create_task(listener.wait(BOUND))
            await asyncio.sleep(0)
            await apply(store, unit(events=[event()]))
            assert await waiting

    async def test_one_listener_for_many_topics_and_many_for_one(self, store: Store) -> None:
        topics = (f"queue:{QUEUE}", f"stream:{STREAM}", "run:r")
        changes = (unit(jobs=[job("j")]), unit(events=[event()]), unit(run=run("r", closed=True)))
        for change in changes:
            with store.signals.listen(*topics) as one, store.signals.listen(*topics) as two:
                await apply(store, change)
                assert await one.wait(BOUND)
                assert await two.wait(BOUND)

    async def test_silence_is_silence(self, store: Store) -> None:
        with store.signals.listen(f"queue:{QUEUE}") as listener:
            await add(store, job("j"))
            # Spurious wake-ups are allowed, a listener that never sleeps is not.
            await _until_quiet(listener.wait)

    async def test_one_who_stops_listening_hurts_nobody(self, store: Store) -> None:
        with store.signals.listen(f"stream:{STREAM}") as stays:
            with store.signals.listen(f"stream:{STREAM}"):
                pass
            await apply(store, unit(events=[event()]))
            assert await stays.wait(BOUND)

    async def test_a_completed_job_with_new_work_wakes_both(self, store: Store) -> None:
        one = await held(store, "j")
        with (
            store.signals.listen("queue:letters") as letters,
            store.signals.listen(f"stream:{STREAM}") as stream,
        ):
            await apply(store, unit(claim=one, outcome=Completed(), jobs=[job("k", "letters")], events=[event()]))
            assert await letters.wait(BOUND)
            assert await stream.wait(BOUND)


async def _until_quiet(wait: Wait) -> None:
    for _ in range(20):
        if not await wait(0.05):
            return
    raise AssertionError("20 wake-ups in a row, and nothing had changed")
