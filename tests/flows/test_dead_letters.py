"""Dead letters: exactly one per final failure, with all details, and how to redrive them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import Permanent, flow, job, step
from penstock.core.clock import to_iso
from penstock.core.errors import PenstockError, UnknownJob
from penstock.core.ids import step_job_id
from penstock.testing.clock import FakeClock
from penstock.testing.until import until

QUICK = {"attempts": 3, "backoff": {"type": "fixed", "delayMs": 1, "jitter": False}}


def shop(broken: dict[str, bool], *, retry: Any = None) -> list[Any]:
    """Build a flow whose second step fails while `broken["yes"]`."""

    @flow("shop", emits=["ordered"])
    async def order(input: Any, ctx: Any) -> None:
        ctx.emit("ordered", input)

    @step(on="ordered", queue="pay", retry=retry, emits=["paid"])
    async def charge(input: Any, ctx: Any) -> Any:
        if broken["yes"] and input != "good":
            raise ConnectionError("bank is closed")
        ctx.emit("paid", input)
        return input

    @step(on="paid")
    async def ship(input: Any) -> Any:
        return {"shipped": input}

    return [order, charge, ship]


@pytest.mark.spec("000-4.1.13", "002-5.2")
async def test_three_attempts_make_exactly_one_dead_letter_with_all_details(app: Any, clock: FakeClock) -> None:
    async with app(*shop({"yes": True}, retry=QUICK), clock=clock) as a, a.workers.background():
        run = await a.start("shop", {"order": 7}, correlation_id="basket-1")
        for attempt in (1, 2):
            row = await a.wait_for_step(run, "charge", "delayed")
            while row.attempt < attempt:
                row = await a.wait_for_step(run, "charge", "delayed")
            assert await a.list_dead_letters("pay") == [], "not before the last attempt"
            a.advance_clock("1ms")
        assert await a.wait_for_end(run) == "failed"
        (letter,) = await a.list_dead_letters("pay")
        assert letter.original_job_id == step_job_id(run, "charge", 1)
        assert letter.original_job_name == "charge"
        assert letter.original_data == {"order": 7}
        assert letter.error["message"] == "bank is closed"
        assert "in charge" in letter.error["stack"]
        assert letter.error["name"] == "ConnectionError"
        assert letter.failed_at == to_iso(clock.now_ms())
        assert letter.attempts_made == 3
        assert (letter.run, letter.flow, letter.step, letter.queue) == (run, "shop", "charge", "pay")
        assert letter.correlation_id == "basket-1"
        assert await a.dead_letters.queues() == {"pay-dlq": 1}
        assert await a.dead_letters.get(letter.original_job_id) == letter
        failed = await a.events_of(run, "step.failed", "charge")
        assert [e.data["willRetry"] for e in failed] == [True, True, False]


@pytest.mark.spec("002-5.2")
async def test_the_json_of_a_dead_letter(app: Any) -> None:
    async with app(*shop({"yes": True})) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", 1)
        (row,) = await a.jobs.list("pay-dlq")
        assert row.id == f"{step_job_id(run, 'charge', 1)}.dlq"
        body = row.input
        assert {"originalJobId", "originalJobName", "originalData", "error", "failedAt", "attemptsMade"} <= set(body)
        assert {"message", "stack"} <= set(body["error"])


async def test_a_permanent_failure_is_a_dead_letter_at_once(app: Any) -> None:
    @flow("never", retry=5)
    async def never() -> None:
        raise Permanent("bad address")

    async with app(never) as a, a.workers.background():
        await a.run_to_end("never")
        (letter,) = await a.list_dead_letters()
        assert (letter.attempts_made, letter.error["code"]) == (1, "permanent")


@pytest.mark.spec("000-14.7", "000-14.8")
async def test_dead_letters_can_be_disabled_or_sent_to_another_queue(app: Any) -> None:
    @job(queue="quiet", dead_letters=False)
    async def quiet() -> None:
        raise ValueError("unheard")

    @job(queue="dropped", retry={"attempts": 1, "onFail": "drop"})
    async def dropped() -> None:
        raise ValueError("unheard")

    @job(queue="loud", dead_letter_queue="graveyard")
    async def loud(input: Any) -> None:
        raise ValueError("loud_job")

    async with app(quiet, dropped, loud) as a, a.workers.background():
        loud_job = await a.enqueue("loud", 1)
        for id in (await a.enqueue("quiet"), await a.enqueue("dropped"), loud_job):
            await a.wait_for_state(id, "failed")
        assert await a.dead_letters.queues() == {"graveyard": 1}
        assert await a.list_dead_letters("quiet") == []
        assert await a.list_dead_letters("graveyard") == await a.list_dead_letters("loud") != []
        done = await a.dead_letters.redrive(loud_job)
        await a.wait_for_state(done.sent[f"{loud_job}.dlq"], "failed")
        assert len((await a.dead_letters.redrive_all("graveyard")).sent) == 1


# Redriving


async def test_a_redriven_step_completes_its_run(app: Any) -> None:
    broken = {"yes": True}
    async with app(*shop(broken)) as a, a.workers.background():
        run, status = await a.run_to_end("shop", "x")
        assert status == "failed"
        broken["yes"] = False
        done = await a.dead_letters.redrive(step_job_id(run, "charge", 1))
        assert list(done.sent.values()) == [f"{step_job_id(run, 'charge', 1)}.redrive-1"]
        assert await a.result(run, timeout=20) == {"shipped": "x"}
        assert await a.dead_letters.queues() == {}
        assert (await a.kinds(run, "step.", "flow."))[-8:] == [
            "flow.failed",
            "step.redriven",
            "flow.reopened",
            "step.started",
            "step.completed",
            "step.started",
            "step.completed",
            "flow.completed",
        ]
        view = await a.runs.get(run)
        assert (view.status, view.steps["charge"].status, view.error) == ("completed", "completed", None)


async def test_a_dead_letter_can_be_redriven_repeatedly(app: Any) -> None:
    broken = {"yes": True}
    async with app(*shop(broken)) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", "x")
        base = step_job_id(run, "charge", 1)
        job = base
        for turn in (1, 2, 3):
            (sent,) = (await a.dead_letters.redrive(job)).sent.values()
            assert sent == f"{base}.redrive-{turn}"
            job = sent
            await a.wait_for_state(job, "failed")
            assert len(await a.list_dead_letters("pay")) == 1
        broken["yes"] = False
        await a.dead_letters.redrive(job)
        assert await a.wait_for_end(run) == "completed"


async def test_a_dead_letter_can_be_redriven_with_another_payload(app: Any) -> None:
    async with app(*shop({"yes": True})) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", "bad")
        await a.dead_letters.redrive(step_job_id(run, "charge", 1), input="good")
        assert await a.result(run, timeout=20) == {"shipped": "good"}


async def test_many_dead_letters_are_redriven_by_filter_and_with_edited_payloads(app: Any) -> None:
    broken = {"yes": True}

    @job(queue="mail")
    async def mail(input: Any) -> Any:
        if broken["yes"] and not input.get("fixed"):
            raise ValueError(f"no server for {input['to']}")
        return input

    async with app(mail, concurrency=50) as a, a.workers.background():
        ids = await a.jobs.enqueue_many("mail", [{"to": "left" if i % 2 else "right", "i": i} for i in range(40)])
        for id in ids:
            await a.wait_for_state(id, "failed")
        limited = await a.dead_letters.redrive_all("mail", limit=3)
        assert len(limited.sent) == 3
        for id in limited.sent.values():
            await a.wait_for_state(id, "failed")
        left = await a.dead_letters.redrive_all("mail", where=lambda letter: letter.original_data["to"] == "left")
        assert len(left.sent) == 20
        for id in left.sent.values():
            await a.wait_for_state(id, "failed")
        done = await a.dead_letters.redrive_all("mail-dlq", change=lambda data: {**data, "fixed": True})
        assert (len(done.sent), done.refused) == (40, {})
        results = [await a.jobs.result(id, timeout=20) for id in done.sent.values()]
        assert sorted(r["i"] for r in results) == list(range(40))
        assert await a.dead_letters.queues() == {}


async def test_concurrent_redrives_send_each_dead_letter_once(app: Any) -> None:
    ran: list[int] = []
    broken = {"yes": True}

    @job(queue="mail")
    async def mail(input: int) -> None:
        if broken["yes"]:
            raise ValueError("no")
        ran.append(input)

    async with app(mail, concurrency=50) as a, a.workers.background():
        for id in await a.jobs.enqueue_many("mail", range(30)):
            await a.wait_for_state(id, "failed")
        broken["yes"] = False
        results = await asyncio.gather(*(a.dead_letters.redrive_all("mail") for _ in range(4)))
        sent = [id for done in results for id in done.sent]
        assert sorted(sent) == sorted(set(sent))
        assert len(sent) == 30
        assert {why for done in results for why in done.refused.values()} <= {
            "another call has already taken this dead letter"
        }
        for done in results:
            for id in done.sent.values():
                await a.wait_for_state(id, "completed")
    assert sorted(ran) == list(range(30))


async def test_concurrent_redrives_of_a_step_in_two_apps(shared: Any) -> None:
    broken = {"yes": True}
    async with shared(*shop(broken)) as a, shared(*shop(broken)) as b:
        async with a.workers.background():
            runs = [(await a.run_to_end("shop", i))[0] for i in range(5)]
        broken["yes"] = False
        results = await asyncio.gather(*(x.dead_letters.redrive_all("pay") for x in (a, b, a, b)))
        assert sum(len(done.sent) for done in results) == 5
        async with a.workers.background(), b.workers.background():
            for run in runs:
                assert await a.wait_for_end(run) == "completed"
                assert len(await a.events_of(run, "step.redriven")) == 1
                assert len(await a.events_of(run, "step.completed", "charge")) == 1


async def test_redriving_a_dead_letter_of_a_cancelled_run_is_refused(app: Any) -> None:
    release = asyncio.Event()

    @flow("two", emits=["go"])
    async def begin(ctx: Any) -> None:
        ctx.emit("go")

    @step(on="go")
    async def breaks() -> None:
        raise ValueError("no")

    @step(on="go")
    async def slow() -> None:
        await release.wait()

    async with app(begin, breaks, slow) as a, a.workers.background():
        run = await a.start("two")
        await a.wait_for_step(run, "breaks", "failed")
        assert await a.runs.cancel(run)
        done = await a.dead_letters.redrive(step_job_id(run, "breaks", 1))
        assert done.sent == {}
        ((letter, why),) = done.refused.items()
        assert "cancelled" in why
        assert "start a new run" in why
        assert await a.dead_letters.get(letter), "nothing is lost"
        assert (await a.kinds(run))[-1] == "flow.cancelled"


async def test_a_run_completes_once_its_last_failure_is_redriven(app: Any) -> None:
    broken = {"left": True, "right": True}

    @flow("two", emits=["go"])
    async def begin(ctx: Any) -> None:
        ctx.emit("go")

    def side(name: str) -> Any:
        @step(on="go", name=name)
        async def work() -> str:
            if broken[name]:
                raise ValueError(name)
            return name

        return work

    async with app(begin, side("left"), side("right")) as a, a.workers.background():
        run, status = await a.run_to_end("two")
        assert status == "failed"
        broken["left"] = False
        await a.dead_letters.redrive(step_job_id(run, "left", 1))
        await a.wait_for_state(f"{step_job_id(run, 'left', 1)}.redrive-1", "completed")
        assert await a.wait_for_end(run) == "failed"
        assert "right" in ((await a.stream(run))[-1].data)["error"]
        broken["right"] = False
        await a.dead_letters.redrive(step_job_id(run, "right", 1))
        assert await a.result(run, timeout=20) == {"left": "left", "right": "right"}


async def test_a_redriven_step_keeps_its_patches(app: Any) -> None:
    broken = {"yes": True}

    @flow("counted")
    async def count(ctx: Any) -> int:
        total = await ctx.state.patch("n", lambda n: (n or 0) + 1)
        if broken["yes"]:
            raise ValueError("after counting")
        return total

    async with app(count) as a, a.workers.background():
        run, _ = await a.run_to_end("counted")
        broken["yes"] = False
        await a.dead_letters.redrive(step_job_id(run, "count", 1))
        assert await a.result(run, timeout=20) == 1


async def test_discard_and_missing_dead_letters(app: Any) -> None:
    async with app(*shop({"yes": True})) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", 1)
        letter = f"{step_job_id(run, 'charge', 1)}.dlq"
        assert await a.dead_letters.discard(letter)
        with pytest.raises(UnknownJob, match="dead letter"):
            await a.dead_letters.get(letter)
        with pytest.raises(UnknownJob):
            await a.dead_letters.redrive("nothing")
        impostor = await a.enqueue("pay", {"not": "a letter"}, key="impostor.dlq", delay="1h")
        with pytest.raises(PenstockError, match="not a dead letter"):
            await a.dead_letters.get(impostor)


async def test_a_redrive_with_another_input_records_it(app: Any) -> None:
    @flow("shop", retry=1)
    async def charge(amount: int) -> int:
        if amount < 0:
            raise Permanent("no")
        return amount

    async with app(charge) as a, a.workers.background():
        run, _ = await a.run_to_end("shop", -1)
        await a.dead_letters.redrive(step_job_id(run, "charge", 1))

        async def has_failed_again() -> bool:
            return (await a.kinds(run, "step.")).count("step.failed") == 2

        await until(has_failed_again)
        await a.dead_letters.redrive(step_job_id(run, "charge", 1) + ".redrive-1", input=5)
        assert await a.result(run, timeout=20) == 5
        started = [event.data for event in await a.events_of(run, "step.started")]
        assert started == [None, None, {"input": 5}]
