"""Every other page and its actions: runs, overview, queues, jobs, dead letters, waits, schedules, events, flows."""

from __future__ import annotations

from typing import Any

from console_flows import HANDLERS
from console_pages import NARROW, OpenConsole, take_picture
from playwright.async_api import expect

from browser import needs_browser
from penstock import App, Context, job
from penstock.testing import until

pytestmark = needs_browser


async def test_the_list_of_runs(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        for n in range(3):
            await app.start("order", {"id": str(n), "fails": n == 1}, key=f"order-{n}")
        async with open_console(app, "runs") as page:
            rows = page.get_by_test_id("run-row")
            await expect(rows).to_have_count(3)
            search = page.get_by_test_id("search")
            await search.fill("status:fa")
            await page.get_by_test_id("completion").first.click()
            await search.press("Enter")
            await expect(rows).to_have_count(1)
            assert page.url.endswith("runs?q=status:failed")
            await search.fill("data.id:2")
            await search.press("Enter")
            await expect(rows).to_have_count(0)  # a number; the input has a text
            await search.fill("flow:order card was declined")
            await search.press("Enter")
            await expect(rows).to_have_count(1)
            await page.get_by_test_id("bulk").click()
            await page.get_by_test_id("bulk-replay").click()
            await expect(page.get_by_test_id("preview")).to_have_text("1 run would be replayed.")
            await page.get_by_test_id("action-confirm").click()
            await expect(rows).to_have_count(2)
            await page.keyboard.press("j")
            await expect(page.locator("tr.current")).to_have_count(1)
            await app.start("order", {"id": "9", "fails": True}, key="order-9")
            await page.get_by_test_id("fresh").click()
            await expect(rows.first).to_contain_text("order-9")
            await take_picture(page, "runs-light-1440")


async def test_queues_and_jobs(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app:
        job = await app.enqueue("mail", "ada", key="mail-1")
        async with open_console(app, "queues") as page:
            queue = page.locator("[data-testid=queue][data-queue=mail]")
            await queue.get_by_test_id("pause-queue").click()
            await expect(page.get_by_test_id("preview")).to_contain_text("1 waiting job and those that come would stay")
            await page.get_by_test_id("action-confirm").click()
            await expect(page.get_by_test_id("toast")).to_contain_text("paused")
            await queue.get_by_test_id("resume-queue").click()
            await page.get_by_test_id("action-confirm").click()
            await expect(queue.get_by_test_id("pause-queue")).to_be_visible()
            await page.get_by_role("link", name="mail", exact=True).click()
            await page.get_by_role("tab", name="waiting").first.click()
            await page.get_by_test_id("job-row").get_by_role("link").click()
            await expect(page.get_by_test_id("job-state")).to_have_attribute("data-state", "waiting")
            async with app.workers.background():
                await expect(page.get_by_test_id("job-state")).to_have_attribute("data-state", "completed")
            await page.go_back()
            await page.get_by_test_id("enqueue").click()
            await page.get_by_test_id("action-input").fill('"bob"')
            await page.get_by_test_id("action-confirm").click()
            await page.get_by_test_id("toast").get_by_role("link").click()
            await page.get_by_test_id("cancel-job").click()
            await page.get_by_test_id("action-confirm").click()
            await expect(page.get_by_test_id("job-state")).to_have_attribute("data-state", "cancelled")
        assert str(job) == "mail-1"


async def test_dead_letters_by_group(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        for n in range(3):
            await app.enqueue("mail", f"bad{n}", retry=1)

        async def all_failed() -> bool:
            return await app.dead_letters.count() == 3

        await until(all_failed)
        async with open_console(app) as page:
            await expect(page.get_by_test_id("letters")).to_have_text("3")
            await page.get_by_test_id("nav-queues").click()
            await page.get_by_role("link", name="mail", exact=True).click()
            await page.get_by_role("tab", name="failed").click()
            await page.get_by_test_id("job-row").first.get_by_role("link").click()
            await expect(page.get_by_test_id("error")).to_contain_text("is not valid")
            await page.get_by_test_id("nav-letters").click()
            group = page.get_by_test_id("group")
            await expect(group).to_contain_text("3×")
            await group.get_by_role("button").first.click()
            await take_picture(page, "letters-light-1440")
            await page.get_by_test_id("redrive").click()
            await page.get_by_test_id("action-input").fill('"ada"')
            await page.get_by_test_id("action-confirm").click()
            await expect(group).to_contain_text("2×")
            await page.get_by_test_id("redrive-group").click()
            await expect(page.get_by_test_id("preview")).to_contain_text("2 dead letters")
            await page.get_by_test_id("action-confirm").click()
            await expect(page.get_by_test_id("toast").last).to_contain_text("2 dead letters redriven")
            await expect(group).to_contain_text("2×")  # they failed again
            await page.get_by_test_id("discard-group").click()
            await page.get_by_test_id("action-confirm").click()
            await expect(page.get_by_test_id("group")).to_have_count(0)


async def test_an_approval_on_a_phone(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        run = await app.start("approval", {"id": 7}, key="approval-7")
        async with open_console(app, "waits", size=NARROW) as page:
            await page.get_by_test_id("wait-row").get_by_role("link").click()
            await expect(page.get_by_test_id("preview")).to_contain_text("becomes resolved")
            await page.get_by_test_id("reason").fill("looks right")
            await take_picture(page, "approval-light-360")
            assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
            await page.get_by_test_id("approve").click()
            await expect(page.get_by_test_id("wait-state")).to_have_attribute("data-state", "resolved")
        assert await app.result(run) == {"answer": {"approved": True}}


async def test_a_list_stays_still_while_it_is_read(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.start("approval", {"id": 1}, key="approval-1")
        async with open_console(app, "waits") as page:
            rows = page.get_by_test_id("wait-row")
            await expect(rows).to_have_count(1)
            await rows.hover()
            await app.start("approval", {"id": 2}, key="approval-2")
            await expect(page.get_by_test_id("fresh")).to_have_text("1 new")
            (wait,) = await app.waits.list(run="approval-1")
            await app.waits.resolve(wait.id, {"approved": True})
            await expect(rows).to_have_class("gone")
            await expect(rows).to_contain_text("approval-1")
            await page.get_by_test_id("fresh").click()
            await expect(rows).to_contain_text("approval-2")


async def test_schedules_events_workers_audit_and_settings(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.schedules.add("nightly", flow="order", input={"id": "n"}, cron="0 3 * * *", tz="Europe/Berlin")
        async with open_console(app, "schedules") as page:
            schedule = page.get_by_test_id("schedule")
            await expect(schedule).to_contain_text("every day at 03:00 in Europe/Berlin")
            await page.get_by_test_id("run-now").click()
            await page.get_by_test_id("action-confirm").click()
            await expect(page.get_by_test_id("toast")).to_contain_text("has started")
            await page.get_by_test_id("nav-events").click()
            await page.get_by_test_id("kinds").fill("hello.sent")
            await page.get_by_test_id("kinds").press("Enter")
            await page.get_by_test_id("send").click()
            await page.get_by_test_id("kind").fill("hello.sent")
            await page.get_by_test_id("action-confirm").click()
            await expect(page.locator("[data-testid=tail-row][data-kind='hello.sent']")).to_have_count(1)
            await page.get_by_test_id("nav-workers").click()
            await expect(page.get_by_test_id("worker")).to_have_count(1)
            await page.get_by_test_id("nav-audit").click()
            await expect(page.get_by_test_id("audit-row").first).to_contain_text("emit_event")
            await page.get_by_test_id("nav-settings").click()
            await expect(page.get_by_test_id("setting").first).to_be_visible()


async def test_a_flow_is_drawn_and_started_with_a_form(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        async with open_console(app, "flows") as page:
            await page.get_by_test_id("flow").filter(has_text="order").click()
            await expect(page.get_by_test_id("node")).to_have_count(3)
            await page.get_by_test_id("start").click()
            await page.get_by_test_id("field-id").fill("42")
            await page.get_by_test_id("field-total").fill("12")
            await page.get_by_test_id("key").fill("order-42")
            await page.get_by_test_id("start-confirm").click()
            await expect(page.get_by_test_id("run-id")).to_have_text("order-42")
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "completed")
            await page.get_by_test_id("nav-flows").click()
            await page.get_by_test_id("flow").filter(has_text="order").click()
            await expect(page.get_by_test_id("grid").get_by_role("link")).to_have_count(3)
        assert (await app.runs.get("order-42")).input == {"id": "42", "total": 12, "fails": False}


async def test_two_runs_are_compared(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        for n in range(2):
            await app.runs.wait(await app.start("order", {"id": "7", "fails": n == 1}, key=f"order-{n}"))
        async with open_console(app, "runs/compare?a=order-0&b=order-1") as page:
            await expect(page.get_by_test_id("difference")).to_contain_text("$.input.fails")


async def test_the_stack_of_a_running_handler(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.enqueue("reports", "yearly", key="report-1")
        async with open_console(app, "jobs/report-1") as page:
            await expect(page.get_by_test_id("job-state")).to_have_attribute("data-state", "active")
            await page.get_by_test_id("inspect").click()
            await expect(page.get_by_test_id("stack")).to_contain_text("in long_report")
            await page.get_by_test_id("cancel-job").click()
            await page.get_by_test_id("action-confirm").click()
            await expect(page.get_by_test_id("job-state")).to_have_attribute("data-state", "cancelled")


async def test_views_are_kept_with_their_counts_and_columns_are_remembered(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        for n in range(2):
            await app.runs.wait(await app.start("order", {"id": str(n), "fails": True}, key=f"order-{n}"))
        async with open_console(app, "runs") as page:
            await page.get_by_test_id("search").fill("flow:order status:failed")
            await page.get_by_test_id("search").press("Enter")
            await page.get_by_test_id("save-view").click()
            await expect(page.get_by_test_id("view-count")).to_have_text("2")
            await page.get_by_role("button", name="Columns").click()
            await page.get_by_role("menuitemcheckbox", name="Took").click()
            await page.keyboard.press("Escape")
            await app.runs.wait(await app.start("order", {"id": "2", "fails": True}, key="order-2"))
            await expect(page.get_by_test_id("view-count")).to_have_text("3")  # live
            await page.goto(f"{page.url.partition('/console/')[0]}/console/runs")
            await page.get_by_test_id("view").click()
            await expect(page.get_by_test_id("run-row")).to_have_count(3)
            await expect(page.get_by_role("columnheader", name="Took")).to_have_count(0)


async def test_the_overview_says_what_needs_attention(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app:
        async with app.workers.background():
            await app.runs.wait(await app.start("order", {"id": "1", "fails": True}, key="order-1"))
        await app.queues.pause("mail")
        async with open_console(app) as page:
            attention = page.get_by_test_id("attention")
            await expect(attention).to_contain_text("No worker is alive")
            await expect(attention).to_contain_text("was declined")
            await expect(attention).to_contain_text("Queue mail is paused")
            await attention.get_by_role("link").filter(has_text="was declined").click()
            await expect(page.get_by_test_id("letter")).to_contain_text("order-1")


async def test_a_hidden_tab_loads_nothing(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, open_console(app, "runs") as page:
        await app.start("order", {"id": "0"}, key="order-0")
        await expect(page.get_by_test_id("run-row")).to_have_count(1)
        frames = await page.context.new_cdp_session(page)
        received: list[str] = []
        frames.on("Network.webSocketFrameReceived", lambda frame: received.append(frame["response"]["payloadData"]))
        await frames.send("Network.enable")
        await page.clock.install()
        show = "isHidden => {Object.defineProperty(document, 'hidden', {value: isHidden, configurable: true});" + (
            "document.dispatchEvent(new Event('visibilitychange'))}"
        )
        await page.evaluate(show, True)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await app.start("order", {"id": "1"}, key="order-1")
        await until(lambda: any("order-1" in text for text in received))
        await page.clock.run_for(60_000)
        assert asked == []
        await page.evaluate(show, False)
        await page.clock.run_for(2000)
        await expect(page.get_by_test_id("run-row")).to_have_count(2)


async def test_an_event_is_sent_to_a_run_from_its_flow(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, open_console(app, "flows/order") as page:
        await app.start("order", {"id": "1"}, key="order-1")
        await expect(page.get_by_test_id("run-row")).to_have_count(1)
        await page.get_by_test_id("send-event").click()
        await page.get_by_test_id("kind").fill("order.noted")
        await expect(page.get_by_test_id("event-run")).to_have_value("order-1")
        await page.get_by_test_id("action-confirm").click()
        await page.get_by_test_id("toast").get_by_role("link").click()
        await page.get_by_test_id("tab-events").click()
        await expect(page.locator("[data-testid=event][data-kind='order.noted']")).to_have_count(1)


async def test_the_slots_and_results_of_a_schedule(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.schedules.add("nightly", flow="order", input={"id": "n"}, cron="30 2 * * *", tz="Europe/Berlin")
        await app.schedules.add("mails", queue="mail", input="ada@example.org", every="1h")
        async with open_console(app, "schedules") as page:
            for name in ("nightly", "mails"):
                one = page.get_by_test_id("schedule").filter(has_text=name)
                await one.get_by_test_id("run-now").click()
                await page.get_by_test_id("action-confirm").click()
                await expect(page.get_by_test_id("toast").last).to_contain_text(f"{name} has started")
                await one.get_by_role("button").first.click()
                await expect(page.get_by_test_id("slot")).to_have_count(5)
                await expect(page.get_by_test_id("result")).to_have_count(1)
                if name == "nightly":
                    await expect(page.get_by_test_id("slot").first).to_contain_text("02:30")  # of Berlin


@job(queue="files")
async def export(name: str, ctx: Context) -> dict[str, Any]:
    blob = await ctx.blob.put(name, b"a;b", content_type="text/csv")
    return {"file": {"key": blob.key, "size": blob.size, "contentType": blob.content_type}}


async def test_a_blob_in_a_result_is_downloaded(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=[export], blob_url="memory:") as app, app.workers.background():
        await app.jobs.result(await app.enqueue("files", "reports/june.csv", key="export-1"))
        async with open_console(app, "jobs/export-1") as page:
            async with page.expect_download() as download:
                await page.get_by_test_id("blob").click()
            file = await download.value
            assert file.suggested_filename == "june.csv"
            assert (await file.path()).read_bytes() == b"a;b"
