"""State changes are events of their run: time travel shows them, and a fork starts with the state of its event."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import Context, flow, step
from penstock.core.errors import CannotFork

LARGE = "x" * 10_000


@flow("count", emits=["counted"])
async def count(start: int, ctx: Context) -> None:
    ctx.state.set("n", start)
    ctx.state.set("report", LARGE)
    ctx.state.set("card", {"password": "hunter2"})
    ctx.shared.set("seen", True)
    await ctx.state.patch("total", lambda total: (total or 0) + start)
    ctx.emit("counted", start)


@step(on="counted")
async def double(start: int, ctx: Context) -> Any:
    ctx.state.set("n", 2 * start)
    ctx.state.delete("card")
    await ctx.wait.event("go")
    return await ctx.state.get("n")


async def changes(app: Any, run: str) -> list[tuple[str, Any]]:
    events = await app.events.read_all(f"nq:flow:{run}")
    return [(event.kind, event.data) for event in events if event.kind.startswith("state.")]


@pytest.mark.spec("003-2.20", "000-7.24")
async def test_state_changes_are_recorded_with_their_commit(kit: Any) -> None:
    async with kit(count, double, redact=("password",)) as app:
        run = await app.start("count", 2)
        await app.settle()
        recorded = await changes(app, run)
        assert recorded[0] == ("state.set", {"key": "total", "value": 2})
        assert recorded[1] == ("state.set", {"key": "n", "value": 2})
        assert (recorded[2][1]["key"], recorded[2][1]["size"]) == ("report", 10_002)
        assert recorded[3] == ("state.set", {"key": "card", "value": {"password": "[redacted]"}})
        assert recorded[4:] == [("state.set", {"key": "n", "value": 4}), ("state.deleted", {"key": "card"})]
        events = await app.events.read_all(f"nq:flow:{run}")
        (first,) = [event for event in events if event.kind == "step.completed"]
        then, now = await app.runs.at(run, first.id), await app.runs.get(run)
        assert (then.state["n"], then.state["total"], now.state["n"]) == (2, 2, 4)
        assert set(now.state) == {"n", "report", "total"}
        assert await app.state.of_run(run).get("n") == 4
        await app.emit("go")
        assert (await app.finish(run)).result == 4
        assert len(await changes(app, run)) == 6  # a replay records nothing again


async def test_a_fork_starts_with_the_state_of_its_event(kit: Any) -> None:
    async with kit(count, double, redact=("password",)) as app:
        run = await app.start("count", 2)
        await app.settle()
        await app.state.of_run(run).set("report", LARGE)
        started = [
            event
            for event in await app.events.read_all(f"nq:flow:{run}")
            if (event.kind, event.step) == ("step.started", "double")
        ]
        with pytest.raises(CannotFork, match="state key 'card' changed later"):
            await app.runs.fork(run, started[0].id)
        await app.state.of_run(run).set("card", None)
        last = (await app.events.read_all(f"nq:flow:{run}"))[-1]
        await app.state.of_run(run).set("n", 99)
        await app.state.of_run(run).set("extra", 1)
        app.workers.stop()  # the fork's open step would write its state again
        fork = await app.runs.fork(run, last.id)
        assert await app.state.of_run(fork).get("n") == 4
        assert await app.state.of_run(fork).get("extra") is None
        assert await app.state.of_run(fork).get("report") == LARGE
        assert (await app.runs.get(fork)).state["total"] == 2


async def test_state_from_outside_is_an_event_of_its_run(kit: Any) -> None:
    async with kit(count, double) as app:
        run = await app.start("count", 1)
        await app.settle()
        before = len(await changes(app, run))
        await app.state.of_run(run).set("note", "hello", ttl="1d")
        await app.state.of_run(run).patch("total", lambda total: total + 1)
        await app.state.of_run(run).delete("note")
        await app.state.set("shared", 1)
        recorded = (await changes(app, run))[before:]
        assert [kind for kind, _ in recorded] == ["state.set", "state.set", "state.deleted"]
        assert recorded[0][1]["expires"].startswith("20")
        assert recorded[1][1] == {"key": "total", "value": 2}
        await app.state.of_run("nobody").set("a", 1)
        assert await app.events.read_all("nq:flow:nobody") == []


async def test_a_setting_turns_it_off(kit: Any) -> None:
    async with kit(count, double, state_events="off") as app:
        run = await app.start("count", 1)
        await app.settle()
        assert await changes(app, run) == []
        assert (await app.runs.get(run)).state == {}
        assert await app.state.of_run(run).get("n") == 2


async def test_an_attempt_that_fails_records_no_state(kit: Any) -> None:
    @flow("fails")
    async def fails(_: None, ctx: Context) -> None:
        ctx.state.set("n", 1)
        raise RuntimeError("no")

    async with kit(fails) as app:
        run = await app.start("fails")
        await app.finish(run)
        assert await changes(app, run) == []


async def test_state_costs_no_commit_more(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @flow("writes", emits=[])
    async def writes(keys: int, ctx: Context) -> None:
        for n in range(keys):
            ctx.state.set(f"key-{n}", n)

    async with kit(writes) as app:
        units: list[Any] = []
        commit = app.store.commit

        async def count(batch: Any, *args: Any, **kwargs: Any) -> Any:
            units.extend(batch)
            return await commit(batch, *args, **kwargs)

        monkeypatch.setattr(app.store, "commit", count)
        found = []
        for keys in (0, 1, 20):
            units.clear()
            await app.run_flow(writes, keys)
            found.append((len(units), sum(len(unit.events) for unit in units), sum(len(unit.state) for unit in units)))
        (commits, events, state) = found[0]
        assert found == [(commits, events, state), (commits, events + 1, state + 1), (commits, events + 20, state + 20)]
