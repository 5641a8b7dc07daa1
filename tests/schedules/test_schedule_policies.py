"""Schedule policies: overlap, catch-up, limits, pauses, changes, clock jumps. Time is a fake clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import flow, job
from penstock.core.clock import to_iso
from penstock.core.errors import SchemaViolation, UnknownSchedule
from penstock.schedules.spec import MAX_CATCH_UP_SLOTS, BadSchedule
from penstock.testing import TestApp
from penstock.testing.clock import START_MS, FakeClock
from penstock.testing.until import until

# START_MS is a multiple of ten seconds.
S = 1000
TARGETS = [{"flow": "long"}, {"queue": "chores"}]


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


class BlockedWork:
    """A flow and a job that run until released."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self._releases: dict[str, asyncio.Event] = {}

        @flow("long")
        async def long(ctx: Any) -> None:
            await self._block(ctx.run_id)

        @job(queue="chores")
        async def chore(ctx: Any) -> None:
            await self._block(ctx.job_id)

        self.handlers = (long, chore)

    async def _block(self, id: str) -> None:
        self.started.append(id)
        await self._releases.setdefault(id, asyncio.Event()).wait()

    def release(self, n: int) -> None:
        self._releases.setdefault(f"s.{START_MS + n * 10 * S}", asyncio.Event()).set()

    async def wait_for_start(self, n: int) -> None:
        await until(lambda: f"s.{START_MS + n * 10 * S}" in self.started)


async def row(app: Any) -> Any:
    return await app.store.schedule("s")


async def fired(app: Any, n: int) -> None:
    async def enough() -> bool:
        return (await row(app)).fired >= n

    await until(enough)


async def skips(app: Any) -> list[tuple[str, str]]:
    found = await app.events.read_all("nq:global")
    return [(e.subject, e.data["reason"]) for e in found if e.kind == "schedule.skipped"]


async def started(app: Any) -> int:
    return len(await app.runs.list(limit=1000)) + len(await app.job_events("chores", "job.added"))


@pytest.mark.parametrize("target", TARGETS)
async def test_overlap_allow_starts_another_run(app: Any, clock: FakeClock, target: dict[str, str]) -> None:
    blocked_work = BlockedWork()
    async with app(*blocked_work.handlers, clock=clock) as a, a.workers.background():
        await a.schedules.add("s", every="10s", **target)
        for n in (1, 2):
            a.advance_clock("10s")
            await blocked_work.wait_for_start(n)
        for n in (1, 2):
            blocked_work.release(n)


@pytest.mark.parametrize("target", TARGETS)
async def test_overlap_skip_records_schedule_skipped(app: Any, clock: FakeClock, target: dict[str, str]) -> None:
    blocked_work = BlockedWork()
    async with app(*blocked_work.handlers, clock=clock) as a, a.workers.background():
        await a.schedules.add("s", every="10s", overlap="skip", **target)
        a.advance_clock("10s")
        await blocked_work.wait_for_start(1)
        for n in (2, 3):
            a.advance_clock("10s")

            async def passed(n: int = n) -> bool:
                return (await row(a)).next == START_MS + (n + 1) * 10 * S

            await until(passed)
        assert await skips(a) == [("s", "overlap")] * 2
        assert ((await row(a)).fired, (await row(a)).last, await started(a)) == (1, START_MS + 10 * S, 1)
        blocked_work.release(1)
        await _ended(a, target, 1)
        a.advance_clock("10s")
        await blocked_work.wait_for_start(4)
        blocked_work.release(4)


async def _ended(a: Any, target: dict[str, str], n: int) -> None:
    id = f"s.{START_MS + n * 10 * S}"
    if "flow" in target:
        await a.runs.wait(id, timeout=20)
    else:
        await a.wait_for_state(id, "completed")


