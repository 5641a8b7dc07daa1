"""Actions that were clicked in no other module: what each would do is shown first, then it is done in the store."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from console_flows import HANDLERS
from console_pages import OpenConsole, take_picture
from playwright.async_api import Page, expect

from browser import needs_browser
from penstock import App, flow, step
from penstock.dags import DagBuilder, node
from penstock.errors import Permanent
from penstock.testing import until

pytestmark = needs_browser
BERLIN = ZoneInfo("Europe/Berlin")


def in_berlin(time: str) -> datetime:
    return datetime.fromisoformat(time).astimezone(BERLIN)


async def confirm(page: Page, says: str | re.Pattern[str] | None = None) -> None:
    """Confirm the open action; first it must say what would happen."""
    if says is not None:
        await expect(page.get_by_test_id("preview")).to_contain_text(says)
    await page.get_by_test_id("action-confirm").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)


@asynccontextmanager
async def visit(page: Page, path: str) -> AsyncIterator[Page]:
    """Go to another page of the console."""
    await page.goto(f"{page.url.partition('/console/')[0]}/console/{path}")
    yield page


async def test_a_queue_its_limits_its_keys_and_its_jobs(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app:
        await app.jobs.enqueue_many("press", [{"who": "ann"}] * 3 + [{"who": "bob"}])
        later = await app.enqueue("mail", "ada@example.org", delay="30d", key="later")
        await app.enqueue("mail", "bob@example.org", delay="30d", key="gone")
        async with open_console(app, "queues/press?state=waiting") as page:
            keys = page.get_by_test_id("key")
            await expect(keys).to_have_count(2)
            await expect(keys.first).to_contain_text(re.compile("ann.*3"))
            limits = page.get_by_test_id("limits")
            await expect(limits).to_contain_text("9/1h for each key")
            await page.get_by_test_id("change-limits").click()
            await page.get_by_test_id("limit-concurrency").fill("2")
            await page.get_by_test_id("limit-rate").fill("100/1m")
            await confirm(page, "Afterwards: 2 at once in each worker, 9 at once over all workers, 100/1m.")
            await expect(limits).to_contain_text("declared: 4")
            await expect(page.get_by_test_id("limits-changed")).to_be_visible()
            changed = (await app.queues.limits("press")).override
            assert changed is not None
            assert (changed.concurrency, changed.rate_limit) == (2, "100/1m")
            await take_picture(page, "queue-limits-light-1440")
            await page.get_by_test_id("change-limits").click()
            await page.get_by_test_id("limit-rate").fill("often")
            alert = page.get_by_role("dialog").get_by_role("alert")
            await page.get_by_test_id("action-confirm").click()
            await expect(alert).to_contain_text("100/1m")
            # The preview of the new value may come after the refusal, and must not hide it.
            await page.wait_for_timeout(500)
            await expect(alert).to_contain_text("100/1m")
            await page.get_by_role("button", name="Back").click()
            await page.get_by_test_id("reset-limits").click()
            await confirm(page, "9/1h for each key, as the handlers declare")
            await expect(page.get_by_test_id("limits-changed")).to_have_count(0)
            await page.get_by_test_id("pause-queue").click()
            await confirm(page, "0 running jobs would end as usual, 4 waiting jobs and those that come would stay")
            await expect(page.get_by_test_id("pause-queue")).to_have_text("Resume")
            await page.get_by_test_id("pause-queue").click()
            await confirm(page)
            await page.get_by_test_id("drain").click()
            await confirm(page, "4 jobs waiting now")
            await expect(page.get_by_test_id("job-row")).to_have_count(0)
            assert (await app.queues.counts("press"))["waiting"] == 0
            async with visit(page, "jobs/later"):
                await page.get_by_test_id("promote").click()
                await confirm(page, "1 job is due at once")
                await expect(page.get_by_test_id("job-state")).to_have_attribute("data-state", "waiting")
                assert (await app.jobs.get(later)).state == "waiting"
            async with visit(page, "jobs/gone"):
                await page.get_by_test_id("remove-job").click()
                await confirm(page, "1 job is removed")
                await expect(page.get_by_role("alert")).to_contain_text("unknown_job")


async def test_a_schedule_is_paused_run_and_shows_where_the_clocks_change(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        # Five slots two months apart are more than the seven months of a summer or a winter.
        await app.schedules.add("bills", flow="order", input={"id": "n"}, cron="0 3 1 */2 *", tz="Europe/Berlin")
        async with open_console(app, "schedules") as page:
            await page.get_by_test_id("pause-schedule").click()
            await confirm(page, "It would not start a run of order")
            await expect(page.get_by_test_id("resume-schedule")).to_be_visible()
            assert (await app.schedules.get("bills")).paused
            await page.get_by_test_id("resume-schedule").click()
            await confirm(page, "at its next slot")
            await expect(page.get_by_test_id("pause-schedule")).to_be_visible()
            await page.get_by_test_id("run-now").click()
            await confirm(page, "A run of order would start")
            await page.get_by_test_id("toast").last.get_by_role("link").click()
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "completed")
            await page.get_by_test_id("nav-schedules").click()
            await page.get_by_test_id("schedule").get_by_role("button").first.click()
            slots = page.get_by_test_id("slot")
            await expect(slots).to_have_count(5)
            times = [datetime.now(BERLIN), *map(in_berlin, await app.schedules.next_slots("bills", count=5))]
            changes = [after.utcoffset() != before.utcoffset() for before, after in pairwise(times)]
            assert any(changes)
            for n, is_changed in enumerate(changes):
                await expect(slots.nth(n).get_by_text("clocks go")).to_have_count(int(is_changed))
            await take_picture(page, "schedule-open-light-1440")


async def test_workers_with_other_code_are_marked(open_console: OpenConsole, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    async with (
        App(url, handlers=HANDLERS) as app,
        App(url, handlers=HANDLERS[:3]) as other,
        app.workers.background(name="one"),
        open_console(app, "workers") as page,
    ):
        await expect(page.get_by_test_id("worker")).to_have_count(1)
        await expect(page.get_by_test_id("drift")).to_have_count(0)
        async with other.workers.background(name="two"):
            await expect(page.get_by_test_id("drift")).to_contain_text("2 versions of the code")
            marked = page.get_by_test_id("worker").filter(has=page.locator(".error-text"))
            await expect(marked).to_have_count(1)
            await expect(marked).to_contain_text("one")  # the older one
            await take_picture(page, "workers-drift-light-1440")
            await page.get_by_test_id("nav-overview").click()
            await expect(page.get_by_test_id("attention")).to_contain_text("2 versions of the code run at once")


@node("weigh")
async def weigh(input: Any, ctx: Any) -> Any:
    if not await ctx.shared.get("scale"):
        raise Permanent("no scale")
    return 7


async def test_a_run_of_a_dag_is_retried_and_a_fork_and_a_replay_show_what_they_do(open_console: OpenConsole) -> None:
    dag = DagBuilder("parcel")
    dag.add("weigh", "weigh")
    dag.add("label", "weigh", after="weigh")
    async with App(":memory:", handlers=[weigh, *HANDLERS]) as app, app.workers.background():
        await app.dags.register(dag.build())
        await app.runs.wait(await app.dags.start("parcel", None, key="parcel-1"))
        async with open_console(app, "runs/parcel-1") as page:
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "failed")
            await app.state.set("scale", True)
            await page.get_by_test_id("retry").click()
            await confirm(page, "parcel-1.weigh.2")
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "completed")
            await page.get_by_test_id("replay").click()
            await confirm(page, "A new run starts.")
            await page.get_by_test_id("toast").last.get_by_role("link").click()
            await expect(page.get_by_test_id("run-id")).not_to_have_text("parcel-1")
            async with visit(page, "runs/parcel-1?tab=events"):
                await page.locator("[data-testid=event][data-kind='node.started']").first.click()
                await page.get_by_test_id("fork").click()
                await confirm(page, re.compile(r"A new run starts\.\s*\d events of this run are copied"))
                await page.get_by_test_id("toast").last.get_by_role("link").click()
                await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "completed")


async def test_a_wait_is_cancelled_and_an_answer_says_what_it_does(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.start("approval", {"id": 7}, key="approval-7")
        async with open_console(app, "waits") as page:
            await page.get_by_test_id("wait-row").get_by_role("link").click()
            await expect(page.get_by_test_id("preview")).to_contain_text("becomes resolved")
            async with visit(page, "runs/approval-7?step=approval"):
                await page.get_by_test_id("cancel-wait").click()
                await page.get_by_test_id("action-reason").fill("not needed")
                await confirm(page, "becomes cancelled")
                await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "failed")
        assert "not needed" in str((await app.runs.get("approval-7")).error)


async def test_every_action_on_the_runs_of_a_search(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        for n in range(2):
            await app.runs.wait(await app.start("order", {"id": str(n), "fails": True}, key=f"order-{n}"))
            await app.start("slow", 1.0, key=f"slow-{n}")

        async def act(kind: str, says: str) -> None:
            await page.get_by_test_id("bulk").click()
            await page.get_by_test_id(f"bulk-{kind}").click()
            await confirm(page, says)

        async def have(status: str, *ids: str) -> None:
            async def all_have() -> bool:
                return all([(await app.runs.get(id)).status == status for id in ids])

            await until(all_have)

        slow = ("slow-0", "slow-1")
        async with open_console(app, "runs?q=flow:slow") as page:
            await expect(page.get_by_test_id("run-row")).to_have_count(2)
            await act("pause", "2 runs would be paused")
            await have("paused", *slow)
            await act("resume", "2 runs would be resumed")
            await have("waiting", *slow)
            await act("cancel", "2 runs would be cancelled")
            await have("cancelled", *slow)
            await app.state.set("healthy", True)
            async with visit(page, "runs?q=status:failed"):
                await expect(page.get_by_test_id("run-row")).to_have_count(2)
                await act("retry", "2 runs would be retried")
                await have("completed", "order-0", "order-1")


async def test_what_changed_between_two_attempts_and_two_runs(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.runs.wait(await app.start("order", {"id": "7", "fails": True}, key="order-7"))
        await app.runs.wait(await app.start("order", {"id": "8"}, key="order-8"))
        async with open_console(app, "runs/order-7") as page:
            await expect(page.get_by_test_id("inspector")).to_contain_text("card of 7 was declined")
            await page.get_by_role("link", name="Edit the input and redrive").click()
            await page.get_by_test_id("action-input").fill('{"id": "7", "fails": false}')
            await confirm(page, "order-7.charge")
            await expect(page.get_by_test_id("letter")).to_have_count(0)
            await page.get_by_test_id("toast").last.get_by_role("link").click()
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "completed")
            await page.locator("[data-testid=node][data-node=charge]").click()
            changed = page.get_by_test_id("inspector").locator(".json.changed")
            await expect(page.get_by_test_id("inspector")).to_contain_text("1 changed")
            await expect(changed).to_contain_text("fails")
            await expect(changed).to_contain_text("false")
            async with visit(page, "runs/compare?a=order-7&b=order-8"):
                await page.get_by_test_id("compare-step").filter(has_text="charge").click()
                payloads = page.get_by_test_id("compare-payloads")
                await expect(payloads.locator(".json.changed")).to_have_count(1)  # the id: it is not failing any more
                await expect(payloads.locator(".json.changed")).to_contain_text('"8"')
                await take_picture(page, "compare-light-1440")


async def test_the_time_that_a_limit_holds_a_step(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app, app.workers.background():
        await app.result(await app.start("careful", "this test", key="careful-1"))
        async with open_console(app, "runs/careful-1") as page:
            bar = page.locator("[data-testid=lane][data-kind=step] .seg.k-limit")
            await expect(bar).to_have_count(1)
            await expect(bar).to_have_attribute("title", re.compile("held by a limit.*allows no more"))


def make_shop(version: str, last: str) -> list[Any]:
    """Return a flow whose second step has another name in each version."""

    @flow("shop", version=version, emits=["paid"])
    async def pay(ctx: Any) -> None:
        await ctx.wait.time("30d")

    @step(on="paid", name=last, flow="shop")
    async def deliver() -> None: ...

    return [pay, deliver]


async def test_a_run_is_drawn_in_its_own_version(open_console: OpenConsole, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    async with App(url, handlers=make_shop("1", "letter")) as old:
        await old.start("shop", key="shop-1")
    async with App(url, handlers=make_shop("2", "mail")) as new:
        await new.start("shop", key="shop-2")
        async with open_console(new, "runs/shop-1") as page:
            await expect(page.locator("[data-testid=node][data-node=letter]")).to_be_visible()
            await expect(page.locator("[data-testid=node][data-node=mail]")).to_have_count(0)
            await expect(page.get_by_test_id("earlier-version")).to_contain_text("version 1")
            async with visit(page, "runs/shop-2"):
                await expect(page.locator("[data-testid=node][data-node=mail]")).to_be_visible()
                await expect(page.get_by_test_id("earlier-version")).to_have_count(0)


async def test_alerts_are_checked_and_silenced(open_console: OpenConsole) -> None:
    settings = {"alerts": ["oldest_age > 1ms"]}
    async with App(":memory:", handlers=HANDLERS, **settings) as app:
        await app.enqueue("mail", "ada@example.org")
        async with open_console(app, "alerts") as page:
            await expect(page.get_by_test_id("rule")).to_have_text("oldest_age > 1ms")
            await expect(page.get_by_test_id("quiet")).to_be_visible()
            await page.get_by_test_id("check-alerts").click()
            alert = page.get_by_test_id("alert")
            await expect(alert).to_contain_text("mail")
            await expect(page.get_by_test_id("alert-change")).to_have_attribute("data-state", "fired")
            await page.get_by_test_id("silence-alert").click()
            await page.get_by_test_id("action-reason").fill("deploy")
            await confirm(page, "1 alert that fires now would be silent for 1h.")
            await expect(alert).to_contain_text("silenced")
            await expect(page.get_by_test_id("silence-row")).to_contain_text("deploy")
            assert [one.reason for one in await app.alerts.silences()] == ["deploy"]
            await take_picture(page, "alerts-light-1440")
            await page.get_by_test_id("end-silence").click()
            await confirm(page, "1 alert that fires now would be sent.")
            await expect(page.get_by_test_id("silence-row")).to_have_count(0)
            await page.get_by_test_id("nav-overview").click()
            await expect(page.get_by_test_id("attention")).to_contain_text("alert since")
            async with app.workers.background():
                await until(lambda: is_idle(app))
            await page.get_by_test_id("nav-alerts").click()
            await page.get_by_test_id("check-alerts").click()
            await expect(page.get_by_test_id("quiet")).to_be_visible()
            await expect(page.get_by_test_id("alert-change").first).to_have_attribute("data-state", "resolved")
            await page.get_by_test_id("test-alerts").click()
            await expect(page.get_by_test_id("toast").last).to_contain_text("there is no webhook to test")


async def is_idle(app: App) -> bool:
    return not (await app.queues.counts("mail"))["waiting"]
