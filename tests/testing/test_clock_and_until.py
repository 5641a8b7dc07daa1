"""FakeClock and until."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from penstock.testing.clock import START_MS, FakeClock
from penstock.testing.until import until


def test_a_fake_clock_moves_only_when_a_test_moves_it() -> None:
    clock = FakeClock()
    assert clock.now_ms() == clock.now_ms() == START_MS
    assert clock.advance("1h") == START_MS + 3_600_000
    clock.advance(1.5)
    clock.advance(timedelta(seconds=1))
    assert clock.now_ms() == START_MS + 3_602_500
    clock.set_ms(5)
    assert clock.now_ms() == 5
    assert repr(clock) == "FakeClock(5)"
    with pytest.raises(ValueError):
        clock.advance(-1)
    assert FakeClock(7).now_ms() == 7


async def test_until_returns_the_true_value() -> None:
    answers = iter([None, 0, [], "yes"])
    assert await until(lambda: next(answers)) == "yes"


async def test_until_awaits_coroutines() -> None:
    asked = 0

    async def third_time() -> bool:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return asked == 3

    assert await until(third_time) is True
    assert asked == 3


async def test_until_lets_others_run() -> None:
    done: list[int] = []
    asyncio.get_running_loop().call_soon(done.append, 1)
    assert await until(lambda: done) == [1]


async def test_until_names_its_condition() -> None:
    def never_true() -> bool:
        return False

    with pytest.raises(AssertionError, match=r"waited 0\.01 s for .*never_true; it last returned False"):
        await until(never_true, timeout="10ms")
    with pytest.raises(AssertionError, match=r"waited 0\.01 s for .*len\(\[\]\) == 1"):
        await until(lambda: len([]) == 1, timeout=0.01)


async def test_until_checks_once_more_at_the_deadline() -> None:
    assert await until(lambda: True, timeout=0)
    with pytest.raises(AssertionError):
        await until(lambda: False, timeout=0)


async def test_until_raises_what_the_condition_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        await until(lambda: 1 / 0)