@pytest.mark.parametrize("target", TARGETS)
async def test_overlap_queue_holds_the_slot(app: Any, clock: FakeClock, target: dict[str, str]) -> None:
    blocked_work = BlockedWork()
    async with app(*blocked_work.handlers, clock=clock) as a, a.workers.background():
        await a.schedules.add("s", every="10s", overlap="queue", catch_up="all", **target)
        a.advance_clock("10s")
        await blocked_work.wait_for_start(1)
        a.advance_clock("20s")
        await a._schedule_service.scheduler.fire_due()
        assert ((await row(a)).fired, (await row(a)).next, await started(a)) == (1, START_MS + 20 * S, 1)
        for n in (1, 2):
            blocked_work.release(n)  # nothing but its end wakes the scheduler; a plain job's is looked for
            await blocked_work.wait_for_start(n + 1)
            assert await started(a) == n + 1
        blocked_work.release(3)
        assert await skips(a) == []


async def test_overlap_replace_cancels_the_last_run(app: Any, clock: FakeClock) -> None:
    blocked_work = BlockedWork()
    async with app(*blocked_work.handlers, clock=clock) as a, a.workers.background():
        await a.schedules.add("s", every="10s", overlap="replace", flow="long")
        for n in (1, 2, 3):
            a.advance_clock("10s")
            await blocked_work.wait_for_start(n)
        assert [await a.wait_for_end(f"s.{START_MS + n * 10 * S}") for n in (1, 2)] == ["cancelled", "cancelled"]
        (cancelled_event,) = await a.events_of(f"s.{START_MS + 10 * S}", "flow.cancelled")
        assert "schedule s" in cancelled_event.data["reason"]
        for n in (1, 2, 3):
            blocked_work.release(n)  # a worker that stops may not have notified cancelled handlers
        assert await a.wait_for_end(f"s.{START_MS + 30 * S}") == "completed"
        assert (await row(a)).fired == 3


async def test_overlap_replace_removes_a_waiting_job(app: Any, clock: FakeClock) -> None:
    blocked_work = BlockedWork()
    async with app(*blocked_work.handlers, clock=clock) as a:
        await a.schedules.add("s", every="10s", overlap="replace", queue="chores")
        for _ in range(3):
            a.advance_clock("10s")
            await a._schedule_service.scheduler.fire_due()
            assert await a.count_waiting("chores") == 1
        gone = await a.job_events("chores", "job.cancelled")
        assert [e.subject for e in gone] == [f"s.{START_MS + n * 10 * S}" for n in (1, 2)]
        # One that has started cannot be taken back: the slot waits for it.
        async with a.workers.background():
            await blocked_work.wait_for_start(3)
            a.advance_clock("10s")
            await a._schedule_service.scheduler.fire_due()
            assert ((await row(a)).fired, await a.count_waiting("chores")) == (3, 0)
            blocked_work.release(3)
            await blocked_work.wait_for_start(4)
            blocked_work.release(4)


async def test_a_removed_run_does_not_hold_a_slot(app: Any, clock: FakeClock) -> None:
    blocked_work = BlockedWork()
    async with app(*blocked_work.handlers, clock=clock) as a:
        for policy in ("skip", "queue", "replace"):
            await a.schedules.add("s", every="10s", overlap=policy, queue="chores")
            a.advance_clock("10s")
            await a._schedule_service.scheduler.fire_due()
            await a.queues.drain("chores")
        assert (await row(a)).fired == 3


async def test_two_schedulers_replace_a_run_once(shared: Any, clock: FakeClock) -> None:
    """In any order, each slot starts one run, and the newest run is never cancelled."""
    blocked_work = BlockedWork()
    async with shared(*blocked_work.handlers, clock=clock) as a, shared(*blocked_work.handlers, clock=clock) as b:
        await a.schedules.add("s", every="10s", overlap="replace", flow="long")
        for n in range(1, 11):
            clock.advance("10s")
            counts = await asyncio.gather(*(x._schedule_service.scheduler.fire_due() for x in (a, b, a, b)))
            assert sum(counts) == 1
            runs = {run.id: run.status for run in await a.runs.list()}
            assert list(runs.values()).count("running") == 1
            assert runs[f"s.{START_MS + n * 10 * S}"] == "running"
            assert len(runs) == n


