"""TestApp: flows in memory, with skipped time and planned crashes."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import Backoff, Context, Node, Permanent, RetryPolicy, flow, job, step
from penstock.core.errors import BadArgument, RunFailed, SchemaViolation, UnknownFlow, UnknownQueue
from penstock.testing import FakeClock, TestApp, auto_clock
from penstock.testing.snapshots import update_snapshots
from penstock.worker import polling

DAY_MS = 86_400_000
DAILY = RetryPolicy(3, Backoff("fixed", DAY_MS, jitter=False))


@flow("shop", emits=["order.paid"])
async def charge(order: dict[str, Any], ctx: Context) -> str:
    ctx.emit("order.paid", {"id": order["id"], "card_token": "tok-1"})
    return f"charged {order['id']}"


@step(on="order.paid", emits=["order.shipped"])
def ship(order: dict[str, Any], ctx: Any) -> str:
    ctx.emit("order.shipped", {"id": order["id"]})
    return f"shipped {order['id']}"


async def test_a_flow_from_end_to_end() -> None:
    async with TestApp(handlers=[charge, ship]) as app:
        run = await app.run_flow("shop", {"id": 7})
        assert run.status == "completed"
        assert await app.step_result(run.id, "ship") == "shipped 7"
        assert await app.emitted(run.id, "order.shipped") == [{"id": 7}]
        assert [kind for kind, _ in await app.emitted(run.id)] == ["order.paid", "order.shipped"]


async def test_tests_see_real_values() -> None:
    async with TestApp(handlers=[charge, ship]) as app:
        run = await app.run_flow(charge, {"id": 7})
        assert await app.emitted(run.id, "order.paid") == [{"id": 7, "card_token": "tok-1"}]
    async with TestApp(handlers=[charge, ship], redact=("token",)) as app:
        run = await app.run_flow(charge, {"id": 7})
        assert await app.emitted(run.id, "order.paid") == [{"id": 7, "card_token": "[redacted]"}]


async def test_days_of_backoff_take_milliseconds() -> None:
    seen: list[int] = []

    @flow("stubborn", retry=DAILY)
    async def stubborn(ctx: Context) -> str:
        seen.append(app.time.now_ms())
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return "at last"

    async with TestApp(handlers=[stubborn]) as app:
        run = await app.run_flow(stubborn)  # two days by the machine's clock would outlast the test's own limit
        assert run.status == "completed"
        assert [b - a for a, b in itertools.pairwise(seen)] == [DAY_MS, DAY_MS]


async def test_a_crash_before_the_handler() -> None:
    ran: list[int] = []

    @flow("fragile")
    async def fragile(ctx: Context) -> int:
        ran.append(ctx.attempt)
        return ctx.attempt

    async with TestApp(handlers=[fragile], lease="1h") as app:
        app.crash("fragile")
        start = app.time.now_ms()
        run = await app.run_flow(fragile)
        assert (run.status, ran) == ("completed", [2])
        assert app.time.now_ms() == start + 3_600_000


async def test_a_crash_after_the_handler_records_nothing() -> None:
    ran: list[int] = []

    @flow("fragile", emits=["done"])
    async def fragile(ctx: Context) -> int:
        ran.append(ctx.attempt)
        await ctx.state.set("by", ctx.attempt)
        ctx.emit("done", ctx.attempt)
        return ctx.attempt

    async with TestApp(handlers=[fragile]) as app:
        app.crash("fragile", after=True)
        run = await app.run_flow(fragile)
        assert ran == [1, 2]
        assert run.result == 2
        assert await app.emitted(run.id, "done") == [2]


async def test_a_crash_of_a_job_and_of_a_later_attempt() -> None:
    ran: list[int] = []

    @job(queue="mail", name="send", retry=RetryPolicy(5, Backoff("fixed", 1000)))
    async def send(ctx: Context) -> int:
        ran.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ConnectionError("no")
        return ctx.attempt

    async with TestApp(handlers=[send]) as app:
        app.crash("send", attempt=2)
        assert await app.run_job("mail", name="send") == 3
        assert ran == [1, 3]


async def test_planned_crashes_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    @flow("fragile")
    async def fragile() -> None: ...

    async with TestApp(handlers=[fragile]) as app:
        app.crash("fragile")
        app.crash("fragile", attempt=2, after=True)
        await app.run_flow(fragile)
    assert caplog.text == ""
    assert logging.getLogger("penstock.worker").filters == []


async def test_a_job_that_fails() -> None:
    @job(queue="mail")
    async def send() -> None:
        raise Permanent("no such address")

    async with TestApp(handlers=[send]) as app:
        with pytest.raises(RunFailed, match="no such address"):
            await app.run_job("mail", {"to": "nobody"})


async def test_an_invalid_input_is_refused_at_the_start() -> None:
    from dataclasses import dataclass

    @dataclass
    class Order:
        id: int

    async def take(order: Any) -> None: ...

    take.__annotations__["order"] = Order
    take = flow("typed")(take)
    async with TestApp(handlers=[take]) as app:
        with pytest.raises(SchemaViolation, match=r"does not match Order"):
            await app.run_flow("typed", {"id": "seven"})
        assert await app.runs.list() == []


async def test_compensation() -> None:
    undone: list[Any] = []

    @flow("trip", emits=["booked"], compensation="cancel_hotel")
    async def book_hotel(ctx: Context) -> str:
        ctx.emit("booked")
        return "room 7"

    @step(flow="trip")
    async def cancel_hotel(what: Any) -> None:
        undone.append(what)

    @step(on="booked")
    async def book_flight() -> None:
        raise Permanent("no seats")

    async with TestApp(handlers=[book_hotel, cancel_hotel, book_flight]) as app:
        run = await app.run_flow(book_hotel)
        assert run.status == "compensated"
        assert len(undone) == 1
        with pytest.raises(AssertionError, match=r"step 'book_flight' of run .* is failed: no seats"):
            await app.step_result(run.id, "book_flight")
        with pytest.raises(AssertionError, match="never started"):
            await app.step_result(run.id, "nonsense")


async def test_two_flows_in_one_app() -> None:
    @flow("one")
    async def one() -> int:
        return 1

    @flow("two", retry=DAILY)
    async def two(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ConnectionError
        return 2

    async with TestApp(handlers=[one, two]) as app:
        second = await app.start(two)
        first = await app.run_flow(one)
        assert (first.result, (await app.runs.get(second)).status) == (1, "running")
        assert (await app.finish(second)).result == 2


async def test_a_delayed_start() -> None:
    async with TestApp(handlers=[charge, ship]) as app:
        start = app.time.now_ms()
        run = await app.start(charge, {"id": 7}, delay="12h")
        await app.advance("11h")
        assert (await app.runs.get(run)).steps == {}
        await app.advance("1h")
        assert (await app.runs.get(run)).status == "completed"
        assert app.time.now_ms() == start + 12 * 3_600_000


async def test_schedules_fire_at_their_own_times() -> None:
    fired: list[int] = []

    @flow("nightly")
    async def nightly() -> None:
        fired.append(app.time.now_ms())

    clock = FakeClock(round(datetime(2024, 5, 1, tzinfo=UTC).timestamp() * 1000))
    async with TestApp(handlers=[nightly], clock=clock) as app:
        await app.schedules.add("nightly", flow=nightly, cron="0 3 * * *")
        await app.advance("3d")
        hours = [datetime.fromtimestamp(ms / 1000, UTC) for ms in fired]
        assert [(moment.day, moment.hour) for moment in hours] == [(1, 3), (2, 3), (3, 3)]
        assert len(await app.runs.list()) == 3


async def test_advance_stops_at_every_due_retry() -> None:
    tried: list[int] = []

    @flow("hourly", retry=RetryPolicy(100, Backoff("fixed", 3_600_000, jitter=False)))
    async def hourly() -> None:
        tried.append(app.time.now_ms())
        raise ConnectionError

    async with TestApp(handlers=[hourly]) as app:
        start = app.time.now_ms()
        await app.start(hourly)
        await app.advance("5h")
        assert [(ms - start) // 3_600_000 for ms in tried] == [0, 1, 2, 3, 4, 5]


async def test_a_worker_that_polls_all_the_time_does_not_block_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next retry is due within a moment while the clock stands still, so a claim is nearly always in flight."""

    @job(queue="mail", retry={"attempts": 3, "backoff": {"delay": "1ms", "type": "fixed"}})
    async def send(input: Any, ctx: Any) -> int:
        if ctx.attempt < 3:
            raise TimeoutError("slow")
        return app.time.now_ms()

    async with TestApp(handlers=[send]) as app:
        claim = app.store.claim

        async def slow(ask: Any) -> Any:
            found = await claim(ask)
            await asyncio.sleep(0.005)
            return found

        monkeypatch.setattr(app.store, "claim", slow)
        monkeypatch.setattr(polling.ClaimPoller, "_idle_s", lambda _self, _due: 0.0)
        ids = await app.jobs.enqueue_many("mail", range(5))
        start = app.time.now_ms()
        await app.advance("1h")
        assert [await app.jobs.result(id) - start for id in ids] == [2] * 5


