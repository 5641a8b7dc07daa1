"""Plain jobs: added once per id, run, retried, and recorded on the stream of their queue."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock import Permanent, job
from penstock.core.errors import (
    BadArgument,
    NotJSON,
    PayloadTooLarge,
    RunFailed,
    SchemaViolation,
    UnknownJob,
    WaitTimeout,
)
from penstock.core.ids import BadId
from penstock.core.redaction import Redactor
from penstock.jobs.engine import MAX_SHOWN_INPUT_BYTES
from penstock.jobs.reducer import reduce_job
from penstock.testing.clock import FakeClock


@job(queue="sums")
async def add(input: Any) -> Any:
    return input["a"] + input["b"]


@job(queue="echo")
def echo(input: Any) -> Any:
    return input


@pytest.mark.spec("000-1.3", "000-2.4", "000-3.18", "000-4.1.2", "000-7.6", "000-7.16", "000-7.17", "000-7.19")
@pytest.mark.spec("000-7.30", "000-10.12", "003-1.6")
async def test_a_job_runs_and_returns_its_result(app: Any) -> None:
    async with app(add) as a, a.workers.background():
        id = await a.enqueue("sums", {"a": 1, "b": 2})
        assert await a.jobs.result(id, timeout=20) == 3
        row = await a.jobs.get(id)
        assert (row.state.value, row.attempt, row.failures, row.result, row.name) == ("completed", 1, 0, 3, "add")
        events = [e for e in await a.job_events("sums") if e.subject == id]
        assert [e.kind for e in events] == ["job.added", "job.active", "job.completed"]
        assert events[0].data == {"a": 1, "b": 2}
        assert events[2].data == {"result": 3}
        assert {e.correlation_id for e in events} == {id}


async def test_many_jobs_are_added_in_order(app: Any) -> None:
    async with app(echo, concurrency=50) as a:
        ids = await a.jobs.enqueue_many("echo", range(450))
        assert len(set(ids)) == 450
        assert [row.id for row in await a.jobs.list("echo", limit=500)] == ids
        async with a.workers.background():
            results = [await a.jobs.result(id, timeout=30) for id in ids]
        assert results == list(range(450))


async def test_a_job_id_is_added_once(app: Any) -> None:
    async with app(echo) as a:
        ids = await asyncio.gather(*(a.enqueue("echo", i, key="only-one") for i in range(50)))
        assert set(ids) == {"only-one"}
        assert len(await a.jobs.list("echo")) == 1
        assert len(await a.job_events("echo", "job.added")) == 1
        async with a.workers.background():
            first = await a.jobs.result("only-one", timeout=20)
        await a.enqueue("echo", "after the end", key="only-one")
        assert await a.jobs.result("only-one", timeout=20) == first


@pytest.mark.spec("000-14.10", "000-16.15")
async def test_auto_ids_depend_on_input_name_and_queue(app: Any) -> None:
    def sends(queue: str) -> Any:
        @job(queue=queue, name="send", key="auto")
        async def send() -> None: ...

        return send

    async with app(sends("mail"), sends("post")) as a:
        first = await a.enqueue("mail", {"to": "a", "n": [1]}, name="send")
        assert await a.enqueue("mail", {"n": [1], "to": "a"}, name="send") == first
        assert await a.enqueue("mail", {"n": [2], "to": "a"}, name="send") != first
        assert await a.enqueue("post", {"n": [1], "to": "a"}, name="send") != first
        assert (await a.count_waiting("mail"), await a.count_waiting("post")) == (2, 1)


@pytest.mark.spec("000-14.10")
async def test_a_job_id_from_the_caller(app: Any) -> None:
    @job(queue="mail", key=lambda mail: f"mail-{mail['to']}")
    async def send() -> None: ...

    async with app(send) as a:
        assert await a.enqueue("mail", {"to": "ann", "n": 1}) == "mail-ann"
        assert await a.enqueue("mail", {"to": "ann", "n": 2}) == "mail-ann"
        assert await a.enqueue("mail", {"to": "ann"}, key="other") == "other"
        assert await a.jobs.enqueue_many("mail", [{"to": "bob"}, {"to": "bob"}]) == ["mail-bob", "mail-bob"]
        assert await a.count_waiting("mail") == 3
        with pytest.raises(BadId):
            await a.enqueue("mail", {"to": "not an id"})


@pytest.mark.spec("000-4.1.12", "000-7.20", "000-14.7", "000-15.2")
async def test_a_job_is_retried_and_then_leaves_one_dead_letter(app: Any, clock: FakeClock) -> None:
    policy = {"attempts": 3, "backoff": {"type": "fixed", "delay": "10s", "jitter": False}}

    @job(queue="bad", retry=policy)
    async def bad(ctx: Any) -> None:
        raise OSError(f"attempt {ctx.attempt}")

    async with app(bad, clock=clock) as a, a.workers.background():
        id = await a.enqueue("bad", {"x": 1})
        for attempt in (1, 2):
            row = await a.wait_for_state(id, "delayed")
            while row.attempt < attempt:
                row = await a.wait_for_state(id, "delayed")
            a.advance_clock("10s")
        with pytest.raises(RunFailed, match="attempt 3"):
            await a.jobs.result(id, timeout=20)
        events = [e for e in await a.job_events("bad") if e.subject == id]
        assert [e.kind for e in events] == ["job.added", *["job.active", "job.failed"] * 3]
        failed = [e for e in events if e.kind == "job.failed"]
        assert [e.data["willRetry"] for e in failed] == [True, True, False]
        assert ["nextRetryAt" in e.data for e in failed] == [True, True, False]
        (letter,) = await a.list_dead_letters("bad")
        assert (letter.original_job_id, letter.original_data, letter.attempts_made) == (id, {"x": 1}, 3)
        assert (letter.run, letter.step) == (None, None)
        view = reduce_job(await a.job_events("bad"), id)
        assert (view.status, view.attempt, view.error) == ("failed", 3, "attempt 3")


async def test_enqueue_overrides_the_retry_policy(app: Any) -> None:
    @job(queue="bad", retry=5)
    async def bad() -> None:
        raise ValueError("no")

    async with app(bad) as a, a.workers.background():
        row = await a.wait_for_state(await a.enqueue("bad", retry=1), "failed", "delayed")
        assert (row.state.value, row.attempt) == ("failed", 1)


@pytest.mark.spec("000-4.1.3")
async def test_delay_and_at(app: Any, clock: FakeClock) -> None:
    async with app(echo, clock=clock) as a, a.workers.background():
        soon = await a.enqueue("echo", "soon", delay="1m")
        later = await a.enqueue("echo", "later", at=datetime.fromtimestamp(clock.now_ms() / 1000 + 120, UTC))
        assert (await a.queues.counts("echo"))["delayed"] == 2
        assert reduce_job(await a.job_events("echo"), soon).status == "delayed"
        a.advance_clock("1m")
        assert await a.jobs.result(soon, timeout=20) == "soon"
        assert (await a.jobs.get(later)).state.value == "delayed"
        a.advance_clock("1m")
        assert await a.jobs.result(later, timeout=20) == "later"


@pytest.mark.spec("002-7.6", "002-9.1")
async def test_priority_delay_and_name_of_the_decorator(app: Any, clock: FakeClock) -> None:
    order: list[str] = []

    @job(queue="mixed", name="low", priority=9, concurrency=1)
    async def low(input: str) -> None:
        order.append(input)

    @job(queue="mixed", name="high", priority=1)
    async def high(input: str) -> None:
        order.append(input)

    @job(queue="mixed", name="slow", delay="1h")
    async def slow(input: str) -> None:
        order.append(input)

    async with app(low, high, slow, clock=clock) as a:
        ids = [
            await a.enqueue("mixed", "low", name="low"),
            await a.enqueue("mixed", "high", name="high"),
            await a.enqueue("mixed", "urgent", name="low", priority=0),
        ]
        slowly = await a.enqueue("mixed", "slow", name="slow")
        async with a.workers.background():
            for id in ids:
                await a.wait_for_state(id, "completed")
            assert (await a.jobs.get(slowly)).state.value == "delayed"
    assert order == ["urgent", "high", "low"]


async def test_a_job_emits_to_its_queues_stream_and_starts_no_step(app: Any) -> None:
    @job(queue="talks")
    async def talks(ctx: Any) -> None:
        ctx.emit("noted.something", {"x": 1})

    async with app(talks) as a, a.workers.background():
        id = await a.enqueue("talks", correlation_id="c")
        await a.jobs.result(id, timeout=20)
        (noted,) = await a.job_events("talks", "noted.something")
        assert (noted.subject, noted.data, noted.correlation_id) == (id, {"x": 1}, "c")


async def test_a_producer_needs_no_handler(shared: Any) -> None:
    async with shared() as producer, shared(echo) as worker:
        id = await producer.enqueue("echo", {"from": "afar"})
        async with worker.workers.background():
            assert await producer.jobs.result(id, timeout=20) == {"from": "afar"}


async def test_invalid_jobs_are_refused(memory: Any) -> None:
    @job(queue="typed", input_schema={"type": "object", "required": ["a"]})
    async def typed() -> None: ...

    async with memory(typed, echo) as a:
        with pytest.raises(NotJSON):
            await a.enqueue("echo", object())
        with pytest.raises(PayloadTooLarge):
            await a.enqueue("echo", "x" * 70_000)
        with pytest.raises(SchemaViolation, match="'a'"):
            await a.enqueue("typed", {})
        with pytest.raises(SchemaViolation):
            await a.jobs.enqueue_many("typed", [{"a": 1}, {}])
        with pytest.raises(BadId):
            await a.enqueue("not a queue")
        with pytest.raises(BadId):
            await a.enqueue("echo", key="12345")
        with pytest.raises(BadArgument, match="correlation_id must be a string"):
            await a.enqueue("echo", correlation_id=7)
        assert [row.counts["waiting"] for row in await a.queues.list()] == [0, 0]


async def test_a_job_that_does_not_exist(memory: Any) -> None:
    async with memory(echo) as a:
        with pytest.raises(UnknownJob):
            await a.jobs.result("nobody")
        with pytest.raises(UnknownJob):
            await a.jobs.get("nobody")
        id = await a.enqueue("echo")
        with pytest.raises(WaitTimeout):
            await a.jobs.result(id, timeout="10ms")


async def test_a_failing_job_does_not_affect_others(app: Any) -> None:
    @job(queue="mixed")
    def mixed(input: int) -> int:
        if input % 3 == 0:
            raise Permanent("thirds are bad")
        return input

    async with app(mixed, concurrency=20) as a, a.workers.background():
        ids = await a.jobs.enqueue_many("mixed", range(60))
        rows = [await a.wait_for_state(id, "completed", "failed") for id in ids]
        assert [row.state.value == "failed" for row in rows] == [i % 3 == 0 for i in range(60)]
        assert len(await a.list_dead_letters("mixed")) == 20


async def test_a_module_job_runs_every_name_and_a_named_job_only_its_own(app: Any) -> None:
    @job(queue="q")
    async def anything(ctx: Any) -> str:
        return "anything"

    @job(queue="q", name="special")
    async def special() -> str:
        return "special"

    async with app(anything, special) as a, a.workers.background():
        assert await a.jobs.result(await a.enqueue("q"), timeout=20) == "anything"
        assert await a.jobs.result(await a.enqueue("q", name="other"), timeout=20) == "anything"
        assert await a.jobs.result(await a.enqueue("q", name="special"), timeout=20) == "special"


async def test_a_large_input_is_stored_once_and_not_redacted(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its event has its size. Redaction would read it, and only people need that."""
    redacted: list[int] = []
    redact = Redactor.redact_json
    monkeypatch.setattr(Redactor, "redact_json", lambda self, data: redacted.append(len(data)) or redact(self, data))
    got: list[int] = []

    @job(queue="letters")
    async def letter(text: str) -> None:
        got.append(len(text))

    async with app(letter) as a, a.workers.background():
        for length in (60_000, MAX_SHOWN_INPUT_BYTES - 2):
            await a.jobs.result(await a.enqueue(letter, "x" * length))
        large, small = await a.job_events("letters", "job.added")
        assert (large.data, large.meta["inputBytes"]) == (None, 60_002)
        assert len(small.data) == MAX_SHOWN_INPUT_BYTES - 2
        assert "inputBytes" not in small.meta
    assert got == [60_000, MAX_SHOWN_INPUT_BYTES - 2]
    assert max(redacted) < 2 * MAX_SHOWN_INPUT_BYTES
