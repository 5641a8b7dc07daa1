"""A pytest plugin for `make coverage`: measure without coverage's lock.

A timeout or a cancellation raises an exception inside the thread of a handler, at any line. Raised between the two calls
by which coverage takes and releases its lock, it leaves the lock taken, and every thread of the process waits for ever.
Without the lock, additions to a dict are atomic, and coverage repeats a report that one of them has disturbed.
"""

from __future__ import annotations

import sys

import pytest


def pytest_configure(config: pytest.Config) -> None:
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    collector = getattr(current, "_collector", None)
    if collector is not None:
        collector.data_lock = None