async def test_rate_limited_jobs_run_at_their_own_times() -> None:
    @job(queue="mail", rate_limit="1/1h")
    async def send() -> int:
        return app.time.now_ms()

    async with TestApp(handlers=[send]) as app:
        start = app.time.now_ms()
        ids = await app.jobs.enqueue_many("mail", [1, 2, 3])
        await app.run_job("mail", 4)
        sent = [(await app.jobs.result(id) - start) / 3_600_000 for id in ids]
        assert sent == [0, 1, 2]


async def test_the_timeout_names_a_schedule_that_keeps_firing(monkeypatch: pytest.MonkeyPatch) -> None:
    @flow("patient")
    async def patient(ctx: Context) -> None:
        await ctx.wait.time("10d")

    async with TestApp(handlers=[patient, charge, ship]) as app:
        await app.schedules.add("often", flow=charge, input={"id": 1}, every="1s")
        monkeypatch.setattr(auto_clock, "MENTION_SCHEDULE_AFTER_FIRINGS", 1)
        monkeypatch.setattr(auto_clock, "TIMEOUT_S", 1)
        with pytest.raises(
            AssertionError, match=r"schedule 'often' fired \d+ times in that time.*schedules.pause\('often'\)"
        ):
            await app.run_flow("patient")


async def test_a_paused_queue_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_clock, "TIMEOUT_S", 3600)  # waiting for it would exceed the test's own limit
    async with TestApp(handlers=[charge, ship]) as app:
        await app.schedules.add("often", flow=charge, input={"id": 1}, every="1s")
        await app.queues.pause("default")
        with pytest.raises(
            AssertionError, match=r"queue 'default' has 1 waiting, and it is paused; .*resume\('default'\)"
        ):
            await app.run_flow("shop", {"id": 7})
        await app.schedules.remove("often")
        await app.queues.resume("default")
        run = (await app.runs.list())[0].id
        assert (await app.finish(run)).status == "completed"


