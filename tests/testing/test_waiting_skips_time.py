"""`result` and `wait` of a TestApp skip time as `finish` does, and failures show where they come from."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from penstock import Context, flow, job
from penstock.errors import RunFailed, WaitTimeout


async def soon(call: Any) -> Any:
    """Return what a call returns; fail if it waits in real time."""
    return await asyncio.wait_for(call, 60)


@flow("sleepy")
async def sleepy(ctx: Context) -> str:
    await ctx.wait.time("30d")
    return "awake"


@job(queue="mail", delay="2h")
async def send(to: str) -> str:
    return f"sent to {to}"


def check_card(number: int) -> None:
    raise ValueError(f"card {number} is not valid")


@flow("charge", retry=3)
async def charge(card: int) -> None:
    check_card(card)


@job(queue="cards")
async def verify(card: int) -> None:
    check_card(card)


async def test_a_result_skips_time(kit: Any) -> None:
    async with kit(sleepy) as app:
        assert await soon(app.result(await app.start(sleepy))) == "awake"
        assert await soon(app.runs.result(await app.start(sleepy))) == "awake"


async def test_wait_skips_time(kit: Any) -> None:
    async with kit(sleepy) as app:
        start = app.time.now_ms()
        assert (await soon(app.runs.wait(await app.start(sleepy)))).status == "completed"
        assert app.time.now_ms() - start == 30 * 24 * 3_600_000


async def test_the_result_of_a_job_skips_time(kit: Any) -> None:
    async with kit(send) as app:
        assert await soon(app.jobs.result(await app.enqueue(send, "eve"))) == "sent to eve"
        assert await app.run_job(send, "ada") == "sent to ada"


async def test_a_timeout_is_test_time(kit: Any) -> None:
    async with kit(sleepy, send) as app:
        run, start = await app.start(sleepy), app.time.now_ms()
        with pytest.raises(WaitTimeout, match="did not end within 1d of test time"):
            await app.result(run, timeout="1d")
        assert app.time.now_ms() - start == 24 * 3_600_000
        with pytest.raises(WaitTimeout, match="did not end within 1h of test time"):
            await app.jobs.result(await app.enqueue(send, "eve"), timeout="1h")
        assert await app.result(run, timeout="30d") == "awake"


async def test_waiting_for_the_impossible_fails_at_once(kit: Any) -> None:
    @flow("asks")
    async def asks(ctx: Context) -> None:
        await ctx.wait.event("answered")

    async with kit(asks) as app:
        with pytest.raises(AssertionError, match="waits for the event 'answered'"):
            await soon(app.result(await app.start(asks)))


async def test_a_failed_run_shows_the_step_the_error_and_the_lines(kit: Any) -> None:
    async with kit(charge) as app:
        with pytest.raises(RunFailed) as found:
            await app.result(await app.start(charge, 7))
        message = str(found.value)
        assert "failed in step 'charge': card 7 is not valid" in message
        assert "in check_card" in message
        assert 'raise ValueError(f"card {number} is not valid")' in message
        assert message.endswith("ValueError: card 7 is not valid")
        assert "penstock/worker" not in message


async def test_a_failed_run_is_logged_by_finish(kit: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with kit(charge) as app:
        with caplog.at_level(logging.WARNING, "penstock.testing"):
            view = await app.run_flow(charge, 7)
        assert view.status == "failed"
        (message,) = [record.getMessage() for record in caplog.records if record.name == "penstock.testing"]
        assert "failed in step 'charge'" in message
        assert "in check_card" in message


async def test_a_failed_job_shows_the_lines(kit: Any) -> None:
    async with kit(verify) as app:
        with pytest.raises(RunFailed, match=r"job .* failed: card 7 is not valid") as found:
            await app.run_job(verify, 7)
        assert "in check_card" in str(found.value)


async def test_outside_of_tests_the_lines_are_a_note(app: Any) -> None:
    async with app(verify) as a, a.workers.background():
        with pytest.raises(RunFailed) as found:
            await a.jobs.result(await a.enqueue(verify, 7), timeout=20)
        assert "in check_card" not in str(found.value)
        assert "in check_card" in found.value.__notes__[0]
