"""The FastAPI example: a long answer streamed to a real browser, and a reload in the middle of it."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from browser import needs_browser, open_page
from penstock.http.server import Server, bind

EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi-app"
TIMEOUT_MS = 60_000


@asynccontextmanager
async def serve_example(
    url: str, monkeypatch: pytest.MonkeyPatch, pause_s: str
) -> AsyncIterator[tuple[str, ModuleType]]:
    """Serve the example on a store, and yield its address and its module."""
    monkeypatch.setenv("PENSTOCK_URL", url)
    monkeypatch.setenv("ANSWER_PAUSE_S", pause_s)
    spec = importlib.util.spec_from_file_location("fastapi_example", EXAMPLE / "main.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fastapi_example", module)
    spec.loader.exec_module(module)
    listener = bind("127.0.0.1", 0)
    server, ready = Server(module.web, listener), asyncio.Event()
    serving = asyncio.create_task(server.run(ready.set))
    await ready.wait()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", module
    finally:
        server.stop()
        await serving


async def test_ask_and_follow(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve_example(url, monkeypatch, "0") as (address, module), httpx.AsyncClient(base_url=address) as client:
        run = (await client.post("/ask", json={"text": "why?"})).json()["run"]
        text = await module.app.result(run, timeout=20)
        assert text.startswith("You asked: why? A penstock")
        view = (await client.get(f"/penstock/api/_run/{run}")).json()
        assert "".join(view["steps"]["answer"]["partials"]) == text


@pytest.mark.spec("000-7.32")
@needs_browser
async def test_a_reload_in_the_middle_of_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        serve_example(f"sqlite:///{tmp_path}/app.db", monkeypatch, "0.05") as (address, module),
        open_page() as page,
    ):
        page.set_default_timeout(TIMEOUT_MS)
        await page.goto(address)
        await page.fill("input", "where were we?")
        await page.click("button")
        await page.wait_for_function("document.getElementById('answer').textContent.split(' ').length > 8")
        before = await page.inner_text("#answer")
        await page.reload()
        await page.wait_for_function(f"document.getElementById('answer').textContent.length >= {len(before)}")
        assert (await page.inner_text("#answer")).startswith(before.rstrip())
        assert await page.inner_text("#status") in ("answering", "completed")
        await page.wait_for_function("document.getElementById('status').textContent === 'completed'")
        run = (await page.evaluate("location.hash"))[1:]
        shown = await page.evaluate("document.getElementById('answer').textContent")
        assert shown == await module.app.result(run, timeout=20)
        picture = tmp_path / "answer.png"
        await page.screenshot(path=picture)
        assert picture.stat().st_size > 1000
