"""`ctx.enqueue` and `ctx.start`: work that a handler starts is part of its attempt's commit."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import Backoff, Context, Permanent, RetryPolicy, flow, job, step
from penstock.errors import BadArgument, ConfigError, NotJSON, SchemaViolation, UnknownFlow
from penstock.testing import FakeContext

RETRY = RetryPolicy(3, Backoff("fixed", 10, jitter=False))


@dataclass
class Letter:
    to: str


@job(queue="mail")
async def send(letter: Letter) -> str:
    return f"sent to {letter.to}"


@flow("ship")
async def ship(order: int) -> str:
    return f"shipped {order}"


async def added(app: Any, queue: str = "mail") -> list[Any]:
    return [event for event in await app.events.read_all(f"nq:queue:{queue}") if event.kind == "job.added"]


@pytest.mark.spec("000-7.10")
async def test_work_is_started_when_the_step_completes(kit: Any) -> None:
    @flow("order")
    async def order(ctx: Context) -> list[str]:
        job = ctx.enqueue(send, Letter("ada"))
        run = await ctx.start(ship, 7)  # it may be awaited
        assert await app.store.job(job) is None
        return [job, run]

    async with kit(order, send, ship) as app:
        letter, run = await app.result(await app.start(order, correlation_id="c-1"))
        assert (await app.jobs.result(letter), await app.result(run)) == ("sent to ada", "shipped 7")
        (event,) = await added(app)
        assert (event.subject, event.correlation_id) == (letter, "c-1")
        (started, *_) = await app.events.read_all(f"nq:flow:{run}")
        assert started.correlation_id == "c-1"


async def test_an_attempt_that_fails_starts_nothing(kit: Any) -> None:
    @flow("order", retry=RETRY)
    async def order(ctx: Context) -> list[str]:
        ids = [ctx.enqueue(send, Letter(f"ada {ctx.attempt}")), ctx.start(ship, ctx.attempt)]
        if ctx.attempt < 3:
            raise LookupError("not yet")
        return ids

    @flow("never")
    async def never(ctx: Context) -> None:
        ctx.enqueue(send, Letter("nobody"))
        ctx.start(ship, 0)
        raise Permanent("no")

    async with kit(order, never, send, ship) as app:
        assert (await app.run_flow(never)).status == "failed"
        letter, run = await app.result(await app.start(order))
        assert (await app.jobs.result(letter), await app.result(run)) == ("sent to ada 3", "shipped 3")
        assert len(await added(app)) == 1
        assert len(await app.runs.list(flow="ship")) == 1


async def test_work_is_started_once_when_the_worker_crashes(kit: Any) -> None:
    @flow("order")
    async def order(ctx: Context) -> list[str]:
        return [ctx.enqueue(send, Letter("ada")), ctx.start(ship, 7)]

    async with kit(order, send, ship) as app:
        app.crash("order", after=True)
        letter, run = await app.result(await app.start(order))
        assert (await app.jobs.result(letter), await app.result(run)) == ("sent to ada", "shipped 7")
        assert (len(await added(app)), len(await app.runs.list(flow="ship"))) == (1, 1)


async def test_work_before_a_wait_is_started_with_it_and_skipped_on_replay(kit: Any) -> None:
    seen: list[list[str]] = []

    @flow("order", retry=RETRY)
    async def order(ctx: Context) -> list[str]:
        ids: list[str] = [ctx.enqueue(send, Letter("first")), ctx.start(ship, 1)]
        seen.append(list(ids))
        await ctx.wait.time("1d")
        ids.append(ctx.enqueue(send, Letter("second")))
        await ctx.wait.time("1d", name="again")
        return ids

    async with kit(order, send, ship) as app:
        run = await app.start(order)
        await app.settle()
        assert [event.data["to"] for event in await added(app)] == ["first"]
        assert await app.result(seen[0][1]) == "shipped 1"
        ids = await app.result(run)
        assert [event.subject for event in await added(app)] == [ids[0], ids[2]]
        assert len(await app.runs.list(flow="ship")) == 1
        assert seen == [seen[0]] * 3


async def test_another_launch_on_replay_is_an_error(kit: Any) -> None:
    calls: list[int] = []

    @flow("order")
    async def order(ctx: Context) -> None:
        calls.append(1)
        if len(calls) == 1:
            ctx.enqueue(send, Letter("ada"))
        else:
            ctx.start(ship, 1)
        await ctx.wait.time("1h")

    async with kit(order, send, ship) as app:
        view = await app.run_flow(order)
        assert (view.status, view.steps["order"].code) == ("failed", "non_determinism")
        assert (
            "job or run number 1 that an earlier attempt started was job 'send' of queue 'mail', but this attempt starts flow 'ship'"
            in view.error
        )


@pytest.mark.spec("000-7.10")
async def test_def_handlers_and_plain_jobs(kit: Any) -> None:
    @flow("order")
    def order(ctx: Any) -> list[str]:
        first = [ctx.enqueue("mail", {"to": "ada"}, key="letter-1"), ctx.start("ship", 7, key="ship-7")]
        ctx.wait.time("1h")
        return first

    @job(queue="nightly", retry=RETRY)
    def nightly(ctx: Any) -> list[str]:
        ids = [ctx.enqueue(send, Letter("eve")), ctx.start(ship, 8)]
        if ctx.attempt == 1:
            raise LookupError("not yet")
        return ids

    async with kit(order, nightly, send, ship) as app:
        assert await app.result(await app.start(order)) == ["letter-1", "ship-7"]
        assert (await app.jobs.result("letter-1"), await app.result("ship-7")) == ("sent to ada", "shipped 7")
        id = await app.enqueue(nightly)
        letter, run = await app.jobs.result(id)
        assert (await app.jobs.result(letter), await app.result(run)) == ("sent to eve", "shipped 8")
        assert [event.meta["parent"] for event in await added(app)][1:] == [id]
        assert len(await app.runs.list(flow="ship")) == 2


async def test_options(kit: Any) -> None:
    @flow("order")
    async def order(ctx: Context) -> list[str]:
        job = ctx.enqueue(send, Letter("ada"), delay="1h", priority=3, correlation_id="mine")
        return [job, ctx.start(ship, 7, delay="2h", correlation_id="mine", tags={"by": "order"})]

    async with kit(order, send, ship) as app:
        start = app.time.now_ms()
        letter, run = await app.result(await app.start(order))
        view = await app.jobs.get(letter)
        assert (view.state, view.priority) == ("delayed", 3)
        await app.settle()
        assert [row.id for row in await app.runs.list(tags={"by": "order"})] == [run]
        assert await app.jobs.result(letter) == "sent to ada"
        assert app.time.now_ms() - start == 3_600_000
        assert await app.result(run) == "shipped 7"
        assert app.time.now_ms() - start == 7_200_000
        assert (await app.runs.get(run)).correlation_id == "mine"


async def test_a_key_that_exists_starts_nothing(kit: Any) -> None:
    @flow("order")
    async def order(ctx: Context) -> list[str]:
        return [ctx.enqueue(send, Letter("ada"), key="once"), ctx.start(ship, 7, key="ship-once")]

    async with kit(order, send, ship) as app:
        for _ in range(2):
            assert await app.result(await app.start(order)) == ["once", "ship-once"]
        assert await app.result("ship-once") == "shipped 7"
        assert (len(await added(app)), len(await app.runs.list(flow="ship"))) == (1, 1)


async def test_a_chain_of_runs_keeps_its_ids_short(kit: Any) -> None:
    @flow("count-down")
    async def count_down(n: int, ctx: Context) -> str | None:
        return ctx.start(count_down, n - 1) if n else None

    async with kit(count_down) as app:
        run, ids = await app.start(count_down, 12), []
        while run is not None:
            ids.append(run)
            await app.settle()
            run = await app.result(run)
        assert len(set(ids)) == 13
        assert max(map(len, ids)) < 60


@pytest.mark.parametrize(
    ("launch", "problem"),
    [
        (lambda ctx: ctx.start("shipp", 1), UnknownFlow),
        (lambda ctx: ctx.start(send, 1), ConfigError),
        (lambda ctx: ctx.enqueue(ship, 1), ConfigError),
        (lambda ctx: ctx.enqueue(send, {"too": "ada"}), SchemaViolation),
        (lambda ctx: ctx.enqueue("mail", object()), NotJSON),
        (lambda ctx: ctx.start(ship, 1, delay="1h", at="tomorrow"), BadArgument),
    ],
)
async def test_mistakes_raise_where_they_are_made(kit: Any, launch: Any, problem: type[Exception]) -> None:
    found: list[BaseException] = []

    @flow("order")
    async def order(ctx: Context) -> None:
        try:
            launch(ctx)
        except Exception as error:
            found.append(error)

    async with kit(order, send, ship) as app:
        await app.run_flow(order)
        assert [type(one) for one in found] == [problem]
        assert await added(app) == []


async def test_an_unknown_queue_is_a_warning(kit: Any, caplog: pytest.LogCaptureFixture) -> None:
    @flow("order")
    async def order(ctx: Context) -> str:
        return ctx.enqueue("mial", {"to": "ada"})

    async with kit(order, send) as app:
        with caplog.at_level(logging.WARNING, "penstock"):
            id = await app.result(await app.start(order))
        assert (await app.jobs.get(id)).queue == "mial"
        assert "queue 'mial' has no handler in this process; did you mean 'mail'" in caplog.text


async def test_a_cancelled_run_starts_nothing(kit: Any) -> None:
    @flow("order", emits=["go"])
    async def order(ctx: Context) -> None:
        ctx.emit("go")

    @step(on="go")
    async def stop(ctx: Context) -> None:
        ctx.enqueue(send, Letter("ada"))
        ctx.start(ship, 1)
        await app.runs.cancel(ctx.run_id)

    async with kit(order, stop, send, ship) as app:
        assert (await app.run_flow(order)).status == "cancelled"
        await app.settle()
        assert (await added(app), await app.runs.list(flow="ship")) == ([], [])


async def test_preflight_compares_launches(shared: Any) -> None:
    def version(body: Any) -> list[Any]:
        @flow("order")
        async def order(ctx: Context) -> None:
            body(ctx)
            await ctx.wait.event("paid")

        return [order, send, ship]

    async with shared(*version(lambda ctx: ctx.enqueue(send, Letter("ada")))) as old:
        async with old.workers.background():
            run = await old.start("order")
            await old.wait_for_step(run, "order", "suspended")
        bodies: dict[str, Any] = {
            "call_removed": lambda ctx: None,
            "call_added": lambda ctx: (ctx.enqueue(send, Letter("ada")), ctx.start(ship, 1)),
            "non_determinism": lambda ctx: ctx.start(ship, 1),
        }
        for code, body in bodies.items():
            async with shared(*version(body)) as new:
                assert [one.code for one in (await new.runs.preflight("order")).broken] == [code]
        assert (await old.runs.preflight("order")).problems == []
        assert len([e for e in await old.job_events("mail") if e.kind == "job.added"]) == 1


# FakeContext


async def test_a_fake_context_records_launches() -> None:
    async def handle(ctx: Any) -> list[str]:
        return [ctx.enqueue("mail", Letter("ada"), delay="1h"), ctx.start(ship, 7, key="s-7"), ctx.enqueue(send, None)]

    ctx = FakeContext()
    assert await handle(ctx) == ["mail-1", "s-7", "mail-3"]
    assert ctx.enqueued == [("mail", {"to": "ada"}, {"delay": "1h"}), (send, None, {})]
    assert ctx.started == [(ship, 7, {"key": "s-7"})]
    ctx.sync.enqueue("mail", 1)
    assert ctx.enqueued[-1] == ("mail", 1, {})
    with pytest.raises(ConfigError, match="'send' is not a flow; decorate it with @flow"):
        ctx.start(send)
    with pytest.raises(NotJSON):
        ctx.enqueue("mail", object())
