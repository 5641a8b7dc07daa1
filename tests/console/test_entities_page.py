"""Entities: types with counts, the state chart, one entity with its history and its past, and its actions."""

from __future__ import annotations

from typing import Any

from console_pages import NARROW, OpenConsole, take_picture
from playwright.async_api import expect

from browser import needs_browser
from penstock import App
from penstock.entities import States, Transition, entity

pytestmark = needs_browser


def note_payment(door: dict[str, Any], payload: dict[str, Any]) -> None:
    door["paid"] = door.get("paid", 0) + payload["amount"]


@entity("plan")
class Plan:
    states = States("trial", idles=["trial", "active"], finals=["ended"])
    transitions = (
        Transition("paid", ["trial", "active"], "active", actions=[note_payment]),
        Transition("ended", "active", "ended"),
    )


async def test_entities_their_chart_and_their_history(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=[Plan]) as app, app.workers.background():
        for n in range(3):
            await app.entities.create(f"plan:{n}", {"name": f"plan {n}"}, type="plan")
        for _ in range(2):
            await app.entities.result(await app.entities.emit("plan:1", "paid", {"amount": 9}))
        async with open_console(app, "entities") as page:
            kind = page.get_by_test_id("entity-type")
            await expect(kind).to_contain_text("3 entities")
            await kind.click()
            await expect(page.locator("[data-node=active]")).to_contain_text("1 here")
            await expect(page.locator("[data-node=active]")).to_contain_text("↻ paid")
            await take_picture(page, "entity-type-light-1440")
            await page.get_by_test_id("state-filter").filter(has_text="active").click()
            await expect(page.get_by_test_id("entity-row")).to_have_count(1)
            await page.get_by_test_id("entity-row").get_by_role("link").click()
            await expect(page.get_by_test_id("urn")).to_have_text("plan:1")
            await expect(page.get_by_test_id("history")).to_have_count(2)
            await expect(page.locator("[data-node=active]")).to_have_attribute("data-state", "current")
            await page.get_by_test_id("history").last.click()  # the first payment
            await expect(page.get_by_test_id("past")).to_be_visible()
            await expect(page.get_by_text("9", exact=True).first).to_be_visible()
            await take_picture(page, "entity-light-1440")
            await page.get_by_role("button", name="Back to now").click()
            await page.get_by_test_id("pause").click()
            await page.get_by_test_id("action-confirm").click()
            await page.get_by_test_id("resume").click()
            await page.get_by_test_id("action-confirm").click()
            await page.get_by_test_id("emit").click()
            await page.get_by_test_id("event-name").select_option("ended")
            await page.get_by_test_id("action-confirm").click()
            await expect(page.get_by_test_id("entity-state")).to_have_attribute("data-state", "ended")
        assert (await app.entities.get("plan:1")).status == "ended"


async def test_an_event_creates_an_entity_on_a_phone(open_console: OpenConsole) -> None:
    async with (
        App(":memory:", handlers=[Plan]) as app,
        app.workers.background(),
        open_console(app, "entities/plan", size=NARROW) as page,
    ):
        await page.get_by_test_id("emit").click()
        await page.get_by_test_id("urn").fill("plan:9")
        await page.get_by_test_id("action-input").fill('{"amount": 4}')
        await page.get_by_test_id("action-confirm").click()
        await page.get_by_test_id("toast").get_by_role("link").click()
        await expect(page.get_by_test_id("entity-state")).to_have_attribute("data-state", "active")
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
