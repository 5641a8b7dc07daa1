"""Jobs whose stored input, options or `started` event cannot be decoded, on every store: each fails alone and once."""

from __future__ import annotations

import logging
from typing import Any

import apsw
import asyncpg
import pytest
from redis import Redis

from penstock import Permanent, flow, job
from penstock.app.diagnosis import diagnose
from penstock.core.errors import UnreadableJob
from penstock.core.payload import show_stored
from penstock.durable.session import LOOK_BACK
from penstock.ports.unit import DELIVER, DELIVERIES, EMIT, START, Claim, JobState, NewJob, Unit
from penstock.testing.clock import FakeClock
from penstock.testing.until import until

DEEP = b"[" * 5000 + b"]" * 5000
BROKEN = {"text": b"{oops", "open": b"[" * 5000, "deep": DEEP, "not UTF-8": b'"\xff\xfe"', "empty": b"", "NaN": b"NaN"}
FIELDS = {"payload": "data", "opts": "nq:opts", "started_prefix": "nq:started"}


class StoredJobs:
    """Overwrites columns of jobs as anybody with access to the database could."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def overwrite(self, job: str, column: str, value: Any) -> None:
        if self.url.startswith("sqlite:"):
            file = apsw.Connection(self.url.removeprefix("sqlite:///"))
            file.execute(f"UPDATE jobs SET {column} = ? WHERE id = ?", (value, job))
            assert file.changes() == 1
            file.close()
        elif self.url.startswith("redis:"):
            with Redis.from_url(self.url) as redis:
                (key,) = redis.keys(f"bull:*:{job}")
                if value is None:
                    redis.hdel(key, FIELDS[column])
                else:
                    redis.hset(key, FIELDS[column], value)
        else:
            await self._overwrite_row(job, column, value)

    async def _overwrite_row(self, job: str, column: str, value: Any) -> None:
        if column == "started_prefix" and value is not None:
            value = value.decode(errors="replace")
        if column == "payload":
            value = value.decode()
        address, _, schema = self.url.partition("?schema=")
        connection = await asyncpg.connect(address)
        try:
            done = await connection.execute(f'UPDATE "{schema}".jobs SET {column} = $1 WHERE id = $2', value, job)
            assert done == "UPDATE 1"
        finally:
            await connection.close()


@pytest.fixture
def stored(shared_url: str) -> StoredJobs:
    return StoredJobs(shared_url)


def values_of(stored: StoredJobs, column: str) -> dict[str, Any]:
    if column == "payload" and stored.url.startswith("postgres"):
        return {"deep": DEEP}  # the column holds JSON only
    if column == "payload" and stored.url.startswith("redis:"):
        return {case: value for case, value in BROKEN.items() if value}  # BullMQ reads an empty one as {}
    if column == "opts":
        return {**BROKEN, "list": b"[]", "number": b"7", "wrong types": b'{"retry":7,"redriven":"x"}'}
    return {**BROKEN}


@pytest.mark.parametrize("column", ["payload", "opts"])
async def test_a_job_that_cannot_be_decoded_fails_once(
    shared: Any, stored: StoredJobs, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")
    calls = []

    @job(queue="mail", retry=5)
    async def send(input: Any, ctx: Any) -> str:
        calls.append(ctx.job_id)
        return "sent"

    values = values_of(stored, column)
    async with shared(send, lease="10s", max_crashes=1) as a:
        good = [await a.enqueue("mail", n) for n in range(len(values))]
        bad = {case: await a.enqueue("mail", case) for case in values}
        good += [await a.enqueue("mail", n) for n in range(len(values))]
        for case, value in values.items():
            await stored.overwrite(bad[case], column, value)
        async with a.workers.background():
            for id in good:
                assert await a.jobs.result(id, timeout=20) == "sent"
            for case, id in bad.items():
                row = await a.wait_for_state(id, "failed", "completed")
                assert (case, row.state, row.failures, row.attempt) == (case, JobState.FAILED, 1, 1)
                assert show_stored(row.error)["code"] == "unreadable_job"
                shown = await a.jobs.get(id)
                assert shown.error["name"] == "UnreadableJob"
                assert (shown.unreadable is not None) == (column == "payload"), case
                letter = await a.dead_letters.get(id)
                assert letter.unreadable
                assert len([e for e in await a.job_events("mail", "job.failed") if e.subject == id]) == 1
                assert (await a.dead_letters.redrive(id)).refused
                sent = (await a.dead_letters.redrive(id, input="again")).sent
                (again,) = sent.values()
                assert await a.jobs.result(again, timeout=20) == "sent"
            assert not {*bad.values()} & {*calls}
            assert await a.jobs.list("mail", JobState.FAILED)
            assert all(check.ok or check.name in ("store", "disk") for check in await diagnose(a))


async def test_the_job_behind_one_that_cannot_be_decoded_runs(shared: Any, stored: StoredJobs) -> None:
    @job(queue="mail")
    async def send(input: Any) -> str:
        return "sent"

    async with shared(send) as a:
        bad = await a.enqueue("mail", 1, order_key="k")
        behind = await a.enqueue("mail", 2, order_key="k")
        await stored.overwrite(bad, "opts", b"{oops")
        async with a.workers.background():
            assert await a.jobs.result(behind, timeout=20) == "sent"
            await a.wait_for_state(bad, "failed")


@pytest.mark.parametrize("column", ["payload", "opts"])
async def test_a_step_that_cannot_be_decoded_fails_its_run(shared: Any, stored: StoredJobs, column: str) -> None:
    ran = []

    @flow("order", step="charge")
    async def charge(input: Any) -> str:
        ran.append(input)
        return "charged"

    async with shared(charge) as a:
        bad, good = await a.start("order", "bad"), await a.start("order", "good")
        await stored.overwrite(f"{bad}.charge.1", column, DEEP if column == "payload" else b"{oops")
        async with a.workers.background():
            assert await a.wait_for_end(good) == "completed"
            assert await a.wait_for_end(bad) == "failed"
            (failed,) = await a.events_of(bad, "step.failed")
            assert failed.data["name"] == "UnreadableJob"
            assert ran == ["good"]
            assert await a.runs.why(bad)
            assert not await a.store.stuck_runs()
            (letter,) = await a.list_dead_letters()
            assert letter.unreadable
            if column == "opts":
                (sent,) = (await a.dead_letters.redrive(letter.original_job_id, input="again")).sent.values()
                await a.wait_for_state(sent, "completed")
                assert ran == ["good", "again"]


async def test_an_internal_job_that_cannot_be_read_fails_once(shared: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")

    @flow("order", step="charge", start_on="order.placed")
    async def charge(input: Any) -> str:
        return "charged"

    async with shared(charge) as a, a.workers.background():
        inputs = (b"7", b"[]", b"{}", b'{"events":7}', b'{"events":[7]}', b"null")
        names = (DELIVER, LOOK_BACK, EMIT, START)
        jobs = [NewJob(f"bad-{name}-{n}", DELIVERIES, name, one) for name in names for n, one in enumerate(inputs)]
        await a.store.commit([Unit("bad-ones", jobs=jobs)])
        a.wake_all()
        for one in jobs:
            row = await a.wait_for_state(one.id, "failed", "completed")
            assert (one.name, one.payload, row.state, row.attempt) == (one.name, one.payload, JobState.FAILED, 1)
        await a.emit("order.placed", {"id": 1})

        async def has_run() -> bool:
            return [run.status for run in await a.runs.list()] == ["completed"]

        await until(has_run, 20)


async def test_a_started_event_that_cannot_be_decoded_stops_no_claim(
    shared: Any, stored: StoredJobs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")

    @job(queue="mail")
    async def send(input: Any) -> str:
        return "sent"

    values: dict[str, Any] = {**BROKEN, "missing": None}
    async with shared(send) as a:
        ids = {case: (await a.enqueue("mail", case), await a.enqueue("mail", "good")) for case in values}
        for case, value in values.items():
            await stored.overwrite(ids[case][0], "started_prefix", value)
        async with a.workers.background():
            for pair in ids.values():
                for id in pair:
                    assert await a.jobs.result(id, timeout=20) == "sent"
                    assert (await a.store.job(id)).attempt == 1


async def test_functions_of_a_redrive_that_need_the_input_pass_letters_without_one(
    shared: Any, stored: StoredJobs
) -> None:
    @job(queue="mail")
    async def send(input: Any) -> str:
        if input["to"] == "nobody":
            raise Permanent("no such address")
        return "sent"

    async with shared(send) as a:
        ids = [await a.enqueue("mail", {"to": "nobody"}) for _ in range(2)]
        await stored.overwrite(ids[0], "payload", DEEP)
        async with a.workers.background():
            for id in ids:
                await a.wait_for_state(id, "failed")
            letters = f"{ids[0]}.dlq", f"{ids[1]}.dlq"
            done = await a.dead_letters.redrive_all("mail", where=lambda one: one.original_data["to"] == "somebody")
            assert (done.sent, done.refused) == ({}, {})
            done = await a.dead_letters.redrive_all("mail", change=lambda data: {**data, "to": "eve"})
            assert ([*done.sent], [*done.refused]) == ([letters[1]], [letters[0]])
            done = await a.dead_letters.redrive_all("mail", change=lambda _: {"to": "eve"})
            assert await a.jobs.result(done.sent[letters[0]], timeout=20) == "sent"


@pytest.mark.parametrize(("problem", "attempts"), [(UnreadableJob("junk"), 1), (RuntimeError("a bug"), 3)])
async def test_a_claim_that_cannot_be_opened_is_given_up(
    app: Any, clock: FakeClock, problem: Exception, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once if it can never be opened, else when it has failed as often as a job may crash its workers."""

    @job(queue="mail")
    async def send(input: Any) -> Any:
        return input

    async with app(send, clock=clock, max_crashes=2) as a:
        ids = [await a.enqueue("mail", name, key=name, order_key="k") for name in ("bad", "good")]
        opened, open_claim = [], a._engines.open

        def fail(claim: Claim) -> Any:
            if claim.job != "bad":
                return open_claim(claim)
            opened.append(claim.attempt)
            raise problem

        monkeypatch.setattr(a._engines, "open", fail)
        async with a.workers.background():
            for n in range(1, attempts):
                await until(lambda n=n: opened == [*range(1, n + 1)], 20)
                a.advance_clock("31s")
            row = await a.wait_for_state(ids[0], "failed")
            assert await a.jobs.result(ids[1], timeout=20) == "good"
        assert opened == [*range(1, attempts + 1)]
        assert show_stored(row.error)["name"] == type(problem).__name__
        (failed,) = await a.job_events("mail", "job.failed")
        assert (failed.subject, failed.data["willRetry"]) == ("bad", False)
