"""Retry policy: how often, how long, which errors."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import (
    AttemptTimeout,
    DefinitionError,
    Permanent,
    Retry,
    SchemaViolation,
    UndeclaredEvent,
)
from penstock.core.retry import Backoff, RetryPolicy


def rng() -> random.Random:
    return random.Random(7)


@pytest.mark.parametrize(
    ("written", "policy"),
    [
        (None, RetryPolicy()),
        (1, RetryPolicy(1)),
        (5, RetryPolicy(5)),
        (RetryPolicy(3), RetryPolicy(3)),
        ({"attempts": 3}, RetryPolicy(3)),
        ({"attempts": 3, "onFail": "dlq"}, RetryPolicy(3)),
        ({"attempts": 3, "onFail": "retry"}, RetryPolicy(3)),
        ({"attempts": 3, "onFail": "drop"}, RetryPolicy(3, on_fail="drop")),
        ({"retriable_errors": ["A", "b"]}, RetryPolicy(retriable_errors=("A", "b"))),
        ({"retriableErrors": ("A",)}, RetryPolicy(retriable_errors=("A",))),
        ({"backoff": {"type": "fixed", "delay": 500}}, RetryPolicy(backoff=Backoff("fixed", 500))),
        (
            {"backoff": {"delayMs": 500, "maxDelayMs": 9000}},
            RetryPolicy(backoff=Backoff(delay_ms=500, max_delay_ms=9000)),
        ),
        ({"backoff": {"delay_ms": 500, "cap": "9s"}}, RetryPolicy(backoff=Backoff(delay_ms=500, max_delay_ms=9000))),
        ({"backoff": {"delay": "2s", "max_delay": timedelta(minutes=1)}}, RetryPolicy(backoff=Backoff(delay_ms=2000))),
        ({"backoff": {"jitter": False}}, RetryPolicy(backoff=Backoff(jitter=False))),
        ({"attempts": 2, "backoff": Backoff("fixed")}, RetryPolicy(2, Backoff("fixed"))),
    ],
)
def test_valid_policies(written: Any, policy: RetryPolicy) -> None:
    assert RetryPolicy.parse(written) == policy


@pytest.mark.parametrize(
    "written",
    [
        0, -1, True, False, "3", 2.5, [3],
        RetryPolicy(0),
        {"attempts": 0},
        {"attempts": "three"},
        {"attempts": 1.5},
        {"tries": 3},
        {"backoff": {"type": "linear"}},
        {"backoff": {"delay": "soon"}},
        {"backoff": {"delay": timedelta(seconds=-1)}},
        {"backoff": {"delay": -5}},
        {"backoff": {"wait": 5}},
        {"backoff": "fast"},
        {"onFail": "explode"},
        {"retriableErrors": "ValueError"},
        {"retriable_errors": [ValueError]},
        RetryPolicy(retriable_errors="ValueError"),  # type: ignore[arg-type]
        RetryPolicy(retriable_errors=(ValueError,)),  # type: ignore[arg-type]
        RetryPolicy(attempts="x"),  # type: ignore[arg-type]
        RetryPolicy(backoff="fast"),  # type: ignore[arg-type]
        RetryPolicy(backoff=Backoff("lin")),  # type: ignore[arg-type]
        RetryPolicy(backoff=Backoff(delay_ms="1s")),  # type: ignore[arg-type]
        RetryPolicy(backoff=Backoff(delay_ms=[object()])),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_invalid_policies_are_refused(written: Any) -> None:
    with pytest.raises(DefinitionError):
        RetryPolicy.parse(written)


@given(st.integers(1, 200), st.integers(0, 10**6), st.integers(0, 10**7), st.integers(0, 2**32))
def test_exponential_delays_stay_under_the_cap(failures: int, delay: int, cap: int, seed: int) -> None:
    plain = RetryPolicy(999, Backoff("exponential", delay, cap, jitter=False))
    exact = plain.delay_ms(failures, rng())
    assert exact == min(delay * 2 ** min(failures - 1, 40), cap)
    assert isinstance(exact, int)
    jittered = RetryPolicy(999, Backoff("exponential", delay, cap)).delay_ms(failures, random.Random(seed))
    assert exact // 2 <= jittered <= exact
    assert isinstance(jittered, int)


def test_exponential_doubles() -> None:
    policy = RetryPolicy(9, Backoff("exponential", 1000, 60_000, jitter=False))
    assert [policy.delay_ms(n, rng()) for n in range(1, 9)] == [1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]


@given(st.integers(1, 100), st.integers(0, 10**6))
def test_fixed_delays_are_fixed(failures: int, delay: int) -> None:
    assert RetryPolicy(backoff=Backoff("fixed", delay, jitter=False)).delay_ms(failures, rng()) == delay


def test_jitter_spreads_the_delays() -> None:
    policy, dice = RetryPolicy(9, Backoff("fixed", 1000)), random.Random(1)
    found = [policy.delay_ms(1, dice) for _ in range(200)]
    assert min(found) < 600
    assert max(found) > 900


@pytest.mark.parametrize(
    ("attempts", "failures", "again"), [(1, 1, False), (3, 1, True), (3, 2, True), (3, 3, False), (3, 9, False)]
)
def test_attempts_count_the_first_try(attempts: int, failures: int, again: bool) -> None:
    assert (RetryPolicy(attempts).next_delay_ms(OSError(), failures, rng()) is not None) is again


class Flaky(ConnectionError):
    code = "flaky_backend"


class Sure(Exception):
    retriable = True


class Never(Exception):
    retriable = False


@pytest.mark.parametrize(
    ("errors", "error", "allowed"),
    [
        ((), ValueError(), True),
        ((), Permanent("no"), False),
        ((), SchemaViolation("no"), False),
        ((), Never(), False),
        ((), UndeclaredEvent("x"), True),
        (("Flaky",), Flaky(), True),
        (("ConnectionError",), Flaky(), True),  # a base class counts
        (("flaky_backend",), Flaky(), True),
        (("timeout",), AttemptTimeout("late"), True),
        (("Flaky",), ValueError(), False),
        (("Flaky",), Retry(), True),
        (("Flaky",), Sure(), True),
        (("Permanent",), Permanent("no"), False),
        (("Never",), Never(), False),
    ],
)
def test_which_errors_are_retried(errors: tuple[str, ...], error: Exception, allowed: bool) -> None:
    policy = RetryPolicy(5, retriable_errors=errors)
    assert policy.allows(error) is allowed
    assert (policy.next_delay_ms(error, 1, rng()) is not None) is allowed


class Throttled(Exception):
    def __init__(self, retry_after: object) -> None:
        self.retry_after = retry_after


@pytest.mark.parametrize(
    ("error", "delay"),
    [
        (Retry(after="30s"), 30_000),
        (Retry(after=1.5), 1500),
        (Retry(after=timedelta(minutes=1)), 60_000),
        (Retry(after=0), 0),
        (Throttled(7), 7000),
        (Throttled("2"), 2000),
    ],
)
def test_an_error_may_set_the_delay(error: Exception, delay: int) -> None:
    assert RetryPolicy(3).next_delay_ms(error, 1, rng()) == delay
    assert RetryPolicy(3).next_delay_ms(error, 3, rng()) is None


@pytest.mark.parametrize(
    "delay", [None, True, "Wed, 21 Oct 2026 07:28:00 GMT", "", -1, float("nan"), float("inf"), object(), [1], print]
)
def test_an_error_with_an_invalid_delay_is_retried_by_the_policy(delay: object) -> None:
    # Other libraries' errors carry a Retry-After of any shape; failing to read it must not break the worker.
    policy = RetryPolicy(3, Backoff("fixed", 250, jitter=False))
    assert policy.next_delay_ms(Throttled(delay), 1, rng()) == 250
    assert policy.next_delay_ms(Retry(after=delay), 1, rng()) == 250  # type: ignore[arg-type]


@pytest.mark.parametrize("after", ["soon", -1, [], True, "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_retry_after_an_invalid_duration_reports_it(after: Any) -> None:
    problem = Retry("busy", after=after)
    assert str(problem).startswith("busy (`after` is ignored and the retry policy sets the delay: ")
    assert repr(after) in str(problem)
    assert str(Retry("busy", after="3s")) == "busy"
