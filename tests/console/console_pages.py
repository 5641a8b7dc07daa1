"""The console in a real browser, on the real server. It is built once for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Page, expect

from browser import connect_browser

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / ".cache" / "screenshots"
IN_DOCS = {
    "shop-light-1440": "console-run.png",
    "letters-light-1440": "console-letters.png",
    "entity-light-1440": "console-entity.png",
    "approval-light-360": "console-approval.png",
}
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 360, "height": 780}
OpenConsole = Callable[..., AbstractAsyncContextManager[Page]]
expect.set_options(timeout=15_000)


@asynccontextmanager
async def open_browser(address: str, *, size: dict[str, int] = WIDE, theme: str = "light") -> AsyncIterator[Page]:
    """Open a page whose paths start at the console. An error of its scripts or of its policy fails the test."""
    async with connect_browser() as browser:
        context = await browser.new_context(base_url=address, viewport=size, color_scheme=theme)  # type: ignore[arg-type]
        page = await context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda problem: problems.append(str(problem)))
        page.on("console", lambda message: problems.append(message.text) if is_problem(message) else None)
        try:
            yield page
        finally:
            await context.close()
        assert problems == []


def is_problem(message: Any) -> bool:
    """Return whether a message of the browser's console is a fault of ours. Answers such as 404 are not."""
    return message.type == "error" and not any(
        text in message.text for text in ("Failed to load resource", "WebSocket connection", "ERR_CONNECTION")
    )


async def take_picture(page: Page, name: str) -> None:
    """Keep a picture of the page as output of the tests. `UPDATE_PICTURES=1` also updates those of the docs."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=PICTURES / f"{name}.png")
    if os.environ.get("UPDATE_PICTURES") and name in IN_DOCS:
        shutil.copy(PICTURES / f"{name}.png", ROOT / "docs" / "images" / IN_DOCS[name])
