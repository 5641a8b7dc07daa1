"""Waits declared in the definition of a step, before or after its handler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Await, Context, SyncContext, flow, step
from penstock.core.errors import DefinitionError
from penstock.testing import TestApp

HOUR = 3_600_000


@pytest.mark.spec("003-8.3")
async def test_an_event_wait_before_the_handler(kit: Any) -> None:
    ran: list[int] = []

    @flow("ship", emits=[], wait=Await("event", "paid", match=lambda order: {"id": order["id"]}))
    async def ship(order: Any, ctx: Context) -> Any:
        ran.append(ctx.attempt)
        return [order["id"], ctx.awaited.data["by"]]

    async with kit(ship) as app:
        run = await app.start(ship, {"id": 7})
        await app.settle()
        await app.emit("paid", {"id": 8, "by": "no one"})
        await app.settle()
        assert ran == []
        await app.emit("paid", {"id": 7, "by": "card"})
        assert (await app.finish(run)).result == [7, "card"]
        assert ran == [1]


@pytest.mark.parametrize("takes", [1, 2])
async def test_where_filters_events(kit: Any, takes: int) -> None:
    where: Any = {1: lambda e: e.data > 5, 2: lambda e, ctx: e.data > ctx.input}[takes]

    @flow("ship", emits=[], wait=Await("event", "paid", where=where, timeout="1h"))
    def ship(order: Any, ctx: SyncContext) -> Any:
        return ctx.awaited.data

    async with kit(ship) as app:
        run = await app.start(ship, 5)
        for n in (1, 5, 9):
            await app.advance("10m")
            await app.emit("paid", n)
        assert (await app.finish(run)).result == 9


async def test_events_that_do_not_match_do_not_extend_the_timeout(kit: Any) -> None:
    @flow("ship", emits=[], wait=Await("event", "paid", where=lambda e: False, timeout="1h"))
    async def ship(order: Any, ctx: Context) -> None:
        raise AssertionError("nothing fits")

    async with kit(ship) as app:
        start = app.time.now_ms()
        run = await app.start(ship, None)
        await app.advance("50m")
        await app.emit("paid", 1)
        assert (await app.finish(run)).status == "failed"
        assert app.time.now_ms() == start + HOUR


@pytest.mark.spec("003-8.7")
async def test_a_trigger_wait_before_the_handler(kit: Any) -> None:
    @flow("ship", emits=[], wait=Await("trigger", name="approval", trigger="user"))
    async def ship(order: Any, ctx: Context) -> Any:
        return ctx.awaited

    async with kit(ship) as app:
        run = await app.start(ship, None)
        await app.settle()
        await app.fire("approval", {"ok": True})
        assert (await app.finish(run)).result == {"ok": True}


@pytest.mark.spec("003-8.8")
@pytest.mark.parametrize("sync", [False, True])
async def test_a_time_wait_after_the_handler_delays_its_result_and_events(kit: Any, sync: bool) -> None:
    ran: list[int] = []
    wait = Await("time", delay=lambda result: result["hours"] * 3600)

    @flow("cook", emits=["served"], wait=wait)
    async def cook(order: Any, ctx: Context) -> Any:
        ran.append(ctx.attempt)
        ctx.emit("served", {"dish": order})
        return {"hours": 2}

    @flow("cook", emits=["served"], wait=wait)
    def cook_sync(order: Any, ctx: SyncContext) -> Any:
        ran.append(ctx.attempt)
        ctx.emit("served", {"dish": order})
        return {"hours": 2}

    @step(on="served", emits=[])
    async def eat(order: Any) -> Any:
        return order

    async with kit(cook_sync if sync else cook, eat) as app:
        start = app.time.now_ms()
        run = await app.start("cook", "soup")
        await app.advance("1h")
        assert await app.emitted(run) == []
        view = await app.finish(run)
        assert app.time.now_ms() == start + 2 * HOUR
        assert await app.emitted(run, "served") == [{"dish": "soup"}]
        assert view.steps["eat"].result == {"dish": "soup"}
        assert view.steps["cook_sync" if sync else "cook"].result == {"hours": 2}
    assert ran == [1]


@pytest.mark.spec("003-8.6")
async def test_on_timeout_starts_another_step(kit: Any) -> None:
    @flow("order", emits=["placed"])
    async def place(order: Any, ctx: Context) -> None:
        ctx.emit("placed", order)

    @step(on="placed", emits=[], wait=Await("event", "paid", timeout="1h", on_timeout="remind"))
    async def ship(order: Any, ctx: Context) -> None:
        raise AssertionError("it was not paid")

    @step(on="never", emits=[])
    async def remind(order: Any) -> Any:
        return ["reminded", order]

    async with kit(place, ship, remind) as app:
        view = await app.run_flow("order", 7)
        assert (view.status, view.steps["remind"].result) == ("completed", ["reminded", 7])


async def test_an_unknown_on_timeout_step_is_reported_at_registration() -> None:
    @flow("order", emits=[], wait=Await("event", "paid", timeout="1h", on_timeout="nobody"))
    async def ship(order: Any, ctx: Context) -> None: ...

    async with TestApp(handlers=[ship]) as app:
        (problem,) = app.registry.problems
        assert "'ship' has on_timeout='nobody'" in str(problem)


@pytest.mark.parametrize(
    ("wait", "expected"),
    [
        ({"type": "tide"}, "'time', 'event' or 'trigger'"),
        ({"type": "event"}, "kind"),
        ({"type": "time"}, "delay"),
        ({"type": "time", "delay": "1h", "timeout": "1h"}, "cannot have a timeout"),
        ({"type": "event", "eventKind": "paid", "onTimeout": "x"}, "requires timeout="),
        ({"type": "event", "eventKind": "paid", "untill": 1}, "untill"),
        ([], "mapping"),
    ],
    ids=str,
)
def test_an_invalid_wait_is_refused_by_the_decorator(wait: Any, expected: str) -> None:
    with pytest.raises(DefinitionError, match=expected):

        @flow("order", emits=[], wait=wait)
        async def ship(order: Any, ctx: Context) -> None: ...


FILES = {
    "place.py": """
