"""Durable calls in the stream: what they took, never what they received or returned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Context, Permanent, SyncContext, flow, job
from penstock.core.errors import CallFailed
from penstock.durable import call_events
from penstock.testing.until import until


def facts(events: Any) -> list[tuple[str, str, int | None]]:
    """Return kind, call and tries of the events of calls."""
    return [(e.kind, e.data["call"], e.data.get("tries")) for e in events if e.kind.startswith("call.")]


async def test_a_call_is_recorded_with_its_duration_tries_and_size(kit: Any) -> None:
    async def charge(secret: str) -> dict[str, Any]:
        app.time.advance(1.5)
        return {"receipt": secret}

    @flow("shop", emits=[])
    async def shop(order: Any, ctx: Context) -> Any:
        await ctx.run("charge", charge, "card-4711")
        return len(await ctx.run("lines", lambda: "x" * 10))

    async with kit(shop) as app:
        view = await app.run_flow(shop)
        events = await app.events.read_all(f"nq:flow:{view.id}")
        calls = [e for e in events if e.kind.startswith("call.")]
        assert facts(calls) == [("call.completed", "charge#1", 1), ("call.completed", "lines#1", 1)]
        assert "4711" not in str(calls), "neither the arguments nor the value"
        first = calls[0]
        assert (first.step, first.meta) == ("shop", {"attempt": 1})
        assert (first.data["duration"], first.data["size"]) == (1500, len('{"receipt":"card-4711"}'))
        assert first.data["startedAt"] < first.ts
        folded = view.steps["shop"].calls
        assert {name: (call.status, call.duration, call.size) for name, call in folded.items()} == {
            "charge#1": ("completed", 1500, 23),
            "lines#1": ("completed", 0, 12),
        }


async def test_a_call_costs_no_commit_more(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @flow("shop", emits=[])
    async def shop(order: Any, ctx: Context) -> None:
        for name in ("a", "b", "c"):
            await ctx.run(name, asyncio.sleep, 0)

    async with kit(shop) as app:
        units: list[Any] = []
        commit = app.store.commit

        async def count(batch: Any, *args: Any, **kwargs: Any) -> Any:
            units.extend(batch)
            return await commit(batch, *args, **kwargs)

        monkeypatch.setattr(app.store, "commit", count)
        await app.run_flow(shop)
        recorded = [unit for unit in units if unit.memos]
        assert [len(unit.events) for unit in recorded] == [1, 1, 1]
        assert len(units) == 5, "the start, three calls, the end"


async def test_a_call_that_failed_for_good(kit: Any) -> None:
    def broken() -> None:
        raise OSError("no route to password=hunter2")

    @flow("shop", emits=[])
    def shop(order: Any, ctx: SyncContext) -> str:
        try:
            ctx.run("mail", broken, retry={"attempts": 2, "backoff": {"delayMs": 1}})
        except CallFailed:
            return "mailed by hand"
        return ""

    async with kit(shop, redact=["password"]) as app:
        view = await app.run_flow(shop)
        (failed,) = [e for e in await app.events.read_all(f"nq:flow:{view.id}") if e.kind.startswith("call.")]
        assert (failed.kind, failed.data["tries"], failed.data["name"]) == ("call.failed", 2, "OSError")
        assert failed.data["error"] == "no route to password=[redacted]"
        assert (view.status, view.steps["shop"].calls["mail#1"].status) == ("completed", "failed")


async def test_a_call_that_fails_the_attempt_and_then_succeeds(kit: Any) -> None:
    @flow("shop", emits=[], retry=2)
    async def shop(order: Any, ctx: Context) -> Any:
        def charge() -> int:
            if ctx.attempt == 1:
                raise ValueError("declined")
            return 7

        return await ctx.run("charge", charge)

    async with kit(shop) as app:
        view = await app.run_flow(shop)
        events = await app.events.read_all(f"nq:flow:{view.id}")
        assert facts(events) == [("call.failed", "charge#1", 1), ("call.completed", "charge#1", 1)]
        kinds = [e.kind for e in events]
        assert kinds.index("call.failed") < kinds.index("step.failed"), "one commit, in this order"
        call = view.steps["shop"].calls["charge#1"]
        assert (call.status, call.attempt, call.error) == ("completed", 2, None)


async def test_a_long_call_shows_as_running(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_events, "SHOWN_AFTER_S", 0.0)
    go = asyncio.Event()

    @flow("shop", emits=[])
    async def shop(order: Any, ctx: Context) -> Any:
        return await ctx.run("think", go.wait)

    async with kit(shop) as app:
        run = await app.start(shop)

        async def is_shown() -> bool:
            step = (await app.runs.get(run)).steps.get("shop")
            return step is not None and "think#1" in step.calls

        await until(is_shown)
        assert (await app.runs.get(run)).steps["shop"].calls["think#1"].status == "running"
        go.set()
        view = await app.finish(run)
        assert facts(await app.events.read_all(f"nq:flow:{run}")) == [
            ("call.started", "think#1", None),
            ("call.completed", "think#1", 1),
        ]
        assert view.steps["shop"].calls["think#1"].status == "completed"


async def test_the_winner_of_a_race_is_recorded_and_the_loser_is_not(kit: Any) -> None:
    @flow("race", emits=[])
    async def race(order: Any, ctx: Context) -> Any:
        who, _ = await ctx.first({"fast": ctx.run("fast", lambda: 1), "slow": ctx.run("slow", asyncio.sleep, 3600)})
        return who

    async with kit(race) as app:
        view = await app.run_flow(race)
        assert facts(await app.events.read_all(f"nq:flow:{view.id}")) == [("call.completed", "fast#1", 1)]


async def test_a_call_of_a_plain_job_is_on_its_queues_stream(kit: Any) -> None:
    @job(queue="mail")
    def send(to: str, ctx: SyncContext) -> None:
        ctx.run("render", len, to)
        raise Permanent("no")

    async with kit(send) as app:
        id = await app.enqueue("mail", "ada")
        await app.settle()
        events = await app.events.read_all("nq:queue:mail")
        assert facts(events) == [("call.completed", "render#1", 1)]
        assert {e.subject for e in events} == {id}
