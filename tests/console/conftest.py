"""The console in a real browser, on the real server. It is built once for all tests."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from console_pages import ROOT, OpenConsole, open_browser
from playwright.async_api import Page

from http_server import serve_app
from penstock import App

sys.path.insert(0, str(ROOT / "console"))
import build as console_build


@pytest.fixture(scope="session")
def built() -> Path:
    """Build the console of this checkout and let the package serve it."""
    return console_build.publish()


@pytest.fixture
def open_console(built: Path) -> OpenConsole:
    """Return a context manager that serves an open App and yields a page at its console."""

    @asynccontextmanager
    async def open_it(app: App, path: str = "", **options: Any) -> AsyncIterator[Page]:
        async with serve_app(app) as client, open_browser(f"{client.base_url}/console/", **options) as page:
            await page.goto(f"{client.base_url}/console/{path}")
            yield page

    return open_it
