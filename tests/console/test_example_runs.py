"""The example shop in the console: the pictures of the README and of docs/console.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from console_pages import ROOT, OpenConsole, take_picture
from playwright.async_api import expect

from browser import needs_browser
from penstock import App

pytestmark = needs_browser
SHOP = ROOT / "examples" / "shop" / "workers"
LINES = [{"sku": "lamp", "quantity": 2, "price": 1900}, {"sku": "bulb", "quantity": 4, "price": 450}]


@pytest.mark.spec("003-9.6", "003-12.6")
async def test_the_shop(open_console: OpenConsole, tmp_path: Path) -> None:
    async with App(f"sqlite:///{tmp_path}/shop.db", SHOP) as app, app.workers.background():
        for name, deliverable in (("order-1001", True), ("order-1002", False)):
            order = {"id": name, "customer": "Ada", "deliverable": deliverable, "lines": LINES}
            await app.start("shop", order, key=name)
        for name in ("order-1001", "order-1002"):
            await app.runs.wait(name)
        async with open_console(app, "runs/order-1002?step=ship") as page:
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "compensated")
            await expect(page.get_by_test_id("node")).to_have_count(7)
            await expect(page.locator("[data-testid=lane][data-kind=attempt]")).to_have_count(3)
            await expect(page.get_by_test_id("step-error")).to_contain_text("no carrier delivers order")
            widths = await page.eval_on_selector_all(".lane.attempt .seg", "all => all.map(one => one.clientWidth)")
            assert max(widths) > 20  # the bars are drawn at once, not with the next tick of the clock
            await take_picture(page, "shop-light-1440")
            await page.get_by_test_id("theme").click()
            await take_picture(page, "shop-dark-1440")
            await page.get_by_test_id("nav-flows").click()
            await page.get_by_test_id("flow").filter(has_text="shop").click()
            await expect(page.get_by_test_id("grid").get_by_role("link")).to_have_count(14)
            await take_picture(page, "flow-dark-1440")