async def test_a_crash_between_cancel_and_start_loses_no_slot(shared: Any, clock: FakeClock) -> None:
    blocked_work = BlockedWork()
    async with (
        shared(*blocked_work.handlers, clock=clock) as dying,
        shared(*blocked_work.handlers, clock=clock) as other,
    ):
        await dying.schedules.add("s", every="10s", overlap="replace", flow="long")
        clock.advance("10s")
        await dying._schedule_service.scheduler.fire_due()
        clock.advance("10s")

        async def die(*_: Any, **__: Any) -> bool:
            raise asyncio.CancelledError

        dying._schedule_service._commands.start = die
        with pytest.raises(asyncio.CancelledError):
            await dying._schedule_service.scheduler.fire_due()
        assert (await other.store.run(f"s.{START_MS + 10 * S}")).status == "cancelled"
        assert await other._schedule_service.scheduler.fire_due() == 1
        assert (await other.store.run(f"s.{START_MS + 20 * S}")).status == "running"
        assert (await row(other)).fired == 2


@pytest.mark.parametrize(("catch_up", "slots"), [("one", [1]), ("all", [1, 2, 3, 4, 5]), ("none", [])])
async def test_slots_missed_while_nothing_ran(app: Any, clock: FakeClock, catch_up: Any, slots: list[int]) -> None:
    async with app(*BlockedWork().handlers, clock=clock) as a:
        await a.schedules.add("s", every="100s", catch_up=catch_up, queue="chores")
        first = (await row(a)).next
        clock.set_ms(first + 499 * S)
        await a._schedule_service.scheduler.fire_due()
        added = [e.subject for e in await a.job_events("chores", "job.added")]
        assert added == [f"s.{first + (n - 1) * 100 * S}" for n in slots]
        assert (await row(a)).next == first + 500 * S
        assert await skips(a) == ([("s", "missed")] if catch_up == "none" else [])


async def test_catch_up_all_fires_at_most_the_newest_thousand(memory: Any, clock: FakeClock) -> None:
    async with memory(*BlockedWork().handlers, clock=clock) as a:
        await a.schedules.add("s", every="1s", catch_up="all", queue="chores")
        clock.advance("1d")
        while await a._schedule_service.scheduler.fire_due():
            pass
        assert ((await row(a)).fired, await skips(a)) == (MAX_CATCH_UP_SLOTS, [("s", "missed")])
        assert (await row(a)).next == clock.now_ms() + S


async def test_a_limit_and_an_end(app: Any, clock: FakeClock) -> None:
    async with app(*BlockedWork().handlers, clock=clock) as a:
        await a.schedules.add("s", every="10s", limit=3, queue="chores")
        await a.schedules.add(
            "ends", every="10s", start=at(START_MS + 20 * S), end=at(START_MS + 30 * S), queue="chores"
        )
        for _ in range(6):
            clock.advance("10s")
            await a._schedule_service.scheduler.fire_due()
        assert {r.id: (r.fired, r.next_at) for r in await a.schedules.list()} == {"s": (3, None), "ends": (2, None)}
        await a.schedules.add("s", every="10s", limit=3, queue="chores")  # a deploy does not reset the count
        assert (await row(a)).next is None
        await a.schedules.add("s", every="10s", limit=4, queue="chores")
        clock.advance("10s")
        await a._schedule_service.scheduler.fire_due()
        assert ((await row(a)).fired, (await row(a)).next) == (4, None)


