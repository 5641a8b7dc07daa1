"""The progress line of a test run."""

from __future__ import annotations

import pytest

import progress
from progress import Progress, Reporter


class ManualClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_line_names_the_longest_running_tests() -> None:
    now = ManualClock()
    seen = Progress(now)
    seen.expect(4)
    seen.begin("tests/faults/test_kill.py::test_b")
    now.seconds = 30
    seen.begin("tests/app/test_life.py::test_a")
    now.seconds = 50
    seen.end("tests/app/test_life.py::test_a")
    seen.begin("tests/app/test_life.py::test_c")
    now.seconds = 75
    assert seen.line() == (
        "[1:15] 25%, 1 of 4 tests; running: tests/faults/test_kill.py::test_b (75 s), tests/app/test_life.py::test_c (25 s)"
    )


def test_a_failure_is_named_once() -> None:
    seen = Progress(ManualClock())
    seen.fail("a.py::one")
    seen.fail("b.py::two")
    assert seen.line().endswith("running: nothing; failed: a.py::one, b.py::two")
    assert seen.line().endswith("running: nothing")


def test_the_slowest_files_come_first() -> None:
    now = ManualClock()
    seen = Progress(now)
    for test, seconds in (("a.py::one", 2.0), ("b.py::one", 5.0), ("a.py::two", 4.0)):
        seen.begin(test)
        now.seconds += seconds
        seen.end(test)
    assert seen.slowest_files() == ["   6.0 s  a.py", "   5.0 s  b.py"]


def test_the_line_before_the_first_test() -> None:
    assert Progress(ManualClock()).line() == "[0:00] 0%, 0 of 0 tests; running: nothing"


def test_a_slow_test_is_reported_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0.005)
    reporter = Reporter(Progress())
    reporter.pytest_runtest_logstart("tests/slow.py::test")
    try:
        shown = ""
        while "running: tests/slow.py::test" not in shown:  # a report that never comes ends by the test's timeout
            shown += capfd.readouterr().out
    finally:
        reporter.stop()
