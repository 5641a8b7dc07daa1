"""Timeouts: an attempt that takes too long fails with the code "timeout"."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Context, Permanent, SyncContext, flow, job


@pytest.mark.spec("000-6.9", "000-14.9")
async def test_an_async_attempt_that_takes_too_long_fails(app: Any) -> None:
    cleaned = asyncio.Event()

    @flow("slow", timeout="30ms")
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    async with app(slow) as a, a.workers.background():
        run, status = await a.run_to_end("slow")
        assert status == "failed"
        failed = (await a.events_of(run, "step.failed"))[0].data
        assert (failed["code"], failed["willRetry"]) == ("timeout", False)
        assert "timeout of 0.03 s" in failed["error"]
        assert cleaned.is_set()
        (letter,) = await a.list_dead_letters()
        assert letter.error["code"] == "timeout"


@pytest.mark.spec("000-6.10", "000-16.16")
async def test_a_timeout_of_a_step_records_that_the_attempt_was_cancelled(app: Any) -> None:
    @flow("slow", timeout="30ms", retry={"attempts": 2, "backoff": {"delay": "1ms", "jitter": False}})
    async def slow() -> None:
        await asyncio.Event().wait()

    async with app(slow) as a, a.workers.background():
        run, status = await a.run_to_end("slow")
        assert status == "failed"
        events = [e for e in await a.stream(run) if e.kind in ("step.cancelled", "step.failed")]
        assert [(e.kind, e.meta["attempt"]) for e in events] == [
            ("step.cancelled", 1),
            ("step.failed", 1),
            ("step.cancelled", 2),
            ("step.failed", 2),
        ]
        assert {e.data["reason"] for e in events if e.kind == "step.cancelled"} == {"timeout"}
        assert (await a.runs.get(run)).steps["slow"].status == "failed"


async def test_a_ctx_run_that_takes_too_long_does_not_cancel_the_attempt(app: Any) -> None:
    async def linger() -> None:
        await asyncio.Event().wait()

    @flow("patient")
    async def patient(ctx: Context) -> None:
        await ctx.run("linger", linger, timeout=0.03)

    async with app(patient) as a, a.workers.background():
        run, status = await a.run_to_end("patient")
        assert status == "failed"
        assert await a.events_of(run, "step.cancelled") == []


@pytest.mark.spec("000-6.9")
async def test_a_thread_that_takes_too_long_fails_and_is_stopped(app: Any) -> None:
    stopped = threading.Event()

    # On a busy machine an attempt may time out before its thread has started: one of the next will not.
    @flow("slow", timeout="30ms", emits=["late"], retry={"attempts": 100, "backoff": {"delay": "1ms"}})
    def slow(ctx: Any) -> None:
        ctx.emit("late")
        if stopped.is_set():
            raise Permanent("it was stopped before")
        try:
            while True:
                sum(range(100))
        finally:
            stopped.set()

    async with app(slow) as a, a.workers.background():
        run, status = await a.run_to_end("slow")
        assert status == "failed"
        *late, last = [failed.data for failed in await a.events_of(run, "step.failed")]
        assert {failed["code"] for failed in late} == {"timeout"}
        assert last["name"] == "Permanent"
        assert "late" not in await a.kinds(run)


async def test_a_timeout_is_retried_under_the_policy(app: Any) -> None:
    @flow("slow", timeout=0.03, retry={"attempts": 2, "backoff": {"delay": "1ms"}})
    async def slow(ctx: Any) -> int:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return ctx.attempt

    async with app(slow) as a, a.workers.background():
        assert await a.run_for_result("slow") == 2


async def test_a_timeout_error_raised_by_the_handler(memory: Any) -> None:
    @flow("own", timeout="1m")
    async def own() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    async with memory(own) as a, a.workers.background():
        run, _ = await a.run_to_end("own")
        failed = (await a.events_of(run, "step.failed"))[0].data
        assert (failed["name"], failed.get("code")) == ("TimeoutError", None)


async def test_an_attempt_within_its_timeout(memory: Any) -> None:
    @job(queue="quick", timeout="1m")
    def quick(input: int) -> int:
        return input + 1

    async with memory(quick) as a, a.workers.background():
        assert await a.jobs.result(await a.enqueue("quick", 1), timeout=20) == 2


async def test_a_stuck_thread_does_not_block_the_others(memory: Any) -> None:
    release = threading.Event()

    @job(queue="stuck", timeout="30ms")
    def stuck() -> None:
        release.wait(20)  # a call into C: it cannot be broken off

    @job(queue="fine")
    def fine(input: str) -> str:
        return input

    async with memory(stuck, fine, threads=2) as a, a.workers.background():
        row = await a.wait_for_state(await a.enqueue("stuck"), "failed")
        assert b'"timeout"' in row.error
        assert await a.jobs.result(await a.enqueue("fine", "fine"), timeout=20) == "fine"
        release.set()


async def linger() -> None:
    await asyncio.Event().wait()


async def stay(ctx: Context) -> None:
    await linger()


async def call(ctx: Context) -> None:
    await ctx.run("linger", linger, timeout=0.03)


def spin(ctx: SyncContext) -> None:
    while True:
        pass


@pytest.mark.parametrize(("handler", "last"), [(stay, "linger"), (call, "linger"), (spin, "spin")])
async def test_a_timeout_shows_where_the_handler_was(memory: Any, handler: Callable[..., Any], last: str) -> None:
    # On a busy machine an attempt may time out before its thread has started: one of the next will not.
    policy = {"attempts": 5, "backoff": {"type": "fixed", "delay": "1ms"}}
    slow = job(queue="slow", timeout=None if handler is call else "50ms", retry=policy)(handler)
    async with memory(slow) as a, a.workers.background():
        await a.wait_for_state(await a.enqueue("slow"), "failed")
        (letter,) = await a.list_dead_letters("slow")
        failures = [e.data for e in await a.events.read_all("nq:queue:slow") if e.kind == "job.failed"]
    found = [failure for failure in failures if failure.get("frames")]
    assert found, failures
    assert (found[-1]["code"], found[-1]["file"]) == ("timeout", __file__)
    names = [frame["function"] for frame in found[-1]["frames"]]
    assert names[-1] == last
    assert names[0] == handler.__name__, "no frames of Penstock, of asyncio or of threads"
    assert f"in {last}" in found[-1]["stack"]
    assert letter.error["code"] == "timeout"
