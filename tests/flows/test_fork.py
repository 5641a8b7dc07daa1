"""Fork: a new run with the history of another one up to an event, which continues from there."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import flow, step
from penstock.core.errors import CannotFork, UnknownFlow, UnknownRun
from penstock.flows.reducer import reduce_flow
from penstock.flows.run_record import decode


class Shop:
    """order → (charge, pack) → ship, which joins both. Counts executions; `charge` fails while it is broken."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.broken = False

        @flow("shop", emits=["ordered"], accepts=["noted"])
        async def order(input: Any, ctx: Any) -> None:
            self.ran.append("order")
            await ctx.state.set("by", "ada")
            ctx.log("ordered")
            ctx.emit("ordered", input)

        @step(on="ordered", emits=["charged"])
        async def charge(input: Any, ctx: Any) -> str:
            self.ran.append("charge")
            if self.broken:
                raise ValueError("broken")
            ctx.emit("charged", {"paid": input["amount"]})
            return "charged"

        @step(on="ordered", emits=["packed"])
        async def pack(input: Any, ctx: Any) -> None:
            self.ran.append("pack")
            ctx.emit("packed", {"box": 1})

        @step(on=["charged", "packed"], mode="all")
        async def ship(both: Any, ctx: Any) -> Any:
            self.ran.append("ship")
            return {**both["charged"], **both["packed"], "by": await ctx.state.get("by")}

        self.handlers = (order, charge, pack, ship)


async def event_of(a: Any, run: str, kind: str, step: str | None = None) -> str:
    return str((await a.events_of(run, kind, step))[0].id)


async def test_a_fork_at_the_first_event_runs_everything_again(app: Any) -> None:
    shop = Shop()
    async with app(*shop.handlers) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", {"amount": 5})
        new = await a.runs.fork(run, await event_of(a, run, "flow.started"))
        assert await a.result(new, timeout=20) == {"paid": 5, "box": 1, "by": "ada"}
        assert sorted(shop.ran) == sorted(["order", "charge", "pack", "ship"] * 2)
        assert (await a.kinds(new))[:2] == ["flow.started", "flow.forked"]


async def test_a_fork_runs_open_steps_but_not_completed_ones(app: Any) -> None:
    shop = Shop()
    async with app(*shop.handlers) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", {"amount": 5})
        at = await event_of(a, run, "step.completed", "order")
        shop.ran.clear()
        new = await a.runs.fork(run, at)
        assert await a.result(new, timeout=20) == {"paid": 5, "box": 1, "by": "ada"}
        assert sorted(shop.ran) == ["charge", "pack", "ship"]


async def test_a_join_keeps_the_events_it_had_received(app: Any) -> None:
    shop = Shop()
    async with app(*shop.handlers, concurrency=1) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", {"amount": 5})
        done = [e for e in await a.events_of(run, "step.completed") if e.step in ("charge", "pack")]
        first, second = done
        shop.ran.clear()
        new = await a.runs.fork(run, first.id)
        assert await a.wait_for_end(new) == "completed"
        assert shop.ran == [second.step, "ship"]


async def test_copied_events_are_marked_with_their_origin(app: Any) -> None:
    shop = Shop()
    async with app(*shop.handlers) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", {"amount": 5}, tags={"a": "b"}, priority=3)
        at = await event_of(a, run, "step.completed", "order")
        new = await a.runs.fork(run, at)
        await a.wait_for_end(new)
        old, events = await a.stream(run), await a.stream(new)
        seq = next(e.seq for e in old if e.id == at)
        past = [e for e in events if "copied" in (e.meta or {})]
        assert [e.meta["copied"] for e in past] == [e.id for e in old[:seq]]
        assert [(e.kind, e.data) for e in past] == [(e.kind, e.data) for e in old[:seq]]
        assert all(e.subject == e.flow == e.correlation_id == new for e in past), "it is a stream of its own"
        assert not any("jobId" in e.meta for e in past), "the jobs are the other run's"
        assert events[seq].kind == "flow.forked"
        assert events[seq].data == {"from": run, "at": at, "status": "running"}
        view = reduce_flow(events[: seq + 1])
        assert (view.id, view.name, view.input, view.forked_from) == (new, "shop", {"amount": 5}, run)
        assert {key: s.status for key, s in view.steps.items()} == {
            "order": "completed", "charge": "pending", "pack": "pending",
        }  # fmt: skip
        record = decode((await a.store.run(new)).record)
        assert (record.tags, record.priority) == ({"a": "b"}, 3)
        assert await a.stream(run) == old, "the run itself is not touched"


