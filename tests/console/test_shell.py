"""The frame of the console: any mount path, a strict policy, login, roles, keys, themes, a restart of the server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from console_flows import HANDLERS
from console_pages import NARROW, OpenBrowser, OpenConsole, go, take_picture
from playwright.async_api import expect
from starlette.applications import Starlette
from starlette.routing import Mount

from browser import needs_browser
from http_server import Serve, serve_app
from penstock import App
from penstock.http import asgi_app, console
from penstock.http.server import Server, bind
from penstock.testing import until

MAX_FIRST_LOAD_BYTES = 250_000
# Pages, what each shows once its data has come, and the buttons that only show something else.
VIEWED = {
    "": "[data-testid=attention]",
    "runs": "[data-testid=run-row]",
    "runs/order-b?step=charge": "[data-testid=step-error]",
    "runs/approval-7": "[data-testid=why]",
    "flows/order": "[data-testid=node]",
    "queues": "[data-testid=queue]",
    "queues/default": "[data-testid=limits]",
    "dead-letters": "[data-testid=group]",
    "waits/{wait}": "[data-testid=wait-state]",
    "schedules": "[data-testid=schedule]",
    "events": "[data-testid=tail]",
    "alerts": "[data-testid=empty]",
}
READS = {"", "play", "previous", "next", "copy-as", "tab-timeline", "tab-events", "more", "node", "event"}


@pytest.fixture
def serve() -> Serve:
    return serve_app


async def test_pages_and_files(serve: Serve, built: Path) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        page = await client.get("/console/runs/abc")
        assert page.status_code == 200
        assert '<base href="/console/" />' in page.text
        policy = page.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert page.headers["cache-control"] == "no-cache"
        asset = max((built / "assets").glob("*.js"), key=lambda file: file.stat().st_size)
        script = await client.get(f"/console/assets/{asset.name}")
        assert script.headers["content-type"].startswith("text/javascript")
        assert "immutable" in script.headers["cache-control"]
        assert script.headers["content-encoding"] == "gzip"
        assert script.content == asset.read_bytes()
        assert (await client.get("/console/assets/../../application.py")).status_code in (200, 404)
        assert (await client.get("/console/assets/%2e%2e/%2e%2e/application.py")).status_code == 404
        assert (await client.post("/console/")).status_code == 405
        assert (await client.head("/console/")).content == b""
        assert (await client.get("/console")).headers["location"] == "/console/"
        assert (await client.get("/", headers={"accept": "text/html"})).headers["location"] == "/console/"
        assert (await client.get("/")).status_code == 404


async def test_names_of_the_page_are_escaped(built: Path) -> None:
    index = console._index('/a"><script>', "n&q").decode()
    assert "<script>" not in index.partition("</head>")[0].replace('<script src="./theme.js"></script>', "")
    assert "n&amp;q" in index


async def test_without_the_built_files_everything_else_works(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(console, "FILES", tmp_path / "none")
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        answer = await client.get("/console/")
        assert answer.status_code == 404
        assert "make console" in answer.json()["error"]["message"]
        assert (await client.get("/api/_queue")).status_code == 200
        assert (await client.get("/", headers={"accept": "text/html"})).status_code == 404
    assert "make console" in console.describe_console("http://x")


async def test_the_console_can_be_left_out(serve: Serve, built: Path) -> None:
    async with App(":memory:", handlers=()) as app, serve(app, console=False) as client:
        assert (await client.get("/console/")).status_code == 404


async def test_who_the_caller_is(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        found = (await client.get("/api/_session")).json()
        assert (found["name"], found["role"], found["namespace"]) == ("local", "admin", "nq")
        _, text = await app.tokens.add("vera", "viewer")
        assert (await client.get("/api/_session")).status_code == 401
        found = (await client.get("/api/_session", headers={"authorization": f"Bearer {text}"})).json()
        assert (found["name"], found["role"]) == ("vera", "viewer")


@needs_browser
async def test_mounted_anywhere_with_deep_links_and_no_other_host(open_at: OpenBrowser) -> None:
    async with App(":memory:", handlers=HANDLERS) as app:
        await app.start("order", {"id": "a"}, key="order-a")
        listener = bind("127.0.0.1", 0)
        server = Server(Starlette(routes=[Mount("/ops/jobs", asgi_app(app))]), listener)
        ready = asyncio.Event()
        serving = asyncio.create_task(server.run(ready.set))
        await ready.wait()
        host = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with open_at(host) as page:
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            await page.goto(f"{host}/ops/jobs/console/runs/order-a?tab=events")
            await expect(page.get_by_test_id("run-id")).to_have_text("order-a")
            await expect(page.get_by_test_id("event").first).to_contain_text("flow.started")
            await page.get_by_test_id("nav-runs").click()
            await expect(page).to_have_url(f"{host}/ops/jobs/console/runs")
            await expect(page.get_by_test_id("run-row")).to_have_count(1)
            assert [url for url in asked if not url.startswith(f"{host}/ops/jobs/")] == []
        server.stop()
        await serving


@needs_browser
async def test_the_first_load_is_small(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, open_console(app) as page:
        await expect(page.get_by_test_id("verdict")).to_be_visible()
        sizes = await page.evaluate(
            "performance.getEntriesByType('resource').filter(r => !r.name.includes('/api/')).map(r => r.encodedBodySize)"
        )
        assert 20_000 < sum(sizes) < MAX_FIRST_LOAD_BYTES, sizes


@needs_browser
async def test_login_with_a_token_and_a_viewer_sees_no_buttons(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app:
        _, viewer = await app.tokens.add("vera", "viewer")
        await app.start("order", {"id": "a"}, key="order-a")
        await app.schedules.add("nightly", flow="order", input={"id": "n"}, cron="0 3 * * *")
        async with app.workers.background():
            await app.runs.wait(await app.start("order", {"id": "b", "fails": True}, key="order-b"))
            await app.start("approval", {"id": 7}, key="approval-7")
            (wait,) = await until(lambda: app.waits.list(run="approval-7"))
        await app.start("order", {"id": "a"}, key="order-c")
        async with open_console(app, "runs/order-c") as page:
            await page.get_by_test_id("token").fill("pst_wrong")
            await page.get_by_test_id("login").click()
            await expect(page.get_by_role("alert")).to_contain_text("unknown")
            await take_picture(page, "login-light-1440")
            await page.get_by_test_id("token").fill(viewer)
            await page.get_by_test_id("login").click()
            await expect(page.get_by_test_id("run-id")).to_have_text("order-c")
            await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "Live")
            for name in ("cancel", "pause", "replay", "retry"):
                await expect(page.get_by_test_id(name)).to_have_count(0)
            await expect(page.get_by_test_id("nav-audit")).to_have_count(0)
            await app.emit("hello.sent", {"n": 1}, run="order-c")
            await expect(page.get_by_test_id("travel")).to_have_text("2 events")
            await page.reload()
            await expect(page.get_by_test_id("run-id")).to_have_text("order-c")
            for path, shows in VIEWED.items():
                await go(page, path.format(wait=wait.id), shows)
                found = await page.eval_on_selector_all(
                    "main button",
                    "all => all.map(one => one.dataset.testid ?? (one.matches('.primary, .danger') ? one.innerText : ''))",
                )
                assert {*found} <= READS, path


@needs_browser
async def test_keys_palette_and_theme(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, open_console(app) as page:
        await app.start("order", {"id": "a"}, key="order-a")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        await page.keyboard.press("g")
        await page.keyboard.press("q")
        await expect(page.get_by_role("heading", name="Queues", exact=True)).to_be_visible()
        await page.keyboard.press("Control+k")
        await page.get_by_test_id("palette").fill("order-a")
        await expect(page.get_by_test_id("found").first).to_contain_text("order-a")
        await page.keyboard.press("Enter")
        await expect(page.get_by_test_id("run-id")).to_have_text("order-a")
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog")).to_contain_text("Retry the failed steps")
        await page.keyboard.press("Escape")
        before = await page.evaluate("document.documentElement.dataset.theme")
        await page.get_by_test_id("theme").click()
        assert await page.evaluate("document.documentElement.dataset.theme") != before
        await page.reload()
        assert await page.evaluate("document.documentElement.dataset.theme") != before


@needs_browser
async def test_pages_go_on_after_a_restart_of_the_server(open_at: OpenBrowser) -> None:
    async with App(":memory:", handlers=HANDLERS) as app:
        await app.start("order", {"id": "a"}, key="order-a")
        listener = bind("127.0.0.1", 0)
        port = listener.getsockname()[1]
        address = f"http://127.0.0.1:{port}/console"

        async def start(listener: object) -> tuple[Server, asyncio.Task[None]]:
            ready = asyncio.Event()
            server = Server(asgi_app(app), listener)  # type: ignore[arg-type]
            serving = asyncio.create_task(server.run(ready.set))
            await ready.wait()
            return server, serving

        server, serving = await start(listener)
        async with open_at(address) as page:
            await page.goto(f"{address}/runs/order-a")
            await expect(page.get_by_test_id("travel")).to_have_text("1 event")
            await page.evaluate("window.isSamePage = true")
            server.stop()
            await serving
            await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "Reconnecting")
            await app.emit("hello.sent", {"n": 1}, run="order-a")
            server, serving = await start(bind("127.0.0.1", port))
            await expect(page.get_by_test_id("travel")).to_have_text("2 events")
            await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "Live")
            assert await page.evaluate("window.isSamePage")
        server.stop()
        await serving


@needs_browser
async def test_the_menu_on_a_phone(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, open_console(app, size=NARROW) as page:
        await page.get_by_role("button", name="Pages", exact=True).click()
        await page.get_by_test_id("nav-waits").click()
        await expect(page.get_by_role("heading", name="Waits", exact=True)).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


async def test_a_page_of_another_site_can_send_no_command(serve: Serve, built: Path) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, serve(app) as client:
        headers = {"origin": "https://evil.example", "content-type": "text/plain"}
        answer = await client.post("/api/_flow/order/runs", content=b"{}", headers=headers)
        assert answer.status_code == 403
        assert isinstance(client, httpx.AsyncClient)
