"""The console in a real browser, on the real server. It is built once for all tests."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from console_pages import ROOT, OpenBrowser, OpenConsole, open_browser
from playwright.async_api import Browser, Page

from browser import connect_browser
from http_server import serve_app
from penstock import App

sys.path.insert(0, str(ROOT / "console"))
import build as console_build


@pytest.fixture(scope="session")
def built() -> Path:
    """Build the console of this checkout and let the package serve it."""
    return console_build.publish()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run these tests in one event loop: they share a connection to the browser."""
    for item in items:
        if item.path.parent == Path(__file__).parent and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """A connection to the browser of this process."""
    async with connect_browser() as browser:
        yield browser


@pytest.fixture
def open_at(built: Path, chromium: Browser) -> OpenBrowser:
    """Return a context manager that opens a page for an address."""

    def open_it(address: str, **options: Any) -> AbstractAsyncContextManager[Page]:
        return open_browser(chromium, address, **options)

    return open_it


@pytest.fixture
def open_console(open_at: OpenBrowser) -> OpenConsole:
    """Return a context manager that serves an open App and yields a page at its console."""

    @asynccontextmanager
    async def open_it(app: App, path: str = "", **options: Any) -> AsyncIterator[Page]:
        async with serve_app(app) as client, open_at(f"{client.base_url}/console/", **options) as page:
            await page.goto(f"{client.base_url}/console/{path}")
            yield page

    return open_it
