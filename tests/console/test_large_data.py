"""Much data: the page draws what is seen. Rows, nodes and memory are asserted; times are measured, and written to a file.

`.cache/screenshots/figures.json` has the times of the last run. docs/console.md quotes those of one machine.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from console_flows import HANDLERS
from console_pages import PICTURES, OpenConsole, take_picture
from playwright.async_api import Page, expect

from browser import needs_browser
from penstock import App, Context, flow, step
from penstock.dags import DagBuilder, node
from penstock.testing import until

pytestmark = [needs_browser, pytest.mark.xdist_group("console-large")]
RUNS, EVENTS, PART, NODES = 10_000, 50_000, 5_000, 1_000
MAX_DOM, MAX_HEAP_MB = 6_000, 400
# Scrolls an element in steps, one for each frame, and returns the frames a second.
SCROLL = """async ([selector, by]) => {
  const box = document.querySelector(selector), start = performance.now()
  let frames = 0
  await new Promise(done => {
    const next = () => { box.scrollTop += by; frames++ < 90 ? requestAnimationFrame(next) : done() }
    requestAnimationFrame(next)
  })
  return Math.round(frames / ((performance.now() - start) / 1000))
}"""


# Moves a graph by a step in each frame, as a wheel does, and returns the frames a second.
PAN = SCROLL.replace(
    "box.scrollTop += by", "box.dispatchEvent(new WheelEvent('wheel', {deltaX: by, cancelable: true}))"
)


@flow("chatty", emits=["part.asked"])
async def chatty(parts: int, ctx: Context) -> None:
    for n in range(parts):
        ctx.emit("part.asked", n)


@step(on="part.asked", mode="each", emits=["line.read"])
async def read_part(part: int, ctx: Context) -> None:
    for n in range(PART):
        ctx.emit("line.read", {"part": part, "n": n})


@node("pass_on")
async def pass_on(input: Any) -> Any:
    return None


def note(**figures: Any) -> None:
    """Keep measured figures as output of the tests."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    file = PICTURES / "figures.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**known, **figures}, indent=2))


async def check_size(page: Page) -> dict[str, int]:
    """Return the size of the page; fail if it grew with the data."""
    nodes = await page.evaluate("document.querySelectorAll('*').length")
    heap = await page.evaluate("Math.round(performance.memory.usedJSHeapSize / 1e6)")
    assert nodes < MAX_DOM
    assert heap < MAX_HEAP_MB
    return {"dom": nodes, "heapMb": heap}


async def test_ten_thousand_runs(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=HANDLERS) as app:
        for start in range(0, RUNS, 500):
            await asyncio.gather(
                *(app.start("order", {"id": str(n)}, key=f"order-{n}") for n in range(start, start + 500))
            )
        async with open_console(app, "runs") as page:
            rows = page.get_by_test_id("run-row")
            await expect(rows).to_have_count(100)
            await page.get_by_test_id("nav-overview").click()
            await expect(page.get_by_test_id("verdict")).to_be_visible()
            took = await page.evaluate(
                """async () => {
                  const start = performance.now()
                  document.querySelector('[data-testid=nav-runs]').click()
                  while (!document.querySelector('main:has([data-testid=search]) [data-testid=run-row]')) await new Promise(requestAnimationFrame)
                  return Math.round(performance.now() - start)
                }"""
            )
            shown = page.get_by_test_id("shown")
            while await shown.inner_text() != f"{RUNS:,} runs shown":  # older ones load at the end of the list
                before = await shown.inner_text()
                await page.evaluate("document.querySelector('main').scrollTo(0, 1e9)")
                await expect(shown).not_to_have_text(before)
            assert await rows.count() < 200
            await page.evaluate("document.querySelector('main').scrollTo(0, 1e9)")
            await expect(rows.last).to_be_in_viewport()
            fps = await page.evaluate(SCROLL, ["main", -400])
            assert await rows.count() < 200
            note(runs={"listed": RUNS, "firstRowsMs": took, "scrollFps": fps, **await check_size(page)})
            await expect(page.get_by_role("button", name="running 100+")).to_be_visible()


