"""The run page: graph, timeline, events, inspector, time travel and every action, live."""

from __future__ import annotations

import re

from console_flows import HANDLERS
from console_pages import OpenConsole, take_picture
from playwright.async_api import Page, expect

from browser import needs_browser
from penstock import App

pytestmark = needs_browser


async def confirm(page: Page) -> None:
    await page.get_by_test_id("action-confirm").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_failed_run_is_understood_and_retried(open_console: OpenConsole, url: str) -> None:
    """The main path, on every store: see the run fail live, read why, retry it, see it complete."""
    async with App(url, handlers=HANDLERS) as app, open_console(app, "runs") as page:
        await expect(page.get_by_test_id("empty")).to_be_visible()
        async with app.workers.background():
            await app.start("order", {"id": "7", "fails": True}, key="order-7")
            row = page.get_by_test_id("run-row")
            await expect(row).to_contain_text("failed")
            await row.get_by_role("link", name="order-7").click()
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "failed")
            node = page.locator("[data-testid=node][data-node=charge]")
            await expect(node).to_have_attribute("data-state", "failed")
            await node.click()
            await expect(page.get_by_test_id("step-error")).to_contain_text("card of 7 was declined")
            await expect(page).to_have_url(f"{page.url.partition('?')[0]}?step=charge")
            await app.state.set("healthy", True)
            await page.get_by_test_id("retry").click()
            await expect(page.get_by_test_id("preview")).to_contain_text("order-7.charge")
            await confirm(page)
            await expect(page.get_by_test_id("toast").first).to_contain_text("run again")
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "completed")
            await expect(page.locator("[data-testid=node][data-node=ship]")).to_have_attribute(
                "data-state", "completed"
            )
            await expect(page.get_by_test_id("output")).to_have_count(2)
            await expect(page.get_by_test_id("output").first).to_have_text("paid with card")
            await expect(page.get_by_test_id("inspector")).to_contain_text("redrive 1, attempt 1")


async def test_time_travel_and_one_selection(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.result(await app.start("order", {"id": "7"}, key="order-7"))
        async with open_console(app, "runs/order-7") as page:
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "completed")
            await expect(page.get_by_test_id("lane")).not_to_have_count(0)
            await take_picture(page, "run-light-1440")
            total = int((await page.get_by_test_id("travel").inner_text()).split()[0])
            await page.get_by_test_id("slider").fill("2")
            await expect(page).to_have_url(f"{page.url.partition('?')[0]}?at=2")
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "running")
            await expect(page.locator("[data-testid=node][data-node=accept]")).to_have_attribute(
                "data-state", "running"
            )
            assert await page.locator("[data-testid=node][data-node=ship]").get_attribute("data-state") is None
            await page.get_by_test_id("tab-events").click()
            await expect(page.get_by_test_id("event")).to_have_count(2)
            await page.reload()
            await expect(page.get_by_test_id("event")).to_have_count(2)
            await page.get_by_test_id("event").nth(1).click()
            await expect(page.get_by_test_id("inspector")).to_contain_text("step.started")
            await page.keyboard.press("j")
            await expect(page.get_by_test_id("event")).to_have_count(3)
            await page.get_by_test_id("now").click()
            await expect(page.get_by_test_id("event")).to_have_count(total)
            await page.get_by_test_id("event-filter").fill("completed")
            await expect(page.locator("[data-testid=event][data-kind='flow.completed']")).to_have_count(1)
            await page.get_by_test_id("play").click()
            await expect(page.get_by_test_id("now")).to_be_visible()


async def test_pause_resume_and_cancel(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.start("slow", 1.0, key="slow-1")
        async with open_console(app, "runs/slow-1") as page:
            status = page.get_by_test_id("run-status")
            await expect(status).to_have_attribute("data-state", "waiting")
            await expect(page.get_by_test_id("why").first).to_contain_text("slow")
            await page.get_by_test_id("pause").click()
            await page.get_by_test_id("action-reason").fill("look first")
            await confirm(page)
            await expect(status).to_have_attribute("data-state", "paused")
            await page.get_by_test_id("resume").click()
            await confirm(page)
            await expect(status).to_have_attribute("data-state", "waiting")
            await page.get_by_test_id("cancel").click()
            await expect(page.get_by_test_id("preview")).to_contain_text("cancelled")
            await confirm(page)
            await expect(status).to_have_attribute("data-state", "cancelled")
            await expect(page.get_by_test_id("cancel")).to_have_count(0)
        assert (await app.runs.get("slow-1")).status == "cancelled"


async def test_a_wait_is_resolved_a_run_replayed_and_forked(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.start("slow", 1.0, key="slow-1")
        async with open_console(app, "runs/slow-1?step=slow") as page:
            await page.get_by_test_id("resolve").click()
            await confirm(page)
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "completed")
            await page.get_by_test_id("replay").click()
            await page.get_by_test_id("action-input").fill("{")
            await expect(page.get_by_test_id("action-confirm")).to_be_disabled()
            await page.get_by_test_id("action-input").fill("2.5")
            await confirm(page)
            await page.get_by_test_id("toast").get_by_role("link").click()
            await expect(page.get_by_test_id("run-id")).not_to_have_text("slow-1")
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "waiting")
            new = await page.get_by_test_id("run-id").inner_text()
            assert (await app.runs.get(new)).input == 2.5
            await page.get_by_test_id("tab-events").click()
            await page.get_by_test_id("event").first.click()
            await page.get_by_test_id("fork").click()
            await confirm(page)
            await page.get_by_test_id("toast").get_by_role("link").last.click()
            await expect(page.get_by_test_id("run-id")).not_to_have_text(new)


