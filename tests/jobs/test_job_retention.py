"""Retention of finished jobs, dedupe keys, and handlers that raise RateLimited."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Context, RateLimited, flow, job
from penstock.app.arguments import build_dedupe
from penstock.core.errors import BadArgument, DefinitionError, RunFailed
from penstock.core.outage_retry import OutageRetry
from penstock.handlers.module_contract import read_module
from penstock.handlers.options import read_keep, read_removal
from penstock.jobs.reducer import reduce_job
from penstock.ports.unit import JobState, KeepJobs
from penstock.testing.until import until


@job(queue="q", keep_completed=2, keep_failed=0)
async def work(input: Any) -> Any:
    if input == "fail":
        raise ValueError("no")
    return input


async def _left(a: Any, state: JobState, queue: str = "q") -> list[str]:
    return [row.id for row in await a.store.jobs(queue, state)]


async def _ends(a: Any, id: str, kind: str = "job.completed") -> None:
    async def is_recorded() -> bool:
        return any(e.subject == id for e in await a.job_events("q", kind))

    await until(is_recorded, 20)


@pytest.mark.spec("002-7.3")
async def test_keep_options_of_a_handler(app: Any) -> None:
    async with app(work) as a, a.workers.background():
        for n in range(4):
            await a.enqueue("q", n, key=f"job-{n}")
            await _ends(a, f"job-{n}")
        assert await _left(a, JobState.COMPLETED) == ["job-2", "job-3"]
        await a.enqueue("q", "fail", key="bad")
        await _ends(a, "bad", "job.failed")
        assert await _left(a, JobState.FAILED) == []
        assert [letter.original_job_id for letter in await a.list_dead_letters("q")] == ["bad"]


async def test_keep_options_of_enqueue_override_the_handler(app: Any) -> None:
    async with app(work) as a, a.workers.background():
        await a.enqueue("q", 1, key="gone", keep_completed=0)
        await _ends(a, "gone")
        await a.enqueue("q", "fail", key="seen", keep_failed=True)
        await a.wait_for_state("seen", "failed")
        assert await _left(a, JobState.COMPLETED) == []


async def test_a_job_removed_at_its_end_still_returns_its_result(app: Any) -> None:
    async with app(work) as a:
        id = await a.enqueue("q", {"n": 7}, keep_completed=0)
        bad = await a.enqueue("q", "fail")
        async with a.workers.background():
            await _ends(a, id)
            await _ends(a, bad, "job.failed")
        assert await a.store.job(id) is None
        assert await a.jobs._result(id, "q", OutageRetry("its end")) == {"n": 7}
        with pytest.raises(RunFailed, match="failed: no"):
            await a.jobs._result(bad, "q", OutageRetry("its end"))


async def test_a_redriven_job_keeps_its_keep_options(app: Any) -> None:
    failing = [True]

    @job(queue="q")
    async def repaired() -> str:
        if failing:
            raise ValueError("no")
        return "done"

    async with app(repaired) as a, a.workers.background():
        await a.enqueue("q", key="bad", keep_failed=0, keep_completed=0)
        await _ends(a, "bad", "job.failed")
        failing.clear()
        await a.dead_letters.redrive("bad.dlq")
        await _ends(a, "bad.redrive-1")
        assert await _left(a, JobState.COMPLETED) == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, None),
        (0, KeepJobs(0)),
        (False, KeepJobs(0)),
        (True, KeepJobs()),
        (1000, KeepJobs(1000)),
        ("1d", KeepJobs(age_ms=86_400_000)),
        (timedelta(hours=1), KeepJobs(age_ms=3_600_000)),
        ({"count": 5, "age": "1m"}, KeepJobs(5, 60_000)),
        ({"age": 60}, KeepJobs(age_ms=60_000)),
    ],
)
def test_read_keep(given: Any, kept: KeepJobs | None) -> None:
    assert read_keep(given, "keep_completed") == kept


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (True, KeepJobs(0)),
        (False, KeepJobs()),
        (1000, KeepJobs(1000)),
        ({"age": 3600, "count": 10, "limit": 5}, KeepJobs(10, 3_600_000)),
    ],
)
def test_read_bullmq_removal(given: Any, kept: KeepJobs) -> None:
    assert read_removal(given, "removeOnComplete") == kept


@pytest.mark.parametrize("given", [-1, 1.5, [], {}, {"counts": 1}, {"count": True}, {"count": -1}, "soon"])
def test_an_invalid_keep_option_is_named(given: Any) -> None:
    with pytest.raises(ValueError):
        read_keep(given, "keep_completed")
    with pytest.raises(DefinitionError):
        job(queue="q", keep_completed=given)(lambda: None)


@pytest.mark.spec("002-7.3")
async def test_a_worker_file_uses_bullmq_removal_options(app: Any, tmp_path: Path) -> None:
    (tmp_path / "q.py").write_text("config = {'removeOnComplete': 1, 'removeOnFail': True}\ndef handle(input): pass\n")
    async with app(dir=tmp_path) as a, a.workers.background():
        for n in range(2):
            await a.enqueue("q", key=f"job-{n}")
            await _ends(a, f"job-{n}")
        assert await _left(a, JobState.COMPLETED) == ["job-1"]


def test_a_step_has_no_keep_options() -> None:
    config = {"flow": {"id": "shop", "role": "main", "step": "s"}, "removeOnFail": 5}
    with pytest.raises(DefinitionError, match="the jobs of a run are removed together with the run"):
        read_module(lambda input: input, "q", config, "s", "q.py")


# Keys


@pytest.mark.spec("002-9.5")
async def test_a_dedupe_key_adds_one_job(app: Any) -> None:
    async with app(work) as a:
        first = await a.enqueue("q", 1, dedupe="ada")
        assert await a.enqueue("q", 2, dedupe="ada") == first
        assert await a.enqueue("q", 2, dedupe="bob") != first
        assert await a.count_waiting("q") == 2
        assert len(await a.job_events("q", "job.added")) == 2
        async with a.workers.background():
            await a.jobs.result(first)
        assert await a.enqueue("q", 3, dedupe="ada") != first


async def test_a_dedupe_key_with_a_ttl(app: Any, clock: Any) -> None:
    async with app(work, clock=clock) as a:
        first = await a.enqueue("q", 1, dedupe="ada", dedupe_ttl="1m")
        async with a.workers.background():
            await a.jobs.result(first)
        clock.advance("59s")
        assert await a.enqueue("q", 2, dedupe="ada", dedupe_ttl="1m") == first
        clock.advance("1s")
        assert await a.enqueue("q", 3, dedupe="ada", dedupe_ttl="1m") != first


@pytest.mark.parametrize("given", [("", None), (7, None), ("a\nb", None), ("x" * 201, None), (None, "1m"), ("a", 0)])
def test_an_invalid_dedupe_key_is_named(given: tuple[Any, Any]) -> None:
    with pytest.raises(BadArgument, match="dedupe"):
        build_dedupe(*given)


# Limits that a handler meets


@pytest.mark.spec("004-3.5")
async def test_a_rate_limit_error_releases_the_job_and_holds_the_queue(app: Any, clock: Any) -> None:
    tries: list[tuple[str, int]] = []

    @job(queue="q", retry=1, concurrency=1)
    async def call(input: str, ctx: Context) -> str:
        tries.append((input, ctx.attempt))
        if len(tries) == 1:
            raise RateLimited("10s", "429 from the bank")
        return input

    async with app(call, clock=clock) as a:
        first, second = await a.enqueue("q", "a"), await a.enqueue("q", "b")
        async with a.workers.background():
            (returned,) = await until(lambda: a.job_events("q", "job.returned"), 20)
            assert returned.data["reason"] == "429 from the bank"
            assert reduce_job(await a.job_events("q"), first).status == "waiting"
            a.advance_clock("9s")
            assert await a.count_waiting("q") == 2
            a.advance_clock("1s")
            assert [await a.jobs.result(id) for id in (first, second)] == ["a", "b"]
        assert tries == [("a", 1), ("a", 2), ("b", 1)]
        assert (await a.store.job(first)).failures == 0
        assert await a.list_dead_letters("q") == []


async def test_a_rate_limited_step_keeps_its_memos(app: Any, clock: Any) -> None:
    paid: list[int] = []
    limited = [True]

    @flow("pay", queue="q")
    async def pay(input: int, ctx: Context) -> int:
        await ctx.run("charge", lambda: paid.append(input))
        await ctx.emit("money.moved", {})
        if limited.pop():
            limited.append(False)
            raise RateLimited(5)
        return input

    async with app(pay, clock=clock) as a, a.workers.background():
        run = await a.start("pay", 7)
        await until(lambda: a.events_of(run, "step.returned"), 20)
        a.advance_clock("5s")
        assert await a.wait_for_end(run) == "completed"
        assert paid == [7]
        assert len(await a.events_of(run, "money.moved")) == 1
        assert await a.events_of(run, "step.failed") == []
