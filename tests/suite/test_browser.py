"""A machine without chromium: the tests of pages are skipped, and a message shows it where nobody overlooks it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import browser

ROOT = Path(__file__).parents[2]


def test_the_skipped_tests_are_counted() -> None:
    lines = list(browser.describe_skipped(3))
    assert "3 tests of pages were SKIPPED" in lines[1]
    assert "apt-get install chromium" in lines[1]
    assert list(browser.describe_skipped(0)) == []


def test_without_chromium_a_message_is_at_both_ends() -> None:
    test = "tests/console/test_places.py::test_two_runs_are_compared"
    env = {**os.environ, "PATH": "/nowhere"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"!!! {browser.NO_BROWSER} !!!" in done.stdout.partition("collected")[0]
    assert f"! 1 tests of pages were SKIPPED. {browser.NO_BROWSER} !" in done.stdout
