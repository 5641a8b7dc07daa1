"""Stored scripts never run, and every page is accessible, in both themes."""

from __future__ import annotations

from typing import Any

import build as console_build
import pytest
from console_flows import HANDLERS
from console_pages import NARROW, WIDE, OpenConsole, take_picture
from playwright.async_api import expect

from browser import needs_browser
from penstock import App, Context, flow
from penstock.errors import Permanent

pytestmark = needs_browser
RUN_IT = "window.hacked=1"
SHAPES = [
    "<script>{}</script>",
    "<img src=x onerror={}>",
    "<svg onload={}>",
    "<svg><script>{}</script></svg>",
    "<body onload={}>",
    "<iframe srcdoc='<script>parent.{}</script>'>",
    '<a href="javascript:{}">x</a>',
    "javascript:{}",
    "<details open ontoggle={}>",
    "<input autofocus onfocus={}>",
    "<video><source onerror={}></video>",
    "<math><mtext></p><img src=x onerror={}>",
    "{{{{constructor.constructor('{}')()}}}}",
    "${{{}}}",
    "</title><script>{}</script>",
    "</textarea><script>{}</script>",
    "<style>@import 'data:,{}'</style>",
    "<object data='data:text/html,<script>{}</script>'>",
    "<embed src='javascript:{}'>",
    "<form action=javascript:{}><button>x</button></form>",
]
AROUND = ["{}", "\"'>{}", "\u202e{}", "<!--{}-->", "]]>{}"]
CORPUS = [around.format(shape.format(RUN_IT)) for shape in SHAPES for around in AROUND]
PAGES = [
    "",
    "runs",
    "entities",
    "flows",
    "flows/order",
    "queues",
    "queues/mail",
    "dead-letters",
    "waits",
    "schedules",
    "events",
]
PAGES += ["workers", "audit", "settings", "runs/compare", "runs/order-1?step=charge", "runs/order-1?tab=events"]


@flow("hostile")
async def hostile(texts: list[str], ctx: Context) -> None:
    for text in texts:
        ctx.log(text, field=text)
        ctx.partial(text)
    ctx.progress(texts[0])
    await ctx.state.set("text", texts)
    raise Permanent("\n".join(texts))


async def test_a_corpus_of_stored_scripts_runs_nowhere(open_console: OpenConsole) -> None:
    assert len(CORPUS) == 100
    async with App(":memory:", handlers=[hostile, *HANDLERS]) as app, app.workers.background():
        run = await app.start("hostile", CORPUS, key="hostile-1", tags={"tag": CORPUS[0]}, correlation_id=CORPUS[1])
        await app.runs.wait(run)
        for text in CORPUS:
            await app.emit("text.sent", {text: text})
            await app.enqueue("mail", f"bad{text}", retry=1)
        await app.runs.cancel(await app.start("slow", 1.0, key="slow-1"), reason=CORPUS[2])
        async with open_console(app, "runs/hostile-1?step=hostile") as page:
            dialogs: list[Any] = []
            page.on("dialog", lambda dialog: dialogs.append(dialog))
            await expect(page.get_by_test_id("step-error")).to_contain_text("window.hacked")
            await expect(page.get_by_test_id("logs")).to_contain_text("window.hacked")
            paths = [
                "runs/hostile-1",
                "runs/hostile-1?tab=events",
                "runs/slow-1",
                "runs",
                "events",
                "dead-letters",
                "queues/mail?state=failed",
                "flows/hostile",
            ]
            for path in ["", *paths]:
                await page.goto(f"{page.url.partition('/console/')[0]}/console/{path}")
                await expect(page.get_by_role("heading").first).to_be_visible()
                await page.wait_for_load_state("networkidle") if path != "events" else None
                assert await page.evaluate("window.hacked") is None, path
            assert dialogs == []


@pytest.mark.parametrize(
    ("theme", "size"), [("light", WIDE), ("dark", WIDE), ("light", NARROW)], ids=["light", "dark", "phone"]
)
async def test_axe_finds_no_serious_fault(open_console: OpenConsole, theme: str, size: dict[str, int]) -> None:
    axe = (console_build.node_modules() / "axe-core" / "axe.min.js").read_text("utf-8")
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.runs.wait(await app.start("order", {"id": "1", "fails": True}, key="order-1"))
        await app.start("approval", {"id": 7}, key="approval-7")
        await app.schedules.add("nightly", flow="order", input={"id": "n"}, cron="0 3 * * *")
        await app.enqueue("mail", "bad", retry=1)
        found: dict[str, list[str]] = {}
        async with open_console(app, theme=theme, size=size) as page:
            for path in PAGES:
                await page.goto(f"{page.url.partition('/console/')[0]}/console/{path}")
                await expect(page.get_by_role("heading").first).to_be_visible()
                await page.evaluate(axe)
                faults = await page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa']})")
                serious = [one for one in faults["violations"] if one["impact"] in ("serious", "critical")]
                if serious:
                    found[path] = [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in serious]
                await take_picture(
                    page, f"{path.partition('?')[0].replace('/', '-') or 'overview'}-{theme}-{size['width']}-axe"
                )
        assert found == {}
