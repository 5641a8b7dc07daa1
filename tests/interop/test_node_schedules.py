"""Our schedules are job schedulers of BullMQ: Node lists and removes them, and we list and remove Node's."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import App, flow, job
from penstock.core.clock import to_iso
from penstock.core.errors import BadArgument, UnknownSchedule
from penstock.testing.clock import FakeClock
from penstock.testing.until import until

pytestmark = pytest.mark.xdist_group("interop")
HOUR = 3_600_000


@job(queue="mail", name="send")
async def send(data: Any) -> dict[str, Any]:
    return {"sent": data}


@flow("report", queue="reports")
async def report(data: Any) -> str:
    return "done"


async def listed(node: Any, queue: str) -> dict[str, Any]:
    return {one["key"]: one for one in await node.call("schedulers", queue=queue)}


@pytest.mark.spec("004-4.5")
async def test_node_lists_our_schedules(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send, report]) as app:
        cron = await app.schedules.add(
            "nightly", flow="report", input={"n": 1}, cron="0 3 * * *", tz="Europe/Berlin", limit=9
        )
        often = await app.schedules.add("often", queue="mail", name="send", input=7, every="1h")
        (theirs,) = (await listed(node, "reports")).values()
        assert (theirs["key"], theirs["name"], theirs["pattern"], theirs["tz"]) == (
            "nightly",
            "report",
            "0 3 * * *",
            "Europe/Berlin",
        )
        assert (theirs["limit"], theirs["template"]["data"]) == (9, {"n": 1})
        assert _iso(theirs["next"]) == cron.next_at
        (theirs,) = (await listed(node, "mail")).values()
        assert (theirs["key"], theirs["name"], theirs["every"], theirs["template"]["data"]) == (
            "often",
            "send",
            HOUR,
            7,
        )
        assert _iso(theirs["next"]) == often.next_at
        # It follows the schedule: another queue, a pause, its end.
        await app.schedules.add("often", queue="post", name="send", input=7, every="1h")
        assert (await listed(node, "mail"), list(await listed(node, "post"))) == ({}, ["often"])
        await app.schedules.pause("often")
        assert list(await listed(node, "post")) == ["often"]
        assert await app.schedules.remove("often")
        assert await listed(node, "post") == {}


@pytest.mark.spec("004-4.5")
async def test_a_schedule_that_node_removes_is_gone(node: Any, redis_url: str) -> None:
    clock = FakeClock()
    async with App(redis_url, handlers=[send], clock=clock) as app:
        await app.schedules.add("often", queue="mail", name="send", input=7, every="1h")
        row = await app.store.schedule("often")
        assert row is not None
        assert await node.call("unschedule", queue="mail", id="often")
        assert await app.schedules.list() == []
        with pytest.raises(UnknownSchedule):
            await app.schedules.get("often")
        assert not await app.store.put_schedule(row, row), "a writer that still knows it cannot write it again"
        clock.advance("2h")
        async with app.workers.background():
            await app.schedules.add("other", queue="mail", name="send", input=8, every="1h")
            clock.advance("1h")
            app.store.signals.notify_all()  # type: ignore[attr-defined]

            async def has_fired() -> bool:
                return (await app.schedules.get("other")).fired == 1

            async def is_done() -> bool:
                return bool(await app.jobs.list("mail", "completed"))

            await until(has_fired, 20)
            await until(is_done, 20)
            done = await app.jobs.list("mail", "completed")
            assert [one.id.partition(".")[0] for one in done] == ["other"]
        # The same name is free again.
        assert (await app.schedules.add("often", queue="mail", name="send", input=9, every="1h")).fired == 0
        assert sorted(await listed(node, "mail")) == ["often", "other"]


async def test_node_can_take_a_schedule_over_and_we_can_take_it_back(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await app.schedules.add("often", queue="mail", name="send", input=7, every="1h")
        await node.call("schedule", queue="mail", id="often", when={"every": 2 * HOUR}, name="send", data="theirs")
        (view,) = await app.schedules.list()
        assert (view.foreign, view.every_ms, view.input) == (True, 2 * HOUR, "theirs")
        await app.schedules.add("often", queue="mail", name="send", input=8, every="1h")
        (view,) = await app.schedules.list()
        assert (view.foreign, view.input) == (False, 8)
        assert (await app.queues.counts("mail"))["delayed"] == 0, "the next job of the scheduler is gone with it"


@pytest.mark.spec("004-4.5")
async def test_we_list_and_remove_the_schedules_of_node(node: Any, redis_url: str) -> None:
    async with App(redis_url, handlers=[send]) as app:
        await node.call(
            "schedule",
            queue="mail",
            id="theirs",
            when={"pattern": "0 3 * * *", "tz": "Asia/Tokyo", "limit": 5},
            name="send",
            data={"a": 1},
        )
        await app.schedules.add("ours", queue="mail", name="send", every="1h")
        ours, theirs = await app.schedules.list()
        assert (ours.id, ours.foreign) == ("ours", False)
        assert (theirs.id, theirs.foreign, theirs.queue, theirs.name) == ("theirs", True, "mail", "send")
        assert (theirs.cron, theirs.tz, theirs.limit, theirs.input) == ("0 3 * * *", "Asia/Tokyo", 5, {"a": 1})
        assert theirs.next_at == _iso((await listed(node, "mail"))["theirs"]["next"])
        with pytest.raises(UnknownSchedule):
            await app.schedules.pause("theirs")
        await app.jobs.enqueue("post", 1)  # a queue we have used
        await node.call("schedule", queue="post", id="theirs", when={"every": HOUR}, name="send", data=1)
        with pytest.raises(BadArgument, match=r"2 queues have a job scheduler 'theirs' .*; pass queue="):
            await app.schedules.remove("theirs")
        assert await app.schedules.remove("theirs", queue="post")
        assert await app.schedules.remove("theirs")
        assert not await app.schedules.remove("theirs")
        assert (list(await listed(node, "mail")), await listed(node, "post")) == (["ours"], {})
        assert (await app.queues.counts("mail"))["delayed"] == 0


def _iso(ms: float) -> str:
    return to_iso(int(ms))