async def test_pause_and_resume(app: Any, clock: FakeClock) -> None:
    async with app(*BlockedWork().handlers, clock=clock) as a:
        await a.schedules.add("s", every="10s", queue="chores")
        assert (await a.schedules.pause("s")).paused
        assert (await a.schedules.pause("s")).paused
        clock.advance("35s")
        assert await a._schedule_service.scheduler.fire_due() == 0
        assert (await a.schedules.add("s", every="10s", queue="chores", priority=2)).paused
        back = await a.schedules.resume("s")
        assert (back.paused, back.next_at) == (False, to_iso(START_MS + 40 * S))
        assert (await a.schedules.resume("s")).next_at == to_iso(START_MS + 40 * S)
        assert await a._schedule_service.scheduler.fire_due() == 0  # what passed meanwhile stays unfired
        clock.advance("5s")
        assert await a._schedule_service.scheduler.fire_due() == 1
        for call in (a.schedules.pause, a.schedules.resume, a.schedules.run_now):
            with pytest.raises(UnknownSchedule, match="'other'"):
                await call("other")


async def test_resuming_wakes_the_scheduler(app: Any, clock: FakeClock) -> None:
    blocked_work = BlockedWork()
    async with app(*blocked_work.handlers, clock=clock) as a, a.workers.background():
        await a.schedules.add("s", every="10s", queue="chores")
        await a.schedules.pause("s")
        a.advance_clock("9s")
        await a.schedules.resume("s")
        a.advance_clock("1s")
        await fired(a, 1)
        blocked_work.release(1)


@pytest.mark.parametrize("target", TARGETS)
async def test_run_now_does_not_change_the_slots(app: Any, clock: FakeClock, target: dict[str, str]) -> None:
    async with app(*BlockedWork().handlers, clock=clock) as a:
        before = await a.schedules.add("s", every="10s", limit=1, **target)
        await a.schedules.pause("s")
        ids = [await a.schedules.run_now("s") for _ in range(2)]
        assert all(id.startswith("s.") for id in ids)
        assert await started(a) == 2
        await a.schedules.resume("s")
        assert await a.schedules.get("s") == before


async def test_the_clock_jumps_an_hour_ahead_and_back(app: Any, clock: FakeClock) -> None:
    """No slot twice, none before its time by the store's clock."""
    async with app(*BlockedWork().handlers, clock=clock) as a:
        await a.schedules.add("s", every="10m", catch_up="all", queue="chores")
        added: list[int] = []
        for jump in (0, 3600, 0, -3600, 0, 600, 3600, -3600, 0):
            clock.set_ms(clock.now_ms() + (jump + 600) * S)
            await a._schedule_service.scheduler.fire_due()
            await a.schedules.add("s", every="10m", catch_up="all", queue="chores")
            events = await a.job_events("chores", "job.added")
            new = [int(e.subject.partition(".")[2]) for e in events[len(added) :]]
            assert all(slot <= clock.now_ms() for slot in new)
            added += new
        assert added == list(range(added[0], added[-1] + 1, 600 * S))
        assert len(added) == (await row(a)).fired


async def test_after_a_jump_back_no_slot_fires_twice(app: Any, clock: FakeClock) -> None:
    async with app(*BlockedWork().handlers, clock=clock) as a:
        await a.schedules.add("s", every="10m", queue="chores")
        clock.set_ms(START_MS + 3_600_000)
        assert await a._schedule_service.scheduler.fire_due() == 1
        next_ = (await row(a)).next
        clock.set_ms(START_MS)
        await a.schedules.add("s", every="10m", overlap="skip", queue="chores")
        while clock.now_ms() < next_:
            assert await a._schedule_service.scheduler.fire_due() == 0
            clock.advance("100s")
        await a.queues.drain("chores")
        assert await a._schedule_service.scheduler.fire_due() == 1


