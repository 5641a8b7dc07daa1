"""Runs of another version of their flow: continued, left to workers that have it, or failed."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

from penstock import flow, step
from penstock.app.run_actions import retry_run
from penstock.core.errors import DefinitionError
from penstock.core.ids import step_job_id
from penstock.flows.run_record import decode
from penstock.handlers.module_contract import read_module
from penstock.testing.clock import FakeClock
from penstock.testing.until import until


def shop(version: str | None, policy: Any = "continue") -> list[Any]:
    options = {} if policy is None else {"on_change": policy}

    @flow("shop", version=version, emits=["asked"], **options)
    async def ask(ctx: Any) -> None:
        ctx.emit("asked")

    @step(on="asked")
    async def answer(ctx: Any) -> Any:
        event = await ctx.wait.event("answered")
        return [version, event.data]

    return [ask, answer]


async def waiting(a: Any) -> str:
    """Start a run that waits in its second step."""
    async with a.workers.background():
        run: str = await a.start("shop")
        await a.wait_for_step(run, "answer", "suspended")
    return run


async def test_the_first_version_of_a_run_is_in_its_record(app: Any) -> None:
    async with app(*shop("1")) as a:
        run = await a.start("shop")
        assert decode((await a.store.run(run)).record).version == "1"
        assert (await a.runs.get(run)).version == "1"


async def test_continue_is_the_default(shared: Any) -> None:
    async with shared(*shop("1", None)) as old:
        run = await waiting(old)
    async with shared(*shop("2", None)) as new, new.workers.background():
        await new.emit("answered", 42)
        assert await new.result(run, timeout=20) == ["2", 42]


async def test_a_pinned_run_waits_for_a_worker_with_its_version(
    shared: Any, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with shared(*shop("1", "pin"), clock=clock) as old, shared(*shop("2", "pin"), clock=clock) as new:
        run = await waiting(old)
        with caplog.at_level(logging.WARNING, "penstock.worker"):
            async with new.workers.background():
                await new.emit("answered", 42)
                row = await new.wait_for_step(run, "answer", "delayed")
                assert (row.attempt, row.failures, row.due) == (0, 0, clock.now_ms() + 1_000)
                old.advance_clock("1s", new)

                async def looked_again() -> bool:
                    row = await new.wait_for_state(step_job_id(run, "answer", 1), "delayed")
                    return (row.attempt, row.due) == (0, clock.now_ms() + 2_000)

                await until(looked_again, 20)
                fresh = await new.start("shop")
                await new.wait_for_step(fresh, "answer", "suspended", "completed")
        warned = [r.getMessage() for r in caplog.records if "was started by version 1" in r.getMessage()]
        assert len(warned) == 1, "once for each flow and version"
        assert "this code is version 2" in warned[0]
        back = await new.events_of(run, "step.returned", "answer")
        assert back[0].data["version"] == "1"
        assert (await new.runs.get(run)).steps["answer"].status == "pending"
        async with old.workers.background():
            old.advance_clock("10m", new)
            assert await old.result(run, timeout=20) == ["1", 42]
        assert (await old.runs.get(run)).steps["answer"].status == "completed"


async def test_old_and_new_workers_side_by_side(shared: Any, clock: FakeClock) -> None:
    there = {"clock": clock, "lease": "365d"}  # time is moved on in leaps
    async with shared(*shop("1", "pin"), **there) as old, shared(*shop("2", "pin"), **there) as new:
        runs = {await old.start("shop"): "1" for _ in range(3)} | {await new.start("shop"): "2" for _ in range(3)}
        async with old.workers.background(), new.workers.background():
            await old.emit("answered", 1)

            turns = itertools.cycle(((old, new), (new, old)))  # the worker that is notified first takes everything

            async def all_ended() -> bool:
                first, second = next(turns)
                first.advance_clock("5m", second)
                rows = [await old.store.run(run) for run in runs]
                return all(row.closed for row in rows)

            await until(all_ended, 30)
        for run, version in runs.items():
            assert (await old.result(run))[0] == version


async def test_the_policy_fail_fails_the_run_with_advice(shared: Any) -> None:
    async with shared(*shop("1", "fail")) as old:
        run = await waiting(old)
    async with shared(*shop("2", "fail")) as new:
        async with new.workers.background():
            await new.emit("answered", 42)
            assert await new.wait_for_end(run) == "failed"
        step = (await new.runs.get(run)).steps["answer"]
        assert step.code == "version_mismatch"
        for word in (run, "version 1", "version 2", "on_change='continue'"):
            assert word in (step.error or "")
    async with shared(*shop("2")) as repaired, repaired.workers.background():  # continues
        assert (await retry_run(repaired, run)).sent
        assert await repaired.result(run, timeout=20) == ["2", 42], "with the memos it had"


async def test_a_run_without_a_version_counts_as_a_different_version(shared: Any) -> None:
    async with shared(*shop(None)) as old:
        run = await waiting(old)
    async with shared(*shop("1", "fail")) as new, new.workers.background():
        await new.emit("answered")
        assert await new.wait_for_end(run) == "failed"


async def test_the_same_version_continues(shared: Any) -> None:
    async with shared(*shop("1", "fail")) as old:
        run = await waiting(old)
    async with shared(*shop("1", "fail")) as new, new.workers.background():
        await new.emit("answered", 1)
        assert await new.result(run, timeout=20) == ["1", 1]


def test_a_policy_needs_a_version_and_is_one_of_three() -> None:
    with pytest.raises(DefinitionError, match="requires a version"):
        shop(None, "pin")
    with pytest.raises(DefinitionError, match="got 'maybe'"):
        shop("1", "maybe")


def test_the_module_contract_accepts_version_policies() -> None:
    def handle(input: Any, ctx: Any) -> None: ...

    config = {"flow": {"id": "shop", "role": "main", "version": "2", "onChange": "pin"}}
    definition: Any = read_module(handle, "orders", config, "shop", "shop.py")
    assert (definition.version, definition.on_change) == ("2", "pin")
