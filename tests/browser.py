"""A real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page, async_playwright

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="NO BROWSER: chromium is not installed, so no page was tested: apt-get install chromium"
)


@asynccontextmanager
async def open_page() -> AsyncIterator[Page]:
    """Open an empty page. An error of its scripts fails the test."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = await browser.new_page()
            problems: list[str] = []
            page.on("pageerror", lambda problem: problems.append(str(problem)))
            yield page
            assert problems == []
        finally:
            await browser.close()
