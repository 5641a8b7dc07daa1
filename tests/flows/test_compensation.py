"""Compensation from end to end: completed steps are compensated in reverse order after a permanent failure."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Permanent, flow, step
from penstock.core.errors import RunError, RunFailed


def trip(log: list[str], *, broken: str = "fly") -> list[Any]:
    """Books a hotel and a car, then flies; each booking can be undone."""

    def maybe(name: str) -> None:
        log.append(name)
        if broken in (name, "all"):
            raise Permanent(f"{name} broke")

    @flow("trip", emits=["asked"])
    async def ask(ctx: Any) -> None:
        ctx.emit("asked")

    @step(on="asked", compensation="cancel_hotel", emits=["hotel.booked"])
    async def hotel(ctx: Any) -> dict[str, int]:
        maybe("hotel")
        ctx.emit("hotel.booked")
        return {"room": 12}

    @step(on="hotel.booked", compensation={"step": "cancel_car"}, emits=["car.booked"])
    def car(ctx: Any) -> str:
        maybe("car")
        ctx.emit("car.booked", {"car": 3})
        return "car 3"

    @step(on="car.booked")
    async def fly(input: Any) -> str:
        maybe("fly")
        return "landed"

    @step(flow="trip")
    async def cancel_hotel(input: Any) -> Any:
        maybe("cancel_hotel")
        return input

    @step(flow="trip")
    def cancel_car(input: Any) -> Any:
        maybe("cancel_car")
        return input

    return [ask, hotel, car, fly, cancel_hotel, cancel_car]


@pytest.mark.spec("000-8.17")
async def test_a_failure_compensates_in_reverse_order(app: Any) -> None:
    log: list[str] = []
    async with app(*trip(log)) as a, a.workers.background():
        run, status = await a.run_to_end("trip")
        assert status == "compensated"
        assert log == ["hotel", "car", "fly", "cancel_car", "cancel_hotel"]
        view = await a.runs.get(run)
        assert (view.status, view.error) == ("compensated", "fly broke")
        assert view.steps["cancel_hotel"].result == {
            "step": "hotel",
            "n": 1,
            "input": None,
            "result": {"room": 12},
            "error": "fly broke",
        }
        assert await a.kinds(run, "flow.") == ["flow.started", "flow.compensating", "flow.compensated"]
        assert (await a.events_of(run, "flow.compensating"))[0].data == {"steps": ["car", "hotel"]}
        with pytest.raises(RunFailed, match="was compensated after step 'fly' failed: fly broke"):
            await a.result(run)


async def test_only_completed_steps_are_compensated(app: Any) -> None:
    log: list[str] = []
    async with app(*trip(log, broken="car")) as a, a.workers.background():
        assert (await a.run_to_end("trip"))[1] == "compensated"
    assert log == ["hotel", "car", "cancel_hotel"]


async def test_a_failure_without_completed_steps_is_not_compensated(app: Any) -> None:
    log: list[str] = []
    async with app(*trip(log, broken="hotel")) as a, a.workers.background():
        run, status = await a.run_to_end("trip")
        assert status == "failed"
        assert "flow.compensating" not in await a.kinds(run)
    assert log == ["hotel"]


async def test_a_completed_run_is_not_compensated(app: Any) -> None:
    log: list[str] = []
    async with app(*trip(log, broken="nothing")) as a, a.workers.background():
        assert await a.run_for_result("trip") == "landed"
    assert log == ["hotel", "car", "fly"]


async def test_a_failed_compensation_leaves_a_dead_letter_and_the_others_run(app: Any) -> None:
    log: list[str] = []
    handlers = trip(log, broken="fly")

    @step(flow="trip", name="cancel_car")
    async def cannot(input: Any) -> None:
        log.append("cancel_car")
        raise Permanent("office closed")

    async with app(*handlers[:-1], cannot) as a, a.workers.background():
        run, status = await a.run_to_end("trip")
        assert status == "failed"
        assert log == ["hotel", "car", "fly", "cancel_car", "cancel_hotel"]
        assert sorted(letter.step for letter in await a.list_dead_letters()) == ["cancel_car", "fly"]
        end = (await a.stream(run))[-1]
        assert [f["step"] for f in end.data["failed"]] == ["fly", "cancel_car"]


async def test_a_compensated_run_is_over(app: Any) -> None:
    from penstock.core.ids import step_job_id

    async with app(*trip([])) as a, a.workers.background():
        run, _ = await a.run_to_end("trip")
        with pytest.raises(RunError, match="is compensated"):
            await a.runs.retry(run)
        done = await a.dead_letters.redrive(step_job_id(run, "fly", 1))
        assert next(iter(done.sent.values())).startswith(f"{run}.again."), "a new run"
        assert (await a.runs.get(run)).status == "compensated"
        assert not await a.runs.cancel(run)


@pytest.mark.spec("000-8.17")
async def test_compensate_on_an_event(app: Any) -> None:
    @flow("book", emits=["booked"], compensation={"step": "unbook", "on": ["regretted"]})
    async def book(ctx: Any) -> str:
        ctx.emit("booked")
        return "seat 4"

    @step(on="booked", emits=["regretted"])
    async def think(ctx: Any) -> None:
        ctx.emit("regretted")

    @step(flow="book")
    async def unbook(input: Any) -> Any:
        return input["result"]

    async with app(book, think, unbook) as a, a.workers.background():
        run, status = await a.run_to_end("book")
        assert status == "completed"
        assert (await a.runs.get(run)).steps["unbook"].result == "seat 4"