async def test_changes_race_with_firing(shared: Any, clock: FakeClock) -> None:
    """A schedule added again while it fires never returns to a fired slot."""
    async with shared(*BlockedWork().handlers, clock=clock) as a, shared(*BlockedWork().handlers, clock=clock) as b:
        await a.schedules.add("s", every="1s", catch_up="all", queue="chores")
        for n in range(20):
            clock.advance("1s")
            await asyncio.gather(
                a._schedule_service.scheduler.fire_due(),
                b._schedule_service.scheduler.fire_due(),
                a.schedules.add("s", every="1s", catch_up="all", priority=n % 3, queue="chores"),
                b.schedules.add("s", every="1s", catch_up="all", limit=1000 + n, queue="chores"),
                a.schedules.pause("s"),
                b.schedules.resume("s"),
            )
            await a.schedules.resume("s")
            now = await row(a)
            assert now.next > (now.last or 0)
        added = [e.subject for e in await a.job_events("chores", "job.added")]
        assert len(added) == len(set(added)) == (await row(a)).fired


async def test_concurrent_adds_agree_on_one_schedule(shared: Any, clock: FakeClock) -> None:
    async with shared(*BlockedWork().handlers, clock=clock) as a, shared(*BlockedWork().handlers, clock=clock) as b:
        added = (x.schedules.add("s", every="1s", queue="chores") for x in (a, b) * 5)
        assert await asyncio.gather(*added) == [await a.schedules.get("s")] * 10


async def test_a_schedule_with_an_invalid_target_is_not_stored(memory: Any) -> None:
    @flow("typed", input_schema={"type": "object", "required": ["of"]})
    async def typed(input: dict[str, Any]) -> None: ...

    @job(queue="typed-jobs", input_schema={"type": "integer"})
    async def typed_job(input: int) -> None: ...

    async with memory(typed, typed_job) as a:
        with pytest.raises(SchemaViolation, match="the input of 'typed'"):
            await a.schedules.add("s", flow="typed", every="1h", input={"on": 1})
        with pytest.raises(SchemaViolation, match="typed_job"):
            await a.schedules.add("s", queue="typed-jobs", every="1h", input="x")
        with pytest.raises(BadSchedule, match="limit must be a whole number"):
            await a.schedules.add("s", queue="typed-jobs", every="1h", input=1, limit=0)
        assert await a.schedules.list() == []
        await a.schedules.add("s", flow="typed", every="1h", input={"of": 1})


async def test_a_delayed_run_is_listed_and_can_be_cancelled(app: Any, clock: FakeClock) -> None:
    blocked_work = BlockedWork()
    async with app(*blocked_work.handlers, clock=clock) as a, a.workers.background():
        run = await a.start("long", at=at(START_MS + 3_600_000))
        (found,) = await a.runs.list(flow="long")
        assert (found.id, found.closed) == (run, False)
        assert await a.runs.cancel(run, "changed our minds")
        a.advance_clock("2h")
        assert await a.wait_for_end(run) == "cancelled"
        assert "step.started" not in await a.kinds(run)
        assert blocked_work.started == []


async def test_many_held_slots_do_not_hide_the_others(memory: Any, clock: FakeClock) -> None:
    blocked_work = BlockedWork()
    async with memory(*blocked_work.handlers, clock=clock) as a:
        for n in range(150):
            await a.schedules.add(f"held-{n}", queue="chores", every="10s", overlap="queue")
        clock.advance("10s")
        assert await a._schedule_service.scheduler.fire_due() == 150
        await a.schedules.add("s", queue="chores", every="11s")
        clock.advance("11s")
        await a._schedule_service.scheduler.fire_due()
        assert (await row(a)).fired == 1


async def test_the_test_app_advances_while_a_slot_is_held() -> None:
    @flow("slow", retry={"attempts": 2, "backoff": {"type": "fixed", "delayMs": 3_600_000, "jitter": False}})
    async def slow(ctx: Any) -> str:
        if ctx.attempt == 1:
            raise OSError("not yet")
        return "done"

    async with TestApp(handlers=[slow]) as app:
        await app.schedules.add("s", flow="slow", every="10m", overlap="queue")
        await app.advance("25m")
        assert (await app.schedules.list())[0].fired == 1
        await app.advance("1h")
        assert (await app.schedules.list())[0].fired == 2