async def test_a_refused_action_is_a_message_with_its_code(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.start("slow", 1.0, key="slow-1")
        async with open_console(app, "runs/slow-1") as page:
            await page.get_by_test_id("cancel").click()
            await expect(page.get_by_test_id("preview")).to_be_visible()
            await app.runs.cancel("slow-1")
            await page.get_by_test_id("action-confirm").click()
            await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("[")
            await expect(page.get_by_test_id("toast")).to_have_attribute("data-state", "error")


async def test_an_unknown_run(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, open_console(app, "runs/nothing") as page:
        await expect(page.get_by_test_id("run-error")).to_contain_text("unknown_run")


async def test_children_open_in_place(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.result(await app.start("family", 3, key="family-1"))
        async with open_console(app, "runs/family-1") as page:
            lanes = page.get_by_test_id("lane")
            await expect(lanes).to_have_count(2)  # the step and the run that it called
            await page.get_by_test_id("open-child").click()
            await expect(lanes).to_have_count(4)  # the child's step and its durable call
            await expect(lanes.last).to_contain_text("measure")
            await page.get_by_test_id("slider").fill("2")  # before the call
            await expect(lanes).to_have_count(1)
            await page.get_by_test_id("now").click()
            await page.locator("[data-testid=lane][data-kind=child]").get_by_role("link").click()
            await expect(page.get_by_role("navigation", name="Breadcrumb")).to_contain_text("family-1")


async def test_attempts_are_apart_in_timeline_output_and_log(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.result(await app.start("writer", "once", key="writer-1"))
        async with open_console(app, "runs/writer-1?step=writer") as page:
            await expect(page.locator("[data-testid=lane][data-kind=attempt]")).to_have_count(2)
            for attempt in (1, 2):
                output = page.locator(f"[data-testid=output][data-attempt='{attempt}']")
                await expect(output).to_have_text(f"once attempt {attempt}")
                await expect(page.get_by_test_id("logs")).to_contain_text(f"Attempt {attempt}")
            await page.reload()
            await expect(page.locator("[data-testid=output]")).to_have_count(2)
            await expect(page.get_by_test_id("source")).to_have_attribute(
                "href", re.compile(r"vscode://file/.*\.py:\d+")
            )


async def test_a_fan_out_is_one_node_and_shows_the_instance_that_failed(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.runs.wait(await app.start("pages", 40, key="pages-40"))
        async with open_console(app, "runs/pages-40") as page:
            node = page.locator("[data-testid=node][data-node=read_page]")
            await expect(page.get_by_test_id("node")).to_have_count(2)
            await expect(node).to_contain_text("39 completed")
            await node.click()
            await expect(page.get_by_test_id("step-error")).to_contain_text("page 13 cannot be read")
            await expect(page.get_by_test_id("instance")).to_have_count(40)
            await expect(page.get_by_test_id("instance").first).to_have_attribute("data-state", "failed")
            box = await page.get_by_role("region", name="Timeline").bounding_box()
            assert box is not None
            assert box["height"] < 500  # forty rows do not push the panes apart
            lanes = page.get_by_test_id("lane")
            await expect(lanes).to_have_count(2)
            await expect(lanes.last).to_contain_text("read_page ×40")
            await page.get_by_test_id("open-group").click()
            await expect(lanes.nth(2)).to_contain_text("read_page")


async def test_a_step_is_run_again_and_a_wait_ended_where_the_page_says_why(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.start("slow", 1.0, key="slow-1")
        async with open_console(app, "runs/slow-1") as page:
            await expect(page.get_by_test_id("why")).not_to_contain_text("penstock")  # the action is a button
            await page.get_by_test_id("why-act").click()
            await confirm(page)
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "completed")
            await page.locator("[data-testid=node]").first.click()
            await page.get_by_test_id("from-step").click()
            await confirm(page)
            await page.get_by_test_id("toast").get_by_role("link").last.click()
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "waiting")