async def test_a_failed_run_is_forked_from_before_its_failure(app: Any) -> None:
    shop = Shop()
    shop.broken = True
    async with app(*shop.handlers, concurrency=1) as a, a.workers.background():
        run, status = await a.run_to_end("shop", {"amount": 5})
        assert status == "failed"
        shop.broken = False
        end = (await a.stream(run))[-1]
        assert end.kind == "flow.failed"
        with pytest.raises(CannotFork, match="no step was left to run after it; fork it at "):
            await a.runs.fork(run, end.id)
        new = await a.runs.fork(run, await event_of(a, run, "step.started", "charge"))
        assert await a.wait_for_end(new) == "completed"


async def test_a_permanent_failure_is_copied(app: Any) -> None:
    shop = Shop()
    shop.broken = True
    async with app(*shop.handlers, concurrency=1) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", {"amount": 5})
        at = await event_of(a, run, "step.failed", "charge")
        new = await a.runs.fork(run, at)
        assert await a.wait_for_end(new) == "failed"
        assert decode((await a.store.run(new)).record).failures[0].step == "charge"
        assert shop.ran.count("charge") == 1


async def test_an_event_from_outside_is_copied(app: Any) -> None:
    ran: list[Any] = []

    @flow("listens", accepts=["noted"])
    async def begin(ctx: Any) -> None:
        await ctx.wait.event("go")

    @step(on="noted", flow="listens")
    async def note(data: Any) -> None:
        ran.append(data)

    async with app(begin, note) as a, a.workers.background():
        run = await a.start("listens")
        await a.wait_for_step(run, "begin", "suspended")
        await a.emit("noted", {"n": 1}, run=run)
        await a.wait_for_step(run, "note", "completed")
        new = await a.runs.fork(run, await event_of(a, run, "noted"))
        await a.wait_for_step(new, "note", "completed")
        assert ran == [{"n": 1}, {"n": 1}], "what it started was open at that event"
        await a.wait_for_step(new, "begin", "suspended")
        await a.emit("go")
        assert await a.wait_for_end(new) == await a.wait_for_end(run) == "completed"


async def test_a_waiting_step_waits_again_in_the_fork(app: Any) -> None:
    charged: list[int] = []

    @flow("waits", emits=["asked"])
    async def waits(ctx: Any) -> Any:
        await ctx.run("charge", lambda: charged.append(1))
        ctx.emit("asked", {})
        return (await ctx.wait.event("answer")).data

    @step(on="asked")
    async def asked() -> None: ...

    async with app(waits, asked) as a, a.workers.background():
        run = await a.start("waits")
        await a.wait_for_step(run, "waits", "suspended")
        await a.wait_for_step(run, "asked", "completed")
        at = await event_of(a, run, "step.await.event")
        new = await a.runs.fork(run, at)
        await a.wait_for_step(new, "waits", "suspended")
        assert charged == [1, 1], "a restarted step has no memos"
        assert len(await a.events_of(new, "asked")) == 2, "nor does it know that it has emitted"
        await a.emit("answer", 42)
        assert await a.wait_for_end(run) == await a.wait_for_end(new) == "completed"
        assert (await a.runs.get(new)).steps["waits"].result == 42


async def test_emissions_count_only_after_the_end_of_their_attempt(app: Any) -> None:
    shop = Shop()
    async with app(*shop.handlers) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", {"amount": 5})
        new = await a.runs.fork(run, await event_of(a, run, "ordered"))
        assert await a.wait_for_end(new) == "completed"
        assert len(await a.events_of(new, "ordered")) == 1, "its step was open at that event and has emitted it again"


async def test_the_same_key_forks_once(app: Any) -> None:
    shop = Shop()
    async with app(*shop.handlers) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", {"amount": 5})
        at, later = await event_of(a, run, "flow.started"), await event_of(a, run, "step.completed", "order")
        assert await a.runs.fork(run, at, key="again") == "again"
        await a.wait_for_end("again")
        before = await a.stream("again")
        assert await a.runs.fork(run, at, key="again") == "again"
        assert await a.stream("again") == before
        with pytest.raises(CannotFork, match="exists and is not the fork"):
            await a.runs.fork(run, later, key="again")
        with pytest.raises(CannotFork, match="exists and is not the fork"):
            await a.runs.fork(run, at, key=run)


