"""Keys of records that another program wrote with another Redis type: each fails alone, and its neighbours complete."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import redis_server
from damage import Damage
from penstock import Context, flow, job
from penstock.core.errors import UnreadableRecord
from penstock.ports.store import Retention
from penstock.testing.until import until

TEST_TIMEOUT_S = 20
PAST = datetime(2020, 1, 1, tzinfo=UTC)
TYPES = {"string": ("SET", "x"), "list": ("RPUSH", "x"), "set": ("SADD", "x"), "empty hash": ("HSET", "x", "y")}


@flow("order")
async def order(input: Any) -> Any:
    return input


@flow("patient")
async def patient(input: Any, ctx: Context) -> Any:
    first = await ctx.run("first", lambda: 1)
    return first, (await ctx.wait.event("go", match={"n": input})).data["n"]


@job(queue="ticks")
async def tick(input: Any) -> Any:
    return input


@pytest.fixture
def damage() -> Damage:
    return Damage(redis_server.url())


@pytest.fixture
def app(damage: Damage, app_factory: Any) -> Any:
    return app_factory(damage.url)(order, patient, tick)


def retype(damage: Damage, key: str, type_: str) -> None:
    command, *values = TYPES[type_]
    damage.redis("DEL", key)
    damage.redis(command, key, *values)


@pytest.mark.parametrize("type_", ["string", "list", "set"])
async def test_a_run(app: Any, damage: Damage, type_: str) -> None:
    async with app:
        runs = [await app.start("order", n) for n in range(3)]
        retype(damage, f"nq:run:{runs[1]}", type_)
        async with app.workers.background():
            assert [await app.wait_for_end(run) for run in (runs[0], runs[2])] == ["completed"] * 2
            failed = await app.wait_for_step(runs[1], "order", "failed")
            assert b"unreadable_record" in (failed.error or b"")
        found = {row.id: row.unreadable is None for row in await app.runs.list()}
        assert found == {runs[0]: True, runs[1]: False, runs[2]: True}
        with pytest.raises(UnreadableRecord, match="cannot be read"):
            await app.runs.pause(runs[1])
        with pytest.raises(UnreadableRecord, match="cannot be read"):
            await app.start("order", 1, key=runs[1])
        assert await app.runs.cancel(runs[1])
        assert [row.id for row in await app.runs.list(status="cancelled")] == [runs[1]]
        assert await app.runs.list(status="open") == []
        assert (await app.store.sweep(Retention(runs_before=2**52)))["runs"] == 3


async def test_a_version_that_is_no_number(app: Any, damage: Damage) -> None:
    async with app:
        run = await app.start("order", 1)
        damage.redis("HSET", f"nq:run:{run}", "version", "many")
        async with app.workers.background():
            await app.wait_for_step(run, "order", "failed")
        assert await app.runs.cancel(run)


@pytest.mark.parametrize("type_", TYPES)
async def test_a_wait(app: Any, damage: Damage, type_: str) -> None:
    async with app, app.workers.background():
        runs = [await app.start("patient", 1) for _ in range(3)]
        for run in runs:
            await app.wait_for_step(run, "patient", "suspended")
        (wait,) = await app.waits.list(run=runs[1])
        retype(damage, f"nq:wait:{wait.id}", type_)
        assert len(await app.waits.list()) == 3
        await app.emit("go", {"n": 1})
        for run in (runs[0], runs[2]):
            assert await app.result(run, timeout=TEST_TIMEOUT_S) == [1, 1]
        assert await app.runs.cancel(runs[1])
        assert await app.waits.list() == []


@pytest.mark.parametrize("type_", ["string", "list", "set"])
async def test_memos(app: Any, damage: Damage, type_: str) -> None:
    async with app, app.workers.background():
        runs = [await app.start("patient", 1) for _ in range(2)]
        for run in runs:
            await app.wait_for_step(run, "patient", "suspended")
        retype(damage, f"nq:memos:{runs[0]}.patient.1", type_)
        await app.emit("go", {"n": 1})
        assert await app.result(runs[1], timeout=TEST_TIMEOUT_S) == [1, 1]
        assert await app.wait_for_end(runs[0]) == "failed"
        (letter,) = await app.list_dead_letters()
        assert letter.error["code"] == "unreadable_record"


@pytest.mark.parametrize("type_", ["string", "list", "set"])
async def test_state(app: Any, damage: Damage, type_: str) -> None:
    async with app:
        for key in "abc":
            await app.state.set(key, key)
        retype(damage, "nq:state:shared/b", type_)
        with pytest.raises(UnreadableRecord, match="state key 'b' cannot be read"):
            await app.state.get("b")
        page = await app.state.list()
        assert (dict(page), list(page.unreadable)) == ({"a": "a", "c": "c"}, ["b"])
        await app.state.set("b", 1)
        assert await app.state.get("b") == 1


@pytest.mark.parametrize("type_", TYPES)
async def test_a_schedule(app: Any, damage: Damage, type_: str) -> None:
    async with app:
        for id in "abc":
            await app.schedules.add(id, queue="ticks", at=PAST, input=id)
        retype(damage, "nq:schedule:b", type_)
        assert [(row.id, row.unreadable is None) for row in await app.schedules.list()] == [
            ("a", True),
            ("b", False),
            ("c", True),
        ]
        async with app.workers.background():
            for id in "ac":
                await until(lambda id=id: _fired(app, id), TEST_TIMEOUT_S)  # type: ignore[misc]
        await app.schedules.add("b", queue="ticks", every="1h", input="b")
        assert [row.unreadable for row in await app.schedules.list()] == [None] * 3
        retype(damage, "nq:schedule:b", type_)
        assert await app.schedules.remove("b")
        assert [row.id for row in await app.schedules.list()] == ["a", "c"]


async def _fired(app: Any, id: str) -> bool:
    return any(job.input == id for job in await app.jobs.list("ticks", "completed"))
