"""Handlers that end in unusual ways: each is recorded as a failure, and the worker continues."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock import flow, job, step
from penstock.core.errors import DefinitionError
from penstock.core.options import BadPriority


class Wild(BaseException):
    """An exception that `except Exception` does not see."""


def raising(problem: type[BaseException]) -> Any:
    def handler() -> None:
        raise problem("boom")

    return handler


def raising_async(problem: type[BaseException]) -> Any:
    async def handler() -> None:
        raise problem("boom")

    return handler


@pytest.mark.parametrize("make", [raising, raising_async])
@pytest.mark.parametrize("problem", [Wild, KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_any_base_exception_of_a_handler_is_recorded_as_its_failure(
    app: Any, make: Any, problem: type[BaseException]
) -> None:
    poison = flow("poison", step="poison")(make(problem))

    @flow("fine")
    async def fine() -> str:
        return "fine"

    async with app(poison, fine) as a, a.workers.background():
        run, status = await a.run_to_end("poison")
        (failed,) = await a.events_of(run, "step.failed")
        assert (status, failed.data["name"], failed.data["error"]) == ("failed", problem.__name__, "boom")
        assert len(await a.events_of(run, "step.started")) == 1
        assert await a.run_for_result("fine") == "fine"


async def test_a_handler_that_cancels_its_own_task(app: Any) -> None:
    @flow("self")
    async def self_cancelling() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with app(self_cancelling) as a, a.workers.background():
        run, status = await a.run_to_end("self")
        (failed,) = await a.events_of(run, "step.failed")
        assert status == "failed"
        assert "cancelled its own task" in failed.data["error"]


async def test_a_function_of_the_definition_that_raises_while_recording(app: Any) -> None:
    ran = []

    @flow("main", step="first", emits=["a"])
    async def first(input: Any, ctx: Any) -> None:
        ran.append(1)
        ctx.emit("a", {"k": 1})

    @step(on="a", emits=[], rate_limit="5/1s", rate_key=lambda i: i["missing"])
    async def second(input: Any) -> None: ...

    async with app(first, second) as a, a.workers.background():
        run, status = await a.run_to_end("main")
        (failed,) = await a.events_of(run, "step.failed")
        assert (status, failed.step, failed.data["name"]) == ("failed", "first", "BadArgument")
        assert "the rate_key function of second" in failed.data["error"]
        assert "KeyError: 'missing'" in failed.data["error"]
    assert ran == [1]


async def test_a_handler_that_swallows_its_cancellation_does_not_block_the_stop(app: Any) -> None:
    stopped = threading.Event()

    @flow("stubborn")
    async def stubborn() -> None:
        while not stopped.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass

    async with app(stubborn, grace="10ms") as a:
        run = await a.start("stubborn")
        async with a.workers.background():
            await a.wait_for_step(run, "stubborn", "active")
        stopped.set()


@pytest.mark.parametrize("priority", ["hi", 1.5, True, -1, 2**40])
async def test_priorities_are_whole_numbers_in_range(memory: Any, priority: Any) -> None:
    @flow("f")
    async def f() -> None: ...

    async with memory(f) as a:
        with pytest.raises(BadPriority, match="a whole number from 0"):
            await a.start("f", priority=priority)
        with pytest.raises(BadPriority, match="a whole number from 0"):
            await a.enqueue("q", priority=priority)
    with pytest.raises(DefinitionError, match="a whole number from 0"):
        job(queue="q", priority=priority)(f)


@pytest.mark.parametrize(
    "options",
    [
        {"rate_limit": "0/1s"},
        {"rate_limit": "3/0s"},
        {"rate_key": "customer"},
        {"rate_limit": {"max": 1, "duration": "1s", "per_key": True}},
        {"timeout": 0},
        {"dead_letters": "no"},
    ],
)
def test_invalid_definitions_are_refused(options: dict[str, Any]) -> None:
    async def handler() -> None: ...

    with pytest.raises(DefinitionError):
        job(queue="q", **options)(handler)


def test_generators_and_classes_are_refused_as_handlers() -> None:
    def generator() -> Any:
        yield 1

    with pytest.raises(DefinitionError, match="got a generator"):
        job(queue="q")(generator)
    with pytest.raises(DefinitionError, match="got a class"):
        job(queue="q")(dict)


async def test_an_unusual_log_line_does_not_fail_the_handler(app: Any) -> None:
    @flow("chatty")
    async def chatty(ctx: Any) -> str:
        ctx.log("x" * 100_000)
        ctx.log("odd", what=object(), lone="\ud800", much="y" * 100_000)
        return "done"

    async with app(chatty) as a, a.workers.background():
        run = await a.start("chatty")
        assert await a.result(run, timeout=20) == "done"
        long, odd = await a.events_of(run, "log")
        assert "100,000 characters" in long.data["msg"]
        assert "object object" in odd.data["fields"]["what"]
