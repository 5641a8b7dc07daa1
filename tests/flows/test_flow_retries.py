"""Retries: how often, with which delays, and their events. Time is a fake clock."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

import pytest

from penstock import Backoff, Permanent, Retry, RetryPolicy, flow, step
from penstock.core.clock import to_iso
from penstock.testing.clock import FakeClock

STEADY = {"type": "exponential", "delayMs": 1000, "jitter": False}


class NetworkError(Exception):
    pass


class Odd(Exception):
    """An error with its own attributes."""

    def __init__(self, message: str = "odd", **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


def failing(error: Any, *, retry: Any = 3, times: int = 99) -> Any:
    """Build a flow whose only step fails `times` times and then returns its attempt."""

    @flow("retried", retry=retry)
    async def work(ctx: Any) -> int:
        if ctx.attempt <= times:
            raise error
        return ctx.attempt

    return work


@pytest.mark.spec("001-0.3", "001-2.8", "001-4.7", "003-2.9", "003-6.1", "003-6.3")
async def test_a_retried_step_and_its_events(app: Any, clock: FakeClock) -> None:
    policy = {"attempts": 3, "backoff": STEADY}
    async with app(failing(NetworkError("no line"), retry=policy, times=2), clock=clock) as a, a.workers.background():
        run = await a.start("retried")
        start = clock.now_ms()
        await a.wait_for_step(run, "work", "delayed")
        a.advance_clock("999ms")
        assert (await a.wait_for_step(run, "work", "delayed")).due == start + 1000
        a.advance_clock("1ms")
        await a.wait_for_step(run, "work", "delayed")
        row = await a.wait_for_step(run, "work", "delayed")
        while row.attempt < 2:
            row = await a.wait_for_step(run, "work", "delayed")
        assert row.due == start + 1000 + 2000, "the second wait is twice the first"
        a.advance_clock("2s")
        assert await a.result(run, timeout=20) == 3
        seen = [(e.kind, e.meta.get("attempt")) for e in await a.stream(run) if e.kind.startswith("step.")]
        assert seen == [
            ("step.started", 1),
            ("step.failed", 1),
            ("step.retry", 2),
            ("step.started", 2),
            ("step.failed", 2),
            ("step.retry", 3),
            ("step.started", 3),
            ("step.completed", 3),
        ]
        failed = (await a.events_of(run, "step.failed"))[0]
        assert {k: failed.data[k] for k in ("error", "name", "willRetry", "nextRetryAt")} == {
            "error": "no line",
            "name": "NetworkError",
            "willRetry": True,
            "nextRetryAt": to_iso(start + 1000),
        }
        assert failed.meta["maxAttempts"] == 3
        retry = (await a.events_of(run, "step.retry"))[1]
        assert retry.data == {"reason": "no line", "delayMs": 2000}
        assert retry.meta["scheduledAt"] == to_iso(start + 3000)
        assert await a.list_dead_letters() == []


async def retried_in(a: Any, run: str) -> int | None:
    """Return after how many milliseconds a failed step is retried, or None if it is not."""
    row = await a.wait_for_step(run, "work", "delayed", "failed")
    return None if row.state.value == "failed" else row.due - a.clock.now_ms()


@pytest.mark.spec("003-6.1", "003-6.2", "003-6.4", "003-6.5", "003-6.6")
@pytest.mark.parametrize(
    ("error", "policy", "wait"),
    [
        pytest.param(ValueError("x"), {"attempts": 2, "backoff": {**STEADY, "delayMs": 700}}, 700, id="policy"),
        pytest.param(ValueError("x"), RetryPolicy(2, Backoff("fixed", 250, jitter=False)), 250, id="policy object"),
        pytest.param(
            ValueError("x"),
            {"attempts": 2, "backoff": {"type": "fixed", "delay": "2m", "jitter": False}},
            120_000,
            id="words",
        ),
        pytest.param(ValueError("x"), None, None, id="no retry by default"),
        pytest.param(ValueError("x"), 1, None, id="one attempt"),
        pytest.param(Permanent("never"), 5, None, id="permanent"),
        pytest.param(Retry(after="30s"), 2, 30_000, id="retry after"),
        pytest.param(Retry(after=timedelta(minutes=1)), 2, 60_000, id="retry after timedelta"),
        pytest.param(Retry(after=1.5), 2, 1500, id="retry after seconds"),
        pytest.param(Retry("again", after="5s"), 1, None, id="retry is under the policy"),
        pytest.param(Odd(retriable=False), 5, None, id="retriable false"),
        pytest.param(Odd(retry_after=7), 2, 7000, id="retry_after"),
        pytest.param(Odd(retriable=False, retry_after=7), 2, None, id="retriable false wins"),
        pytest.param(
            NetworkError("x"),
            {"attempts": 2, "retriableErrors": ["NetworkError"], "backoff": STEADY},
            1000,
            id="listed",
        ),
        pytest.param(ValueError("x"), {"attempts": 2, "retriableErrors": ["NetworkError"]}, None, id="not listed"),
        pytest.param(
            ConnectionResetError("x"),
            {"attempts": 2, "retriable_errors": ["OSError"], "backoff": STEADY},
            1000,
            id="base class",
        ),
        pytest.param(Odd(code="E42"), {"attempts": 2, "retriableErrors": ["E42"], "backoff": STEADY}, 1000, id="code"),
        pytest.param(
            Odd(retriable=True),
            {"attempts": 2, "retriableErrors": ["Else"], "backoff": STEADY},
            1000,
            id="retriable true",
        ),
        pytest.param(
            Odd(retry_after="Wed, 21 Oct 2015 07:28:00 GMT"),
            {"attempts": 2, "backoff": STEADY},
            1000,
            id="an HTTP date",
        ),
        pytest.param(Odd(retry_after=object()), {"attempts": 2, "backoff": STEADY}, 1000, id="no wait at all"),
        pytest.param(Odd(retry_after=-3), {"attempts": 2, "backoff": STEADY}, 1000, id="a negative wait"),
        pytest.param(Odd(retry_after=float("inf")), {"attempts": 2, "backoff": STEADY}, 1000, id="an endless wait"),
    ],
)
async def test_whether_and_when_an_error_is_retried(
    memory: Any, clock: FakeClock, error: Any, policy: Any, wait: int | None
) -> None:
    async with memory(failing(error, retry=policy), clock=clock) as a, a.workers.background():
        run = await a.start("retried")
        assert await retried_in(a, run) == wait
        if wait is None:
            assert await a.wait_for_end(run) == "failed"


async def test_jitter_keeps_half_of_the_wait(memory: Any, clock: FakeClock) -> None:
    work = failing(ValueError("x"), retry={"attempts": 2, "backoff": {"type": "fixed", "delayMs": 10_000}})
    async with memory(work, clock=clock) as a, a.workers.background():
        runs = [await a.start("retried") for _ in range(20)]
        waits = [await retried_in(a, run) for run in runs]
        assert all(wait is not None and 5000 <= wait <= 10_000 for wait in waits)
        assert len(set(waits)) > 1, "simultaneous failures spread out"


@pytest.mark.spec("003-6.1", "003-8.11")
async def test_a_backoff_has_a_cap(memory: Any, clock: FakeClock) -> None:
    policy = {"attempts": 9, "backoff": {**STEADY, "maxDelayMs": 3000}}
    async with memory(failing(ValueError("x"), retry=policy), clock=clock) as a, a.workers.background():
        run = await a.start("retried")
        waits = []
        for attempt in range(1, 6):
            row = await a.wait_for_step(run, "work", "delayed")
            while row.attempt < attempt:
                row = await a.wait_for_step(run, "work", "delayed")
            waits.append(row.due - clock.now_ms())
            a.advance_clock(waits[-1] / 1000)
        assert waits == [1000, 2000, 3000, 3000, 3000]


async def test_emissions_of_a_failed_attempt_are_dropped(app: Any) -> None:
    @flow("clean", retry={"attempts": 2, "backoff": {"delay": "1ms"}}, emits=["noted"])
    async def begin(ctx: Any) -> None:
        ctx.emit("noted", ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("after saying it")

    @step(on="noted", mode="each")
    async def note(input: int) -> int:
        return input

    async with app(begin, note) as a, a.workers.background():
        run = await a.start("clean")
        await a.wait_for_end(run)
        assert [e.data for e in await a.events_of(run, "noted")] == [2]
        assert [e.data["result"] for e in await a.events_of(run, "step.completed", "note")] == [2]


async def awaits_a_cancelled_task() -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


def exits() -> None:
    sys.exit(3)


async def exits_async() -> None:
    sys.exit(3)


def raises_cancelled() -> None:
    raise asyncio.CancelledError


async def stops_iteration() -> None:
    raise StopAsyncIteration


def stops_iteration_sync() -> None:
    next(iter(()))


async def groups() -> None:
    raise ExceptionGroup("several", [ValueError("a"), KeyError("b")])


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("expected nothing")


def mute() -> None:
    raise Mute


def surrogate() -> None:
    raise ValueError("\ud800 is no text")


@pytest.mark.parametrize(
    ("handler", "name"),
    [
        (awaits_a_cancelled_task, "RuntimeError"),
        (raises_cancelled, "RuntimeError"),
        (exits, "SystemExit"),
        (exits_async, "SystemExit"),
        (stops_iteration, "StopAsyncIteration"),
        (stops_iteration_sync, "RuntimeError"),
        (groups, "ExceptionGroup"),
        (mute, "Mute"),
        (surrogate, "ValueError"),
    ],
)
async def test_any_exception_of_a_handler_fails_only_its_attempt(memory: Any, handler: Any, name: str) -> None:
    work = flow("odd")(handler)

    @flow("fine", queue="other")
    async def fine() -> str:
        return "fine"

    async with memory(work, fine) as a, a.workers.background():
        run, status = await a.run_to_end("odd")
        assert status == "failed"
        failed = (await a.events_of(run, "step.failed"))[0]
        assert failed.data["name"] == name
        assert failed.data["error"]
        assert len(await a.list_dead_letters()) == 1
        assert await a.run_for_result("fine") == "fine", "the worker continues"
    del work.__penstock__


@pytest.mark.spec("000-6.8")
async def test_an_error_has_only_the_stack_of_user_code(memory: Any) -> None:
    def deep() -> None:
        raise ValueError("here")

    @flow("stack")
    async def work() -> None:
        deep()

    async with memory(work) as a, a.workers.background():
        run, _ = await a.run_to_end("stack")
        stack = (await a.events_of(run, "step.failed"))[0].data["stack"]
        assert "in deep" in stack
        assert "in work" in stack
        assert "ValueError: here" in stack
        assert "runners" not in stack


async def test_the_stack_is_kept_for_any_location_of_the_code(memory: Any, tmp_path: Any) -> None:
    """A folder named penstock or asyncio still contains the caller's code."""
    place = tmp_path / "penstock" / "asyncio-jobs"
    place.mkdir(parents=True)
    file = place / "mine.py"
    file.write_text("def breaks():\n    raise ValueError('mine')\n")
    scope: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), scope)

    @flow("placed")
    async def work() -> None:
        scope["breaks"]()

    async with memory(work) as a, a.workers.background():
        run, _ = await a.run_to_end("placed")
        assert "in breaks" in (await a.events_of(run, "step.failed"))[0].data["stack"]


async def test_a_long_error_is_cut(memory: Any) -> None:
    @flow("long")
    async def work() -> None:
        raise ValueError("x" * 1_000_000)

    async with memory(work) as a, a.workers.background():
        run, status = await a.run_to_end("long")
        assert status == "failed"
        assert len((await a.events_of(run, "step.failed"))[0].data["error"]) == 2000


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        (1, "later (1 of 1 attempt is used; raise `retry=` for more)"),
        (2, "later (2 of 2 attempts are used; raise `retry=` for more)"),
    ],
)
async def test_a_retry_without_attempts_left_has_a_reason(
    attempts: int, expected: str, app: Any, clock: FakeClock
) -> None:
    async with app(failing(Retry("later", after="0s"), retry=attempts), clock=clock) as a, a.workers.background():
        run = await a.start("retried")
        await a.runs.wait(run, timeout=20)
        seen = [
            event.data["error"] for event in await a.events.read_all(f"nq:flow:{run}") if event.kind == "step.failed"
        ]
        assert seen == ["later"] * (attempts - 1) + [expected]
