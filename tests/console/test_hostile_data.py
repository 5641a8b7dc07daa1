"""Stored scripts never run, and every page is accessible, in both themes."""

from __future__ import annotations

import asyncio
from typing import Any

import build as console_build
from console_flows import HANDLERS
from console_pages import NARROW, WIDE, OpenConsole, go, take_picture
from playwright.async_api import expect

from browser import needs_browser
from penstock import App, Context, flow, job
from penstock.entities import States, Transition, entity
from penstock.errors import Permanent
from penstock.testing import until

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
FILE_NAME = str.maketrans({"/": "-", ":": "-", "{": None, "}": None})
# What a page shows once its data has come.
PAGES = {
    "": "[data-testid=run-row]",
    "runs": "[data-testid=run-row]",
    "entities": "[data-testid=entity-type]",
    "flows": "[data-testid=flow]",
    "flows/order": "[data-testid=grid]",
    "queues": "[data-testid=queue]",
    "queues/mail": "[data-testid=limits]",
    "queues/press": "[data-testid=key]",
    "dead-letters": "[data-testid=group]",
    "waits": "[data-testid=wait-row]",
    "waits/{wait}": "[data-testid=approve]",
    "jobs/{job}": "[data-testid=error]",
    "entities/plan": "[data-testid=entity-row]",
    "entities/plan/plan:1": "[data-testid=history]",
    "schedules": "[data-testid=schedule]",
    "events": "[data-testid=tail]",
    "alerts": "[data-testid=alert]",
    "workers": "[data-testid=worker]",
    "audit": "main h1",
    "settings": "[data-testid=setting]",
    "runs/compare": "[data-testid=compare-a]",
    "runs/order-1?step=charge": "[data-testid=step-error]",
    "runs/order-1?tab=events": "[data-testid=event]",
}
HOSTILE_PAGES = {
    "runs/hostile-1": "[data-testid=failed-step]",
    "runs/hostile-1?tab=events": "[data-testid=event]",
    "runs/slow-1": "[data-testid=inspector]",
    "dead-letters": "[data-testid=group]",
    "queues/mail?state=failed": "[data-testid=job-row]",
    "entities/plan/plan:1": "[data-testid=history]",
    "waits/{wait}": "form",
    "jobs/{job}": "[data-testid=error]",
    "queues/press?state=failed": "[data-testid=job-row]",
    "runs/compare?a=hostile-1&b=asked-1": "[data-testid=difference]",
    "runs/asked-1?step=asked": "[data-testid=inspector]",
    "alerts": "[data-testid=silence-row]",
    "": "[data-testid=attention]",
}
ALL = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"]
LOOKS: list[tuple[str, dict[str, int], str, Any]] = [
    ("light-1440", WIDE, "light", ALL),
    ("dark-1440", WIDE, "dark", ["color-contrast"]),
    ("dark-360", NARROW, "dark", ["target-size"]),
    ("light-360", NARROW, "light", ["target-size", "scrollable-region-focusable"]),
]


@entity("plan")
class Plan:
    states = States("trial", idles=["trial", "active"], finals=["ended"])
    transitions = (Transition("paid", ["trial", "active"], "active"), Transition("ended", "active", "ended"))


@flow("asked")
async def asked(texts: list[str], ctx: Context) -> Any:
    schema = {
        "type": "object",
        "title": texts[0],
        "properties": {texts[1]: {"type": "string", "description": texts[2]}},
    }
    trigger = await ctx.wait.trigger("approval", timeout="24h", payload=texts, schema=schema)
    return await trigger.wait()


@job(queue="press", rate_limit={"max": 1, "duration": "1h", "per_key": True}, rate_key="who", retry=1)
async def print_page(page: dict[str, Any], ctx: Context) -> None:
    ctx.log(page["who"], field=page)
    ctx.progress({"text": page["who"]})
    raise Permanent(page["who"])


@flow("hostile")
async def hostile(texts: list[str], ctx: Context) -> None:
    await ctx.run("read", lambda: texts[5])
    for text in texts:
        ctx.log(text, field=text)
        ctx.partial(text)
    ctx.progress(texts[0])
    await ctx.state.set("text", texts)
    raise Permanent("\n".join(texts))


async def find_ids(app: App, run: str) -> tuple[str, str] | None:
    """Return a wait of the run and a job of the queue `press` that failed; None until there are both."""
    waits, jobs = await app.waits.list(run=run), await app.jobs.list("press", "failed")
    return (str(waits[0].id), jobs[0].id) if waits and jobs else None


