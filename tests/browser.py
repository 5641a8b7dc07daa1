"""A real browser: Debian's chromium, driven by playwright. It is started once for a process of tests.

This is a pytest plugin, too: where chromium is missing, it says so at the start and at the end.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

CHROMIUM = shutil.which("chromium")
START_TIMEOUT_S = 60
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--enable-precise-memory-info",
    "--no-startup-window",
    "--remote-debugging-port=0",
]
NO_BROWSER = "NO BROWSER: chromium is not installed, so no page was tested: apt-get install chromium"
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=NO_BROWSER)


@cache
def browser_address() -> str:
    """Start chromium, once for this process, and return the address at which it takes commands."""
    assert CHROMIUM is not None, NO_BROWSER
    folder = tempfile.mkdtemp(prefix="penstock-chromium-")
    process = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    atexit.register(_stop, process, folder)
    file = Path(folder) / "DevToolsActivePort"
    deadline = time.monotonic() + START_TIMEOUT_S
    while not (file.exists() and file.read_text().count("\n")):
        assert process.poll() is None, f"chromium ended with status {process.returncode}"
        assert time.monotonic() < deadline, f"chromium did not open its port within {START_TIMEOUT_S} s"
        time.sleep(0.05)
    return f"http://127.0.0.1:{file.read_text().splitlines()[0]}"


def _stop(process: subprocess.Popen[bytes], folder: str) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def connect_browser() -> AsyncIterator[Browser]:
    """Connect to the browser of this process; what a test opens in it is closed with the connection."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(browser_address(), timeout=90_000)
        try:
            yield browser
        finally:
            await browser.close()  # closes the connection and its contexts, not chromium


@asynccontextmanager
async def open_page(**options: Any) -> AsyncIterator[Page]:
    """Open an empty page with nothing stored. An error of its scripts fails the test."""
    async with connect_browser() as browser:
        context = await browser.new_context(**options)
        page = await context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda problem: problems.append(str(problem)))
        try:
            yield page
        finally:
            await context.close()
        assert problems == []


def pytest_report_header() -> list[str]:
    """Say at the start that no page will be tested."""
    return [] if CHROMIUM else [f"!!! {NO_BROWSER} !!!"]


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say at the end that no page was tested, if tests were skipped for it."""
    skipped = sum(NO_BROWSER in str(one.longrepr) for one in terminalreporter.stats.get("skipped", []))
    for line in describe_skipped(skipped):
        terminalreporter.write_line(line, red=True, bold=True)


def describe_skipped(number: int) -> Iterator[str]:
    """Return the lines of a frame around what is missing."""
    if number:
        text = f"{number} tests of pages were SKIPPED. {NO_BROWSER}"
        yield from ("!" * (len(text) + 4), f"! {text} !", "!" * (len(text) + 4))
