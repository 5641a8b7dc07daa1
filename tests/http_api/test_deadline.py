"""One timer for many operations: each has its own limit, and only the deadline's own cancellation is a timeout."""

from __future__ import annotations

import asyncio

import pytest

from penstock.http.deadline import Deadline


async def test_operations_that_end_in_time_share_one_timer() -> None:
    deadline = Deadline()
    timers = set()
    for _ in range(100):
        with deadline.within(60):
            await asyncio.sleep(0)
        timers.add(deadline._timer)
    deadline.close()
    assert len(timers) == 1


async def test_an_operation_that_takes_too_long_is_interrupted_each_time() -> None:
    deadline = Deadline()
    for _ in range(2):
        with deadline.within(0.01):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):  # noqa: SIM117
            with deadline.within(0.01):
                await asyncio.Event().wait()
        await asyncio.sleep(0)  # the task itself is not cancelled
    deadline.close()


async def test_a_later_operation_has_its_whole_time() -> None:
    deadline = Deadline()
    with deadline.within(0.01):
        pass
    timer = deadline._timer
    assert timer is not None
    with deadline.within(60):  # the timer of the first one fires meanwhile
        while deadline._timer is timer or deadline._timer is None:
            await asyncio.sleep(0)
    deadline.close()


async def test_without_a_limit_there_is_no_timer() -> None:
    deadline = Deadline()
    with deadline.within(None):
        await asyncio.sleep(0)
    assert deadline._timer is None


async def test_a_cancellation_by_others_is_none_of_its_timeouts() -> None:
    entered = asyncio.Event()

    async def work() -> None:
        with Deadline().within(60):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