async def test_a_corpus_of_stored_scripts_runs_nowhere(open_console: OpenConsole) -> None:
    assert len(CORPUS) == 100
    async with (
        App(":memory:", handlers=[hostile, asked, Plan, print_page, *HANDLERS[:-2]], alerts=["new_error_group"]) as app,
        app.workers.background(),
    ):
        run = await app.start("hostile", CORPUS, key="hostile-1", tags={"tag": CORPUS[0]}, correlation_id=CORPUS[1])
        await app.runs.wait(run)
        await asyncio.gather(*(app.enqueue("mail", f"bad{text}", retry=1) for text in CORPUS))
        await app.start("asked", CORPUS, key="asked-1")
        await app.jobs.enqueue_many("press", [{"who": text} for text in CORPUS])
        await app.schedules.add("hostile", flow="slow", input=CORPUS, every="30d")
        await app.entities.create("plan:1", {"texts": CORPUS}, type="plan")
        await app.entities.result(await app.entities.emit("plan:1", "paid", {"texts": CORPUS}))
        wait, press = await until(lambda: find_ids(app, "asked-1"))
        await app.runs.cancel(await app.start("slow", 1.0, key="slow-1"), reason=CORPUS[2])
        await until(app.alerts.check)
        await app.alerts.silence("new_error_group", subject="nothing", reason=CORPUS[3])
        async with open_console(app, "runs/hostile-1?step=hostile") as page:
            dialogs: list[Any] = []
            page.on("dialog", lambda dialog: dialogs.append(dialog))
            await expect(page.get_by_test_id("step-error")).to_contain_text("window.hacked")
            await expect(page.get_by_test_id("logs")).to_contain_text("window.hacked")
            for path, shows in HOSTILE_PAGES.items():
                await go(page, path.format(wait=wait, job=press), shows)
                await expect(page.get_by_role("main")).to_contain_text("window.hacked")
                assert await page.evaluate("window.hacked") is None, path
            await go(page, "events")
            rows = page.get_by_test_id("tail-row").filter(has_text="text.sent")
            while not await rows.count():  # the page shows what is emitted after it has subscribed
                await app.emit("text.sent", {text: text for text in CORPUS})
                await page.wait_for_timeout(200)
            await rows.first.click()
            await expect(page.locator("aside")).to_contain_text("window.hacked")
            await page.evaluate("new Promise(requestAnimationFrame)")
            assert await page.evaluate("window.hacked") is None
            assert dialogs == []


async def test_axe_finds_no_serious_fault(open_console: OpenConsole) -> None:
    """Every rule on a wide page; the contrast of the dark theme, and the sizes on a phone, on the same page."""
    axe = (console_build.node_modules() / "axe-core" / "axe.min.js").read_text("utf-8")
    async with (
        App(":memory:", handlers=[Plan, *HANDLERS], alerts=["oldest_age > 1ms"]) as app,
        app.workers.background(),
    ):
        await app.runs.wait(await app.start("order", {"id": "1", "fails": True}, key="order-1"))
        await app.start("approval", {"id": 7}, key="approval-7")
        await app.schedules.add("nightly", flow="order", input={"id": "n"}, cron="0 3 * * *")
        await app.enqueue("mail", "bad", retry=1, key="mail-1")
        await app.enqueue("press", {"who": "ann"}, delay="1h")
        await app.queues.set_limits("press", concurrency=2)
        await app.queues.pause("mail")
        await app.enqueue("mail", "ann")
        await until(app.alerts.check)
        await app.alerts.silence("no_worker", reason="deploy")
        await app.entities.create("plan:1", {"name": "gold"}, type="plan")
        await app.entities.result(await app.entities.emit("plan:1", "paid", {"amount": 9}))
        (wait,) = await app.waits.list(run="approval-7")
        found: dict[str, list[str]] = {}
        async with open_console(app) as page:
            await expect(page.get_by_test_id("verdict")).to_be_visible()
            await page.evaluate(axe)
            for path, shows in PAGES.items():
                await go(page, path.format(wait=wait.id, job="mail-1"), shows)
                name = path.partition("?")[0].translate(FILE_NAME) or "overview"
                for look, size, theme, rules in LOOKS:
                    await page.set_viewport_size(size)  # type: ignore[arg-type]
                    await page.evaluate("theme => void (document.documentElement.dataset.theme = theme)", theme)
                    faults = await page.evaluate("run => axe.run({runOnly: run, resultTypes: ['violations']})", rules)
                    serious = [one for one in faults["violations"] if one["impact"] in ("serious", "critical")]
                    if serious:
                        found[f"{path} {look}"] = [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in serious]
                    if size == NARROW and await page.evaluate("document.documentElement.scrollWidth") > size["width"]:
                        found[f"{path} {look} is too wide"] = []
                    await take_picture(page, f"{name}-{look}-axe")
        assert found == {}