queue = "orders"
config = {"flow": {"id": "shop", "role": "main", "step": "place", "emits": ["placed"]}}
def handle(input, ctx):
    ctx.emit("placed", input)
""",
    "pay.py": """
queue = "orders"
config = {"flow": {"id": "shop", "role": "step", "step": "pay", "triggers": "placed", "emits": ["billed"]},
          "await": {"type": "event", "eventKind": "paid", "where": lambda e, ctx: e.data["id"] == ctx.input,
                    "timeoutMs": 3600000}}
async def handle(input, ctx):
    ctx.emit("billed", ctx.awaited.data)
""",
    "check.py": """
queue = "orders"
config = {"flow": {"id": "shop", "role": "step", "step": "check", "triggers": "billed", "emits": ["checked"]},
          "await": {"type": "trigger", "triggerType": "user", "name": "check"}}
async def handle(input, ctx):
    ctx.emit("checked", ctx.awaited)
""",
    "rest.py": """
queue = "orders"
config = {"flow": {"id": "shop", "role": "step", "step": "rest", "triggers": "checked", "emits": []},
          "await": {"type": "time", "delayMs": 60000}}
def handle(input, ctx):
    return {"rested": input}
""",
}


@pytest.mark.spec("003-8.3", "003-8.7", "003-8.8")
async def test_declared_waits_in_the_config_of_a_module(url: str, tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    for name, text in FILES.items():
        (tmp_path / "workers" / name).write_text(text)
    async with TestApp(url, tmp_path / "workers") as app:
        start = app.time.now_ms()
        run = await app.start("shop", 7)
        await app.settle()
        for id in (6, 7):
            await app.emit("paid", {"id": id})
            await app.settle()
        await app.fire("check", "fine")
        view = await app.finish(run)
        assert (view.status, view.steps["rest"].result) == ("completed", {"rested": "fine"})
        assert app.time.now_ms() == start + 60_000


async def test_a_declared_trigger_is_announced_once(kit: Any) -> None:
    announced: list[tuple[str, Any]] = []

    def announce(trigger: Any, order: Any) -> None:
        announced.append((trigger.token, order))

    @flow("ask", emits=[], wait=Await("trigger", name="approval", announce=announce))
    async def ask(order: Any, ctx: Context) -> Any:
        return [order, ctx.awaited]

    async with kit(ask) as app:
        run = await app.start("ask", 7)
        await app.settle()
        [(token, order)] = announced
        assert order == 7
        await app.fire(token, "yes")
        assert (await app.finish(run)).result == [7, "yes"]
        assert len(announced) == 1


def test_only_a_trigger_can_be_announced() -> None:
    with pytest.raises(DefinitionError, match="announce"):
        Await("event", event="paid", announce=print)


async def test_an_attempt_is_an_execution_of_the_handler_everywhere(app: Any) -> None:
    ran: list[int] = []

    @flow("ship", retry={"attempts": 2, "backoff": {"type": "fixed", "delay": "1ms"}}, wait=Await("event", "paid"))
    async def ship(ctx: Context) -> None:
        ran.append(ctx.attempt)
        raise ValueError("no")

    async with app(ship) as a, a.workers.background():
        run = await a.start("ship")
        await a.wait_for_step(run, "ship", "suspended")
        await a.emit("paid", 1)
        assert await a.wait_for_end(run) == "failed"
        (letter,) = await a.list_dead_letters()
        failures = await a.events_of(run, "step.failed")
        started = await a.events_of(run, "step.started")
        row = await a.jobs.get(letter.original_job_id)
        assert [event.meta["attempt"] for event in failures] == ran == [1, 2]
        assert [event.meta["attempt"] for event in started] == [1, 1, 2]  # before and after the wait, then the retry
        assert {row.attempt, letter.attempts_made, (await a.runs.get(run)).steps["ship"].attempt} == {2}


@pytest.mark.spec("003-8.8")
async def test_a_wait_after_the_handler_is_part_of_its_attempt(app: Any) -> None:
    @flow("cook", wait=Await("time", delay="50ms"))
    async def cook(ctx: Context) -> int:
        return ctx.attempt

    async with app(cook) as a, a.workers.background():
        run, _ = await a.run_to_end("cook")
        assert await a.result(run) == 1
        assert (await a.events_of(run, "step.completed"))[0].meta["attempt"] == 1
        assert (await a.runs.get(run)).steps["cook"].attempt == 1
