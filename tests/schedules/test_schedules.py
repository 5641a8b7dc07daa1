"""Schedules: every, cron, once; each slot fires once with any number of schedulers. Time is a fake clock."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import flow, job
from penstock.core.clock import from_iso, to_iso
from penstock.core.errors import ConfigError, NotJSON, UnknownFlow
from penstock.core.ids import BadId
from penstock.schedules import scheduler
from penstock.schedules.spec import ScheduleSpec, next_slot
from penstock.testing.clock import START_MS, FakeClock
from penstock.testing.until import until

# START_MS is 2023-11-14T22:13:20Z, a Tuesday.
HOUR = 3_600_000
NEXT_HOUR = START_MS // HOUR * HOUR + HOUR


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@flow("report")
async def report(input: Any) -> Any:
    return input


@job(queue="clean")
async def clean(input: Any) -> Any:
    return input


async def fired(app: Any, id: str) -> int:
    return next(row.fired for row in await app.schedules.list() if row.id == id)


async def reached(app: Any, id: str, times: int) -> None:
    async def enough() -> bool:
        return await fired(app, id) >= times

    await until(enough)


async def test_every_hour_starts_a_flow_at_each_slot(app: Any, clock: FakeClock) -> None:
    async with app(report, clock=clock) as a, a.workers.background():
        row = await a.schedules.add("hourly", flow="report", input={"x": 1}, every="1h")
        assert row.next_at == to_iso(NEXT_HOUR)
        for n in range(1, 4):
            clock.set_ms(NEXT_HOUR + (n - 1) * HOUR)
            a.wake_all()
            await reached(a, "hourly", n)
        runs = await a.runs.list(flow="report")
        assert sorted(run.id for run in runs) == [f"hourly.{NEXT_HOUR + n * HOUR}" for n in range(3)]
        assert await a.result(runs[0].id, timeout=20) == {"x": 1}
        assert (await a.events_of(runs[0].id, "step.started"))[0].meta["causationId"] == "schedule-hourly"
        (kept,) = await a.schedules.list()
        assert (kept.last_at, kept.next_at) == (to_iso(NEXT_HOUR + 2 * HOUR), to_iso(NEXT_HOUR + 3 * HOUR))


async def test_every_adds_a_job(app: Any, clock: FakeClock) -> None:
    async with app(clean, clock=clock) as a, a.workers.background():
        await a.schedules.add("sweep", queue="clean", input=7, every="10s", priority=3)
        a.advance_clock("10s")
        id = f"sweep.{START_MS + 10_000}"
        assert (await a.wait_for_state(id, "completed")).priority == 3
        assert await a.jobs.result(id) == 7


async def test_missed_slots_fire_once_by_default(app: Any, clock: FakeClock) -> None:
    async with app(report, clock=clock) as a:
        await a.schedules.add("hourly", flow="report", every="1h")
        a.advance_clock("5h")
        async with a.workers.background():
            await reached(a, "hourly", 1)
        (row,) = await a.schedules.list()
        assert (row.fired, row.next_at) == (1, to_iso(NEXT_HOUR + 5 * HOUR))
        assert [run.id for run in await a.runs.list()] == [f"hourly.{NEXT_HOUR}"]


@pytest.mark.spec("000-4.1.3", "004-4.1")
async def test_cron_in_its_time_zone(app: Any, clock: FakeClock) -> None:
    async with app(report, clock=clock) as a, a.workers.background():
        row = await a.schedules.add("daily", flow="report", cron="30 9 * * 1-5", tz="Europe/Berlin")
        first = int(datetime(2023, 11, 15, 8, 30, tzinfo=UTC).timestamp() * 1000)
        assert row.next_at == to_iso(first)
        clock.set_ms(first - 1)
        a.wake_all()
        assert await fired(a, "daily") == 0
        clock.set_ms(first)
        a.wake_all()
        await reached(a, "daily", 1)
        assert (await a.schedules.list())[0].next_at == to_iso(first + 24 * HOUR)


@pytest.mark.parametrize(
    ("cron", "tz", "after", "slot"),
    [
        ("0 9 * * *", "Europe/Berlin", "2024-03-30T09:00:00Z", "2024-03-31T07:00:00Z"),  # summer time begins
        ("0 9 * * *", "Europe/Berlin", "2024-10-26T08:00:00Z", "2024-10-27T08:00:00Z"),  # and ends
        ("30 2 * * *", "Europe/Berlin", "2024-03-30T02:00:00Z", "2024-03-31T01:00:00Z"),  # an hour that is not there
        ("0 0 29 2 *", "UTC", "2024-03-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("*/15 * * * *", "UTC", "2024-01-01T00:15:00Z", "2024-01-01T00:30:00Z"),
    ],
)
def test_the_next_slot_of_a_cron(cron: str, tz: str, after: str, slot: str) -> None:
    found = next_slot(ScheduleSpec(cron=cron, tz=tz), from_iso(after))
    assert found is not None
    assert to_iso(found)[:19] == slot[:19]


async def test_a_schedule_that_fires_once(app: Any, clock: FakeClock) -> None:
    async with app(report, clock=clock) as a, a.workers.background():
        moment = at(START_MS + 60_000)
        row = await a.schedules.add("once", flow=report, at=moment)
        assert row.next_at == to_iso(START_MS + 60_000)
        a.advance_clock("59s")
        assert await a.runs.list() == []
        a.advance_clock("1s")
        await reached(a, "once", 1)
        assert (await a.schedules.list())[0].next_at is None
        a.advance_clock("1d")
        assert len(await a.runs.list()) == 1


@pytest.mark.parametrize("target", [{"flow": "report"}, {"queue": "clean"}])
async def test_adding_a_schedule_again_does_not_fire_its_slot_again(
    app: Any, clock: FakeClock, target: dict[str, str]
) -> None:
    """Each deploy adds its schedules again."""
    async with app(report, clean, clock=clock) as a, a.workers.background():
        moment = at(START_MS + 1000)
        await a.schedules.add("once", at=moment, **target)
        a.advance_clock("1s")
        await reached(a, "once", 1)
        await a.schedules.add("once", at=moment, **target)

        async def over() -> bool:
            return (await a.schedules.list())[0].next_at is None

        await until(over)
        assert len(await a.runs.list()) + len(await a.job_events("clean", "job.added")) == 1


@pytest.mark.spec("004-4.1")
async def test_a_schedule_is_replaced_and_removed(app: Any, clock: FakeClock) -> None:
    async with app(report, clean, clock=clock) as a, a.workers.background():
        await a.schedules.add("s", flow="report", every="1h")
        row = await a.schedules.add("s", queue="clean", every="1m")
        assert len(await a.schedules.list()) == 1
        assert row.next_at is not None
        clock.set_ms(from_iso(row.next_at))
        a.wake_all()
        await reached(a, "s", 1)
        assert await a.runs.list() == []
        assert await a.schedules.remove("s")
        assert not await a.schedules.remove("s")
        a.advance_clock("1h")
        assert await a.schedules.list() == []


async def test_two_schedulers_fire_each_slot_once(shared: Any, clock: FakeClock) -> None:
    async with shared(report, clean, clock=clock) as a, shared(report, clean, clock=clock) as b:
        await a.schedules.add("flows", flow="report", every="10s")
        await a.schedules.add("jobs", queue="clean", every="10s")
        async with a.workers.background(), b.workers.background():
            for n in range(1, 11):
                a.advance_clock("10s", b)
                await reached(a, "flows", n)
                await reached(a, "jobs", n)
        assert {row.id: row.fired for row in await a.schedules.list()} == {"flows": 10, "jobs": 10}
        assert len(await a.runs.list(limit=100)) == 10
        assert len(await a.job_events("clean", "job.added")) == 10


async def test_many_schedulers_racing_for_one_slot(shared: Any, clock: FakeClock) -> None:
    async with shared(report, clock=clock) as a, shared(report, clock=clock) as b:
        await a.schedules.add("s", flow="report", every="1s")
        clock.advance("1s")
        counts = await asyncio.gather(*(x._schedule_service.scheduler.fire_due() for x in (a, b) for _ in range(10)))
        assert sum(counts) == 1
        assert len(await a.runs.list()) == 1


async def test_a_schedule_this_worker_cannot_fire_waits_for_one_that_can(
    shared: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine, the pause is not over while the test looks.
    monkeypatch.setattr(scheduler, "STUCK_RETRY_S", 3600.0)

    @flow("other", queue="elsewhere")
    async def other() -> None: ...

    async with shared(report, clock=clock) as able, shared(other, clock=clock) as unable:
        await able.schedules.add("s", flow="report", every="1s")
        await able.schedules.add("fine", queue="clean", every="1s")
        tries = _count_fires(unable)
        with caplog.at_level(logging.CRITICAL):
            async with unable.workers.background():
                unable.advance_clock("1s")
                await reached(unable, "fine", 1)
                await until(lambda: "s" in tries)
                assert await fired(unable, "s") == 0
                # It is tried again after a while, not in a hot loop. The pass that fired "fine" may still look once more.
                before = tries.count("s")
                unable.wake_all()
                for _ in range(50):
                    await unable.schedules.list()
                assert tries.count("s") <= before + 3
        async with able.workers.background():
            await reached(able, "s", 1)


def _count_fires(app: Any) -> list[str]:
    tries: list[str] = []
    inner = app._schedule_service.fire

    async def fire(row: Any, target: Any, decision: Any) -> bool:
        tries.append(row.id)
        return bool(await inner(row, target, decision))

    app._schedule_service.fire = fire
    return tries


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"flow": "report"}, "and only one"),
        ({"flow": "report", "every": "1h", "cron": "* * * * *"}, "and only one"),
        ({"every": "1h"}, "either flow"),
        ({"flow": "report", "queue": "clean", "every": "1h"}, "either flow"),
        ({"flow": "report", "every": 0}, "every=0 is too frequent for a schedule; the minimum is 1s"),
        ({"flow": "report", "cron": "every day"}, "invalid cron expression"),
        ({"flow": "report", "cron": "* * * * *", "tz": "Mars/Olympus"}, "unknown time zone"),
    ],
)
async def test_an_invalid_schedule_is_refused(memory: Any, given: dict[str, Any], error: str) -> None:
    async with memory(report, clean) as a:
        with pytest.raises(ConfigError, match=error):
            await a.schedules.add("s", **given)
        assert await a.schedules.list() == []


async def test_other_refusals_of_schedules(memory: Any) -> None:
    async with memory(report) as a:
        with pytest.raises(UnknownFlow):
            await a.schedules.add("s", flow="nothing", every="1h")
        with pytest.raises(NotJSON):
            await a.schedules.add("s", flow="report", every="1h", input=object())
        with pytest.raises(BadId, match=r"invalid schedule id 'not an id'; use at most 160 characters.*"):
            await a.schedules.add("not an id", flow="report", every="1h")
        with pytest.raises(BadId, match=r"invalid schedule id 'x+…; use at most 160 characters.*"):
            await a.schedules.add("x" * 161, flow="report", every="1h")
        assert await a.schedules.list() == []


async def test_the_longest_id(memory: Any, clock: FakeClock) -> None:
    id = "x" * 160
    async with memory(report, clock=clock) as a, a.workers.background():
        await a.schedules.add(id, flow="report", every="1h")
        assert await a.wait_for_end(await a.schedules.run_now(id)) == "completed"


@pytest.mark.spec("004-4.4")
async def test_all_schedules_of_a_flow_are_deactivated(app: Any) -> None:
    @flow("declared", schedule="1h")
    async def declared() -> None: ...

    @flow("other")
    async def other() -> None: ...

    async with app(declared, other) as a:
        await a._schedule_service.prepare()
        await a.schedules.add("more", flow="declared", every="2h")
        await a.schedules.add("kept", flow="other", every="2h")
        assert sorted(await a.schedules.deactivate("declared")) == ["declared", "more"]
        assert {row.id: row.paused for row in await a.schedules.list()} == {"declared": True, "kept": False}
        a._schedule_service._prepared = None
        await a._schedule_service.prepare()
        assert (await a.schedules.get("declared")).paused, "a worker that starts does not start it again"
        assert await a.schedules.deactivate(other) == ["kept"]
        assert await a.schedules.deactivate("none") == []