async def test_a_run_of_fifty_thousand_events(open_console: OpenConsole) -> None:
    async with App(":memory:", handlers=[chatty, read_part]) as app, app.workers.background():
        await app.runs.wait(await app.start("chatty", EVENTS // PART, key="chatty-1"), timeout=300)
        async with open_console(app, "runs/chatty-1?tab=events") as page:
            page.set_default_timeout(120_000)
            await expect(page.get_by_test_id("travel")).to_contain_text("50,", timeout=60_000)
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "completed")
            fps = await page.evaluate(SCROLL, ["[data-testid=event-log]", 400])
            assert await page.get_by_test_id("event").count() < 100
            await page.get_by_test_id("slider").fill("25000")
            await expect(page.get_by_test_id("travel")).to_contain_text("event 25,000 of")
            await expect(page.get_by_test_id("run-status")).to_have_attribute("data-state", "running")
            note(events={"events": EVENTS, "scrollFps": fps, **await check_size(page)})


async def test_a_graph_of_a_thousand_nodes(open_console: OpenConsole) -> None:
    builder = DagBuilder("wide")
    for n in range(NODES):
        builder.add(f"node-{n}", "pass_on", **({"after": f"node-{(n - 1) // 3}"} if n else {}))
    async with App(":memory:", handlers=[pass_on]) as app:
        await app.dags.register(builder.build())
        async with open_console(app, "flows/wide?dag=1") as page:
            await expect(page.get_by_text(f"This graph has {NODES} nodes.")).to_be_visible()
            took = await page.evaluate(
                """async () => {
                  const start = performance.now()
                  document.querySelector('[data-testid=draw]').click()
                  while (!document.querySelector('[data-testid=node]')) await new Promise(requestAnimationFrame)
                  return Math.round(performance.now() - start)
                }"""
            )
            await page.get_by_role("button", name="Zoom in").click()
            fps = await page.evaluate(PAN, ["[data-testid=graph]", 25])
            note(graph={"nodes": NODES, "layoutAndDrawMs": took, "panFps": fps, **await check_size(page)})
            await take_picture(page, "graph-1000-light-1440")


async def test_a_thousand_events_a_second(open_console: OpenConsole) -> None:
    """Every event arrives, the newest 5,000 are kept, and only those that are seen are drawn."""
    at_once, paced = 3_000, 3_000
    async with App(":memory:", handlers=HANDLERS) as app, open_console(app, "events?kinds=flood.sent") as page:
        page.set_default_timeout(120_000)
        await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "Live")
        await app.emit("flood.sent", {"n": -1})
        await expect(page.get_by_test_id("tail-row")).to_have_count(1)
        await send(app, range(at_once))
        flood = asyncio.create_task(send(app, range(at_once, at_once + paced), pause=0.1))
        await expect(page.get_by_test_id("tail-row").last).not_to_contain_text(f'"n":{at_once - 1}')
        fps = await page.evaluate(SCROLL, ["[data-testid=tail]", -30])
        rate = await flood
        await page.get_by_role("button", name="To the end").click()
        last = page.get_by_test_id("tail-row").last
        await expect(last).to_contain_text(f'"n":{at_once + paced - 1}', timeout=60_000)
        assert await page.get_by_test_id("tail-row").count() < 100
        await expect(page.get_by_test_id("rate")).to_contain_text("5,000 kept, 1,001 older ones left")
        note(tail={"events": at_once + paced, "sentPerSecond": rate, "scrollFps": fps, **await check_size(page)})


async def send(app: App, numbers: range, *, pause: float = 0) -> int:
    """Emit events in batches of 100, with a pause after each. Return how many a second."""
    clock = asyncio.get_running_loop()
    began = clock.time()
    for start in numbers[::100]:
        await asyncio.gather(*(app.emit("flood.sent", {"n": n}) for n in range(start, start + 100)))
        await asyncio.sleep(max(0, pause - (clock.time() - began) % pause) if pause else 0)
    return round(len(numbers) / (clock.time() - began))


async def test_from_event_to_pixel(open_console: OpenConsole) -> None:
    """The time from the commit of an event to the frame that shows it, measured one event after the other."""
    async with App(":memory:", handlers=HANDLERS) as app, open_console(app, "events?kinds=ping.sent") as page:
        await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "Live")
        await page.evaluate(
            """() => {
              window.seen = {}
              new MutationObserver(() => {
                for (const row of document.querySelectorAll('[data-testid=tail-row]')) {
                  const n = /"n":(\\d+)/.exec(row.textContent)?.[1]
                  if (n && !(n in window.seen)) window.seen[n] = Date.now()
                }
              }).observe(document.body, {subtree: true, childList: true, characterData: true})
            }"""
        )
        number = 100
        for n in range(number):
            await app.emit("ping.sent", {"n": n})
            await page.evaluate(
                "async n => { while (!(n in window.seen)) await new Promise(requestAnimationFrame) }", str(n)
            )
        seen = await page.evaluate("window.seen")

        async def committed() -> dict[str, int]:
            rows = await app.events.read("nq:global", limit=1000)
            return {str(row.data["n"]): int(row.id.partition("-")[0]) for row in rows if row.kind == "ping.sent"}

        at = await until(committed)
        waits = sorted(seen[n] - at[n] for n in seen)
        assert len(waits) == number
        note(pixel={"events": number, "p50Ms": waits[number // 2], "p99Ms": waits[number - 2]})
