"""The console in a real browser, on the real server. It is built once for all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from PIL import Image, ImageChops, ImageStat
from playwright.async_api import Browser, Page, expect

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / ".cache" / "screenshots"
IN_DOCS = {
    "shop-light-1440": "console-run.png",
    "letters-light-1440": "console-letters.png",
    "entity-light-1440": "console-entity.png",
    "approval-light-360": "console-approval.png",
}
MAX_DIFFERENCE = 0.5  # times and ids differ each time, and are small
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 360, "height": 780}
OpenConsole = OpenBrowser = Callable[..., AbstractAsyncContextManager[Page]]
expect.set_options(timeout=15_000)


@asynccontextmanager
async def open_browser(
    browser: Browser, address: str, *, size: dict[str, int] = WIDE, theme: str = "light"
) -> AsyncIterator[Page]:
    """Open a page whose paths start at the console. An error of its scripts or of its policy fails the test."""
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


async def go(page: Page, path: str, shows: str = "main h1, main .run") -> None:
    """Go to another page of the console as a link does, without loading the application again."""
    await page.evaluate(
        "url => (history.pushState({}, '', url), dispatchEvent(new PopStateEvent('popstate', {state: {}})))",
        f"{page.url.partition('/console/')[0]}/console/{path}",
    )
    await expect(page.locator(shows).first).to_be_visible()


def is_problem(message: Any) -> bool:
    """Return whether a message of the browser's console is a fault of ours. Answers such as 404 are not."""
    return message.type == "error" and not any(
        text in message.text for text in ("Failed to load resource", "WebSocket connection", "ERR_CONNECTION")
    )


async def take_picture(page: Page, name: str) -> None:
    """Compare the page with its picture in the docs. `UPDATE_PICTURES=1` keeps a picture of every page, and copies those of the docs."""
    if name not in IN_DOCS and not os.environ.get("UPDATE_PICTURES"):
        return
    PICTURES.mkdir(parents=True, exist_ok=True)
    picture = PICTURES / f"{name}.png"
    await page.screenshot(path=picture)
    if name not in IN_DOCS:
        return
    in_docs = ROOT / "docs" / "images" / IN_DOCS[name]
    if os.environ.get("UPDATE_PICTURES"):
        shutil.copy(picture, in_docs)
    lanes = page.locator(".lanes")  # the order of the rows is that of the events, which differs
    varies = await lanes.bounding_box() if await lanes.count() else None
    difference = compare_pictures(picture, in_docs, varies)
    assert difference < MAX_DIFFERENCE, f"{in_docs.name} is not what the console shows now: run with UPDATE_PICTURES=1"


def compare_pictures(one: Path, other: Path, varies: Any = None) -> float:
    """Return how far two pictures differ when they are seen from afar: 0 is the same, 255 is black and white.

    `varies` is the box of a part that is not compared."""
    small = []
    for file in (one, other):
        with Image.open(file) as picture:
            grey = picture.convert("L")
        if varies is not None:
            x, y, width, height = (int(varies[side]) for side in ("x", "y", "width", "height"))
            grey.paste(0, (x, y, x + width, y + height))
        small.append(grey.resize((72, 45), Image.Resampling.BOX))
    return float(ImageStat.Stat(ImageChops.difference(*small)).mean[0])