async def test_a_queue_without_a_handler_is_named() -> None:
    async with TestApp(handlers=[charge, ship]) as app:
        with pytest.raises(AssertionError, match="queue 'mail' has 1 waiting, and no handler of this app works on it"):
            await app.run_job("mail", {})


async def test_waiting_has_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()

    @flow("stuck")
    async def stuck() -> None:
        await release.wait()

    monkeypatch.setattr(auto_clock, "TIMEOUT_S", 0.1)
    async with TestApp(handlers=[stuck]) as app:
        with pytest.raises(AssertionError, match=r"run r has not ended within 0\.1 s .*queue 'default' has 1 active"):
            await app.run_flow(stuck, key="r")
        release.set()


async def test_handlers_from_files(tmp_path: Path) -> None:
    (tmp_path / "greet.py").write_text("from penstock import flow\n\n@flow('greet')\ndef greet(who):\n    return who\n")
    async with TestApp(dir=tmp_path) as app:
        assert (await app.run_flow("greet", "you")).result == "you"


async def test_closing_twice_and_without_opening() -> None:
    app = TestApp(handlers=[charge, ship])
    await app.close()
    async with app:
        await app.settle()
    await app.close()


async def test_a_test_that_fails_at_once_ends_at_once() -> None:
    async with asyncio.timeout(60):
        async with TestApp(handlers=[charge, ship]):
            pass
        with pytest.raises(UnknownFlow):
            async with TestApp(handlers=[charge, ship]) as app:
                await app.run_flow("shpo")
        with pytest.raises(UnknownQueue, match="no handler for queue 'nope'"):
            async with TestApp(handlers=[charge, ship], queues=["nope"]):
                pass


# Histories


async def saved(path: Path, id: int) -> None:
    async with TestApp(handlers=[charge, ship]) as app:
        run = await app.run_flow("shop", {"id": id})
        await app.assert_history(run.id, path)


async def test_a_history_is_saved_once_and_then_compared(tmp_path: Path) -> None:
    path = tmp_path / "snapshots" / "shop.json"
    await saved(path, 7)
    text = path.read_text()
    kinds = [event["kind"] for event in json.loads(text)]
    assert kinds[0] == "flow.started"
    assert kinds[-1] == "flow.completed"
    await saved(path, 7)
    with pytest.raises(AssertionError, match=r"differs from shop\.json at event 1:(.|\n)*pytest --penstock-update"):
        await saved(path, 8)
    assert path.read_text() == text


async def test_a_shorter_history_differs_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "shop.json"
    await saved(path, 7)
    path.write_text(json.dumps(json.loads(path.read_text())[:-1]))
    with pytest.raises(AssertionError, match="saved nothing more"):
        await saved(path, 7)


async def test_histories_are_updated_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "shop.json"
    await saved(path, 7)
    token = update_snapshots.set(True)
    try:
        await saved(path, 8)
    finally:
        update_snapshots.reset(token)
    await saved(path, 8)


async def test_a_tree_of_jobs() -> None:
    @job(queue="pages")
    async def render(page: int) -> int:
        return page

    @job(queue="books")
    async def bind(_title: str, ctx: Context) -> list[int]:
        return sorted((await ctx.children_values()).values())

    async with TestApp(handlers=[render, bind]) as app:
        before = app.time.now_ms()
        pages = [Node(render, 1, delay="10m"), Node(render, 2)]
        assert await app.run_tree(Node(bind, "Emma", delay="1h", children=pages)) == [1, 2]
        assert app.time.now_ms() - before == 70 * 60_000, "the parent's delay starts when its children have ended"
        with pytest.raises(AssertionError, match="queue 'books' has 1 waiting-children"):
            await app.run_tree(Node(bind, "Persuasion", children=[Node("nowhere", 1)]))


async def test_a_crash_of_an_unknown_step_is_refused() -> None:
    @job(queue="mail", name="send")
    async def send(to: Any) -> None: ...

    async with TestApp(handlers=[send]) as app:
        with pytest.raises(BadArgument, match="did you mean 'send'"):
            app.crash("sned")