async def test_a_fork_of_a_fork(app: Any) -> None:
    shop = Shop()
    async with app(*shop.handlers) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", {"amount": 5})
        first = await a.runs.fork(run, await event_of(a, run, "step.completed", "order"))
        await a.wait_for_end(first)
        at = await event_of(a, first, "step.completed", "charge")
        second = await a.runs.fork(first, at)
        assert await a.result(second, timeout=20) == {"paid": 5, "box": 1, "by": "ada"}
        assert (await a.runs.get(second)).forked_from == first


async def test_runs_that_cannot_be_forked(app: Any) -> None:
    shop = Shop()
    async with app(*shop.handlers) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", {"amount": 5})
        for wrong in ("1-1", "0-999", "1719667845123-2"):
            with pytest.raises(CannotFork, match="has no event"):
                await a.runs.fork(run, wrong)
        with pytest.raises(UnknownRun):
            await a.runs.fork("missing", "0-1")
        assert (await a.runs.fork(run, "0-1", key="short")) == "short"


async def test_a_fork_of_an_unknown_flow(shared: Any) -> None:
    shop = Shop()
    async with shared(*shop.handlers) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", {"amount": 5})
        async with shared() as other:
            with pytest.raises(UnknownFlow):
                await other.runs.fork(run, "0-1")


async def test_a_fork_of_events_that_the_current_code_does_not_allow(shared: Any) -> None:
    shop = Shop()

    @flow("shop", emits=["ordered"])
    async def order(input: Any, ctx: Any) -> None: ...

    async with shared(*shop.handlers) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", {"amount": 5})
        at = await event_of(a, run, "step.completed", "charge")
        async with shared(order) as changed:
            with pytest.raises(CannotFork, match="the loaded code would not produce event"):
                await changed.runs.fork(run, at)


async def test_a_fork_of_redacted_data_is_refused(app: Any) -> None:
    @flow("secret", emits=["signed"])
    async def secret(input: Any, ctx: Any) -> None:
        ctx.emit("signed", {"user": "ada"})

    @step(on="signed", emits=["done"])
    async def second(input: Any, ctx: Any) -> Any:
        ctx.emit("done", {"password": "hunter22"})

    @step(on="done")
    async def third(input: Any) -> str:
        return str(len(input["password"]))

    async with app(secret, second, third) as a, a.workers.background():
        run, _ = await a.run_to_end("secret", {"password": "hunter22"})
        with pytest.raises(CannotFork, match="the input of step 'secret' was recorded with its secrets redacted"):
            await a.runs.fork(run, await event_of(a, run, "flow.started"))
        with pytest.raises(CannotFork, match="the data of done"):
            await a.runs.fork(run, await event_of(a, run, "step.completed", "second"))
        new = await a.runs.fork(run, await event_of(a, run, "step.completed", "secret"))
        assert await a.result(new, timeout=20) == "8", "what is not needed again may be hidden"


async def test_each_and_compensation(app: Any) -> None:
    undone: list[Any] = []

    @flow("many", emits=["item"])
    async def many(ctx: Any) -> None:
        for n in range(3):
            ctx.emit("item", n)

    @step(on="item", mode="each", compensation="undo")
    async def work(n: int) -> int:
        if n == 2:
            raise ValueError("no")
        return n

    @step(name="undo", flow="many")
    async def undo(what: Any) -> None:
        undone.append(what["input"])

    async with app(many, work, undo, concurrency=1) as a, a.workers.background():
        run, status = await a.run_to_end("many")
        assert (status, undone) == ("compensated", [1, 0])
        at = (await a.events_of(run, "step.completed", "work"))[1].id
        new = await a.runs.fork(run, at)
        assert await a.wait_for_end(new) == "compensated"
        assert undone == [1, 0, 1, 0], "what was completed before the fork is undone, too"
        assert len([e for e in await a.events_of(new, "step.started", "work") if "copied" not in e.meta]) == 1


async def test_copied_events_are_not_delivered(app: Any) -> None:
    @flow("notes", emits=["noted"])
    async def notes(ctx: Any) -> None:
        ctx.emit("noted", 1)

    @step(on="noted", flow="notes")
    async def last() -> None: ...

    @flow("listens")
    async def listens(ctx: Any) -> Any:
        return (await ctx.wait.event("noted", past=False)).data

    async with app(notes, last, listens) as a, a.workers.background():
        run, _ = await a.run_to_end("notes")
        other = await a.start("listens")
        await a.wait_for_step(other, "listens", "suspended")
        new = await a.runs.fork(run, await event_of(a, run, "step.completed", "notes"))
        assert await a.wait_for_end(new) == "completed"
        assert len(await a.events_of(new, "noted")) == 1
        await a.emit("noted", 2)
        assert await a.result(other, timeout=20) == 2
