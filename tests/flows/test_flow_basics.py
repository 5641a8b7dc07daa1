"""Flows from end to end on every store: what starts what, with which data, exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Subscription, flow, step
from penstock.cli.run_view import render_text
from penstock.core.ids import step_job_id


def gapless(events: list[Any]) -> bool:
    return [e.seq for e in events] == list(range(1, len(events) + 1))


@pytest.mark.spec("000-3.19", "000-7.8", "000-8.13", "001-1.1", "001-4.1", "003-1.1", "003-3.1")
async def test_a_flow_of_three_steps(app: Any) -> None:
    @flow("shop", emits=["order.created"])
    async def order(input: Any, ctx: Any) -> Any:
        ctx.emit("order.created", {"id": input["id"], "sum": 30})
        return "ordered"

    @step(on="order.created", emits=["order.paid"])
    def charge(input: Any, ctx: Any) -> Any:
        ctx.emit("order.paid", {**input, "paid": True})
        return "charged"

    @step(on="order.paid")
    async def ship(input: Any) -> Any:
        return {"shipped": input}

    async with app(order, charge, ship) as a, a.workers.background():
        run = await a.start("shop", {"id": 7})
        assert await a.result(run, timeout=20) == {"shipped": {"id": 7, "sum": 30, "paid": True}}
        events = await a.stream(run)
        assert [(e.kind, e.step) for e in events] == [
            ("flow.started", None),
            ("step.started", "order"),
            ("order.created", "order"),
            ("step.completed", "order"),
            ("step.started", "charge"),
            ("order.paid", "charge"),
            ("step.completed", "charge"),
            ("step.started", "ship"),
            ("step.completed", "ship"),
            ("flow.completed", None),
        ]
        assert gapless(events)
        assert [e.id for e in events] == sorted(
            (e.id for e in events), key=lambda i: (i.split("-")[0], int(i.split("-")[1]))
        )
        assert {e.subject for e in events} == {run} == {e.flow for e in events}
        view = await a.runs.get(run)
        assert (view.status, view.name, view.input) == ("completed", "shop", {"id": 7})
        assert {name: s.status for name, s in view.steps.items()} == dict.fromkeys(
            ("order", "charge", "ship"), "completed"
        )
        row = (await a.runs.list(flow="shop"))[0]
        assert (row.id, row.status, row.closed) == (run, "completed", True)
        assert await a.store.stuck_runs() == []


async def test_a_flow_can_be_started_by_its_function(app: Any) -> None:
    @flow("one")
    async def only(input: Any) -> Any:
        return input + 1

    async with app(only) as a, a.workers.background():
        assert await a.run_for_result(only, 41) == 42


async def test_handlers_receive_the_arguments_of_their_signature(memory: Any) -> None:
    seen: dict[str, Any] = {}

    @flow("shapes", emits=["go"])
    async def both(input: Any, ctx: Any) -> None:
        seen["both"] = (input, ctx.step)
        ctx.emit("go", "data")

    @step(on="go")
    def nothing() -> None:
        seen["nothing"] = ()

    @step(on="go")
    def data(whatever: Any) -> None:
        seen["data"] = whatever

    @step(on="go")
    def context(ctx: Any) -> None:
        seen["context"] = ctx.step

    @step(on="go")
    async def more(input: Any, ctx: Any, extra: int = 5) -> None:
        seen["more"] = extra

    async with memory(both, nothing, data, context, more) as a, a.workers.background():
        await a.run_for_result("shapes", 1)
    assert seen == {"both": (1, "both"), "nothing": (), "data": "data", "context": "context", "more": 5}


def producers(n: int) -> list[Any]:
    """Build a flow whose first step starts `n` steps that a last one joins."""

    @flow("join", emits=["go"])
    async def begin(ctx: Any) -> None:
        ctx.emit("go")

    def producer(i: int) -> Any:
        @step(on="go", name=f"p{i}", emits=[f"done.{i}"])
        async def produce(ctx: Any) -> int:
            ctx.emit(f"done.{i}", i)
            return i

        return produce

    @step(on=[f"done.{i}" for i in range(n)], mode="all", name="last")
    async def last(input: Any) -> Any:
        return sum(input.values())

    return [begin, *(producer(i) for i in range(n)), last]


@pytest.mark.parametrize("n", [3, 50, 200])
async def test_a_join_starts_exactly_once(app: Any, n: int) -> None:
    async with app(*producers(n), concurrency=50) as a, a.workers.background():
        run = await a.start("join")
        assert await a.result(run, timeout=30) == sum(range(n))
        events = await a.stream(run)
        assert gapless(events)
        started = [e.step for e in events if e.kind == "step.started"]
        assert len(started) == len(set(started)) == n + 2
        assert [e.kind for e in events].count("flow.completed") == 1
        assert len(await a.events_of(run, "step.completed", "last")) == 1


async def test_a_fan_out_of_500_completes_500_times(app: Any) -> None:
    @flow("fan", emits=["item"])
    async def begin(input: int, ctx: Any) -> None:
        for i in range(input):
            ctx.emit("item", i)

    @step(on="item", mode="each", concurrency=50)
    async def work(input: int, ctx: Any) -> list[int]:
        return [input, ctx.n]

    async with app(begin, work, concurrency=50) as a, a.workers.background():
        run = await a.start("fan", 500)
        assert await a.result(run, timeout=30) == [[i, i + 1] for i in range(500)]
        events = await a.stream(run)
        assert gapless(events)
        completed = [(e.meta or {}).get("n", 1) for e in events if e.kind == "step.completed" and e.step == "work"]
        assert sorted(completed) == list(range(1, 501))
        view = await a.runs.get(run)
        assert len(view.steps) == 501
        assert {s.status for s in view.steps.values()} == {"completed"}


async def test_a_diamond_joins_both_sides(app: Any) -> None:
    @flow("diamond", emits=["go"])
    async def top(ctx: Any) -> None:
        ctx.emit("go", 1)

    @step(on="go", emits=["left.done"])
    async def left(input: int, ctx: Any) -> str:
        ctx.emit("left.done", input + 1)
        return "left"

    @step(on="go", emits=["right.done"])
    def right(input: int, ctx: Any) -> str:
        ctx.emit("right.done", input + 2)
        return "right"

    @step(on=["left.done", "right.done"], mode="all")
    async def bottom(input: Any) -> Any:
        return input

    async with app(top, left, right, bottom) as a, a.workers.background():
        run = await a.start("diamond")
        assert await a.result(run, timeout=20) == {"left.done": 2, "right.done": 3}
        started = await a.events_of(run, "step.started", "bottom")
        assert len(started) == 1
        assert started[0].data == {"input": {"left.done": 2, "right.done": 3}}, "an input of no event is shown"


async def test_a_join_that_cannot_complete_is_reported(memory: Any) -> None:
    @flow("unmet", emits=["a", "b"])
    async def begin(ctx: Any) -> str:
        ctx.emit("a")
        return "done"

    @step(on=["a", "b"], mode="all")
    async def both() -> None: ...

    async with memory(begin, both) as a, a.workers.background():
        run, status = await a.run_to_end("unmet")
        assert status == "completed"
        assert (await a.events_of(run, "flow.completed"))[0].data["unmet"] == {"both": ["b"]}
        view = await a.runs.get(run)
        assert view.unmet == {"both": ["b"]}
        assert "unmet both never started: b did not arrive" in render_text(view, 0)


@pytest.mark.spec("000-14.4", "003-8.2")
async def test_when_as_a_function_a_mapping_and_with_the_run(app: Any) -> None:
    seen: list[tuple[str, Any]] = []

    @flow("choice", emits=["order"])
    async def begin(ctx: Any) -> None:
        ctx.emit("order", {"kind": "gift", "to": {"country": "FR", "city": "Lyon"}})
        ctx.emit("order", {"kind": "own", "to": {"country": "DE"}})

    @step(on="order", mode="each", when=lambda event: event.data["kind"] == "gift")
    async def wrap(input: Any) -> None:
        seen.append(("wrap", input["kind"]))

    @step(on="order", mode="each", when={"to": {"country": "DE"}})
    async def german(input: Any) -> None:
        seen.append(("german", input["kind"]))

    @step(on="order", mode="each", when=lambda event, run: run.flow == "choice" and run.correlation_id == "c-1")
    async def both(input: Any) -> None:
        seen.append(("both", input["kind"]))

    @step(on="order", when=lambda event: False)
    async def never() -> None:
        seen.append(("never", None))

    async with app(begin, wrap, german, both, never) as a, a.workers.background():
        run, status = await a.run_to_end("choice", correlation_id="c-1")
        assert status == "completed"
        assert "never" not in (await a.runs.get(run)).steps
    assert sorted(seen) == [("both", "gift"), ("both", "own"), ("german", "own"), ("wrap", "gift")]


@pytest.mark.spec("000-14.12", "003-8.2")
async def test_map_builds_the_input(app: Any) -> None:
    @flow("mapped", emits=["order"])
    async def begin(ctx: Any) -> None:
        ctx.emit("order", {"sum": 5})

    @step(subscriptions=[{"eventKind": "order", "map": lambda e: {"cents": e.data["sum"] * 100, "kind": e.kind}}])
    async def one(input: Any) -> Any:
        return input

    @step(subscriptions=[Subscription("order", {"sum": 5}, lambda e, run: [run.run_id, e.subject])])
    async def two(input: Any) -> Any:
        return input

    async with app(begin, one, two) as a, a.workers.background():
        run = await a.start("mapped")
        assert await a.result(run, timeout=20) == {"one": {"cents": 500, "kind": "order"}, "two": [run, run]}
        assert (await a.events_of(run, "step.started", "one"))[0].data == {"input": {"cents": 500, "kind": "order"}}


async def test_a_broken_when_fails_its_step_and_not_the_worker(memory: Any) -> None:
    @flow("broken", emits=["x"])
    async def begin(ctx: Any) -> None:
        ctx.emit("x", {})

    @step(on="x", when=lambda event: event.data["missing"])
    async def conditional() -> None: ...

    @step(on="x")
    async def other() -> str:
        return "other"

    async with memory(begin, conditional, other) as a, a.workers.background():
        run, status = await a.run_to_end("broken")
        assert status == "failed"
        view = await a.runs.get(run)
        assert view.steps["conditional"].code == "subscription_failed"
        assert view.steps["other"].status == "completed"
        assert (await a.run_to_end("broken"))[1] == "failed", "the worker continues"


@pytest.mark.spec("000-7.1", "000-7.10", "000-8.4", "000-8.8", "000-8.14", "001-1.10")
async def test_correlation_and_causation(app: Any) -> None:
    ids: dict[str, str] = {}

    @flow("traced", emits=["go", "aside"])
    async def begin(ctx: Any) -> None:
        ids["begin"] = ctx.correlation_id
        ctx.emit("go")
        ctx.emit({"kind": "aside", "correlationId": "another"})

    @step(on="go")
    def follow(ctx: Any) -> None:
        ids["follow"] = ctx.correlation_id()  # as the first spec calls it

    async with app(begin, follow) as a, a.workers.background():
        run, _ = await a.run_to_end("traced", correlation_id="basket-1")
        assert ids == {"begin": "basket-1", "follow": "basket-1"}
        events = await a.stream(run)
        assert {e.correlation_id for e in events if e.kind != "aside"} == {"basket-1"}
        assert next(e.correlation_id for e in events if e.kind == "aside") == "another"
        first, second = step_job_id(run, "begin", 1), step_job_id(run, "follow", 1)
        causes = {e.step: e.meta["causationId"] for e in events if e.kind == "step.started"}
        assert causes == {"begin": "start", "follow": first}
        assert next(e.meta["causationId"] for e in events if e.kind == "go") == first
        assert next(e.meta["jobId"] for e in events if e.kind == "step.started" and e.step == "follow") == second
        alone, _ = await a.run_to_end("traced")
        assert {e.correlation_id for e in await a.stream(alone)} == {alone, "another"}


@pytest.mark.spec("003-8.10")
async def test_a_step_without_a_flow_joins_every_flow_that_emits_its_events(memory: Any) -> None:
    @flow("a", emits=["mail"])
    async def first(ctx: Any) -> None:
        ctx.emit("mail", "a")

    @flow("b", emits=["mail"])
    async def second(ctx: Any) -> None:
        ctx.emit("mail", "b")

    @step(on="mail")
    async def send(input: str) -> str:
        return f"sent {input}"

    @step(on="mail", flow="b")
    async def copy(input: str) -> str:
        return f"copied {input}"

    async with memory(first, second, send, copy) as a, a.workers.background():
        assert await a.run_for_result("a") == "sent a"
        assert await a.run_for_result("b") == {"send": "sent b", "copy": "copied b"}


async def test_an_event_from_outside_starts_its_steps(app: Any) -> None:
    asked = asyncio.Event()

    @flow("asked", accepts=["answer"])
    async def ask() -> None:
        await asked.wait()

    @step(on="answer", flow="asked")
    async def listen(input: str) -> str:
        return input

    async with app(ask, listen) as a, a.workers.background():
        run, other = await a.start("asked"), await a.start("asked")
        for _ in range(3):
            await a.emit("answer", "yes", run=run, key="answer-1")
        await a.emit("answer", "no", run=other, key="answer-1")
        asked.set()
        assert await a.result(run, timeout=20) == "yes"
        assert len(await a.events_of(run, "answer")) == 1, "the same key is taken once"
        assert await a.result(other, timeout=20) == "no", "a key is the run's own"


async def test_an_ended_run_refuses_events(memory: Any) -> None:
    from penstock.core.errors import UnknownRun
    from penstock.flows.run_commands import RunClosed

    @flow("short")
    async def only() -> None: ...

    async with memory(only) as a, a.workers.background():
        run, _ = await a.run_to_end("short")
        with pytest.raises(RunClosed, match="completed"):
            await a.emit("late", run=run)
        with pytest.raises(UnknownRun):
            await a.emit("late", run="missing")
        assert "late" not in await a.kinds(run)


@pytest.mark.spec("003-12.4")
async def test_the_state_of_a_run_at_an_event(memory: Any) -> None:
    from penstock.core.errors import UnknownRun
    from penstock.core.ids import BadId

    @flow("timed", emits=["go"])
    async def begin(ctx: Any) -> None:
        ctx.emit("go")

    @step(on="go")
    async def end() -> None: ...

    async with memory(begin, end) as a, a.workers.background():
        run, _ = await a.run_to_end("timed")
        events = await a.stream(run)
        then = await a.runs.at(run, events[2].id)
        assert (then.status, then.steps["begin"].status, "end" in then.steps) == ("running", "running", False)
        assert (await a.runs.at(run, events[-1].id)).status == "completed"
        with pytest.raises(BadId):
            await a.runs.at(run, "yesterday")
        for stranger in ("0-0", f"0-{len(events) + 1}", "0-999", f"1-{events[0].seq}"):
            with pytest.raises(BadId, match=f"run '{run}' has no event '{stranger}'; it has {len(events)}"):
                await a.runs.at(run, stranger)
        with pytest.raises(UnknownRun):
            await a.runs.at("missing", events[0].id)


@pytest.mark.spec("001-0.1", "001-5.1")
async def test_following_a_run_yields_every_event_once(app: Any) -> None:
    @flow("seen", emits=["go"])
    async def begin(ctx: Any) -> None:
        ctx.emit("go")

    @step(on="go")
    async def end() -> None: ...

    async with app(begin, end) as a:
        run = await a.start("seen")
        seen = []
        async with a.workers.background():
            async for event in a.runs.follow(run):
                seen.append(event)
                if event.kind == "flow.completed":
                    break
        assert seen == await a.stream(run)
