"""Stored scripts never run, and every page is accessible, in both themes."""

from __future__ import annotations

from typing import Any

import build as console_build
import pytest
from console_flows import HANDLERS
from console_pages import NARROW, WIDE, OpenConsole, take_picture
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
PAGES = [
    "",
    "runs",
    "entities",
    "flows",
    "flows/order",
    "queues",
    "queues/mail",
    "queues/press",
    "dead-letters",
    "waits",
    "waits/{wait}",
    "jobs/{job}",
    "entities/plan",
    "entities/plan/plan:1",
    "schedules",
    "events",
]
FILE_NAME = str.maketrans({"/": "-", ":": "-", "{": None, "}": None})
PAGES += [
    "alerts",
    "workers",
    "audit",
    "settings",
    "runs/compare",
    "runs/order-1?step=charge",
    "runs/order-1?tab=events",
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
        App(":memory:", handlers=[hostile, asked, Plan, print_page, *HANDLERS[:-2]]) as app,
        app.workers.background(),
    ):
        run = await app.start("hostile", CORPUS, key="hostile-1", tags={"tag": CORPUS[0]}, correlation_id=CORPUS[1])
        await app.runs.wait(run)
        for text in CORPUS:
            await app.emit("text.sent", {text: text})
            await app.enqueue("mail", f"bad{text}", retry=1)
        await app.start("asked", CORPUS, key="asked-1")
        await app.jobs.enqueue_many("press", [{"who": text} for text in CORPUS])
        await app.schedules.add("hostile", flow="slow", input=CORPUS, every="30d")
        await app.entities.create("plan:1", {"texts": CORPUS}, type="plan")
        await app.entities.result(await app.entities.emit("plan:1", "paid", {"texts": CORPUS}))
        wait, press = await until(lambda: find_ids(app, "asked-1"))
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
                "entities",
                "entities/plan",
                "entities/plan/plan:1",
                f"waits/{wait}",
                "waits",
                f"jobs/{press}",
                "queues/press",
                "schedules",
                "runs/compare?a=hostile-1&b=asked-1",
                "runs/asked-1?step=asked",
                "audit",
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
    async with App(":memory:", handlers=[Plan, *HANDLERS]) as app, app.workers.background():
        await app.runs.wait(await app.start("order", {"id": "1", "fails": True}, key="order-1"))
        await app.start("approval", {"id": 7}, key="approval-7")
        await app.schedules.add("nightly", flow="order", input={"id": "n"}, cron="0 3 * * *")
        await app.enqueue("mail", "bad", retry=1, key="mail-1")
        await app.jobs.enqueue_many("press", [{"who": "ann"}, {"who": "bob"}])
        await app.queues.set_limits("press", concurrency=2)
        await app.entities.create("plan:1", {"name": "gold"}, type="plan")
        await app.entities.result(await app.entities.emit("plan:1", "paid", {"amount": 9}))
        (wait,) = await app.waits.list(run="approval-7")
        found: dict[str, list[str]] = {}
        async with open_console(app, theme=theme, size=size) as page:
            for path in PAGES:
                address = path.format(wait=wait.id, job="mail-1")
                await page.goto(f"{page.url.partition('/console/')[0]}/console/{address}")
                await expect(page.get_by_role("heading").first).to_be_visible()
                await page.evaluate(axe)
                faults = await page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa']})")
                serious = [one for one in faults["violations"] if one["impact"] in ("serious", "critical")]
                if serious:
                    found[path] = [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in serious]
                await take_picture(
                    page, f"{path.partition('?')[0].translate(FILE_NAME) or 'overview'}-{theme}-{size['width']}-axe"
                )
        assert found == {}
