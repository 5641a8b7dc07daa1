"""A commit whose reply was lost is repeated: the store recognises it and writes nothing twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from ...ports.store import ScheduleRow, Store
from ...ports.unit import (
    Cancelled,
    Committed,
    Completed,
    Dead,
    Memo,
    Outcome,
    Refused,
    Released,
    RetryAt,
    ScheduleMove,
    SettleWait,
    StateWrite,
    Suspended,
    Unit,
)
from ..clock import FakeClock
from .samples import (
    ERROR,
    STREAM,
    add_and_claim,
    apply,
    claim,
    claim_one,
    event,
    job,
    run,
    unit,
    user_event,
    wait,
)
from .seeded_store import seed_store
from .store_under_test import StoreUnderTest, take_snapshot

Prepare = Callable[[Store], Awaitable[Unit]]


async def _events_only(store: Store) -> Unit:
    return unit(events=[event(), event()])


async def _jobs_and_events(store: Store) -> Unit:
    return unit(jobs=[job("j")], events=[event()])


async def _removes(store: Store) -> Unit:
    await apply(store, unit(jobs=[job("j")]))
    return unit(removes=["j"], jobs=[job("j2")])


async def _compare_and_set(store: Store) -> Unit:
    await apply(store, unit(state=[StateWrite("k", b"1")]))
    return unit(state=[StateWrite("k", b"2", expect=1)])


async def _plain_set(store: Store) -> Unit:
    return unit(state=[StateWrite("k", b"2")])


async def _once(store: Store) -> Unit:
    return unit(once_key="delivery", events=[event()])


async def _schedule(store: Store) -> Unit:
    await store.put_schedule(ScheduleRow("s", b"{}", b"{}", 1000), None)
    return unit(schedule=ScheduleMove("s", 1000, 2000), jobs=[job("s.1000")])


async def _wait(store: Store) -> Unit:
    await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))
    return unit(waits=[SettleWait("w", "resolved")], events=[event()])


async def _lenient_wait(store: Store) -> Unit:
    await apply(store, unit(run=run("r"), waits=[wait("w", "r"), wait("x", "r")]))
    return unit(waits=[SettleWait("w", "cancelled", lenient=True), wait("new", "r")])


async def _wakes(store: Store) -> Unit:
    await apply(store, unit(claim=await add_and_claim(store, "j"), outcome=Suspended()))
    return unit(wakes=["j"], events=[event()])


async def _delivers(store: Store) -> Unit:
    await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]))
    return unit(events=[user_event("order.paid")])


async def _pauses_run(store: Store) -> Unit:
    await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")]))
    return unit(run=run("r", 1, paused=True))


async def _resumes_run(store: Store) -> Unit:
    await apply(store, unit(run=run("r", paused=True), jobs=[job("r.a.1", run="r")]))
    assert await claim(store) == []
    return unit(run=run("r", 1))


async def _run_started(store: Store) -> Unit:
    return unit(run=run("r"), events=[event()], jobs=[job("r.a.1", run="r")])


async def _run_moved(store: Store) -> Unit:
    await apply(store, unit(run=run("r")))
    return unit(run=run("r", 1), events=[event()])


async def _progress(store: Store) -> Unit:
    return unit(claim=await add_and_claim(store, "j"), progress=b"50", events=[event("step.log")])


async def _calls(store: Store) -> Unit:
    found = await add_and_claim(store, "j")
    memos = [Memo(found.scope, "charge#1", b"1"), Memo(found.scope, "mail#1", b"2")]
    return unit(claim=found, memos=memos, events=[event("call.completed"), event("call.completed")])


COMMANDS = [
    _run_started,
    _events_only,
    _jobs_and_events,
    _removes,
    _compare_and_set,
    _plain_set,
    _once,
    _schedule,
    _wait,
    _lenient_wait,
    _wakes,
    _delivers,
    _pauses_run,
    _resumes_run,
    _run_moved,
    _progress,
    _calls,
]
every_command = pytest.mark.parametrize("prepare", COMMANDS, ids=[p.__name__.lstrip("_") for p in COMMANDS])
# A start repeated later may also be answered with a conflict that carries the current run.
every_later_command = pytest.mark.parametrize(
    "prepare", COMMANDS[1:], ids=[p.__name__.lstrip("_") for p in COMMANDS[1:]]
)
every_outcome = pytest.mark.parametrize(
    "outcome",
    [Completed(b"1"), RetryAt(0, ERROR), Dead(ERROR), Suspended(), Suspended(10**13), Cancelled("stop"), Released()],
    ids=lambda outcome: type(outcome).__name__,
)


class RepeatContract(StoreUnderTest):
    """Commits are safe to repeat, whatever they contain."""

    @every_command
    async def test_a_repeated_command_is_recognised(self, store: Store, prepare: Prepare) -> None:
        command = await prepare(store)
        first = await apply(store, command)
        assert isinstance(first, Committed)
        assert not first.repeated
        before = await take_snapshot(store)
        assert await apply(store, command) == Committed(repeated=True)
        assert await take_snapshot(store) == before

    @every_later_command
    async def test_a_repeat_is_recognised_after_others_have_written(self, store: Store, prepare: Prepare) -> None:
        command = await prepare(store)
        await apply(store, command)
        run_now = [row.version for row in await store.runs()]
        move = unit(run=run("r", run_now[0]), events=[event()]) if run_now else unit(events=[event()])
        assert isinstance(await apply(store, move), Committed)
        before = await take_snapshot(store)
        assert await apply(store, command) == Committed(repeated=True)
        assert await take_snapshot(store) == before

    @every_outcome
    async def test_a_repeated_attempt_is_recognised(self, store: Store, outcome: Outcome) -> None:
        mine = unit(claim=await add_and_claim(store, "j"), outcome=outcome, events=[event()], jobs=[job("next")])
        assert not (await apply(store, mine)).repeated  # type: ignore[union-attr]
        before = await take_snapshot(store)
        assert await apply(store, mine) == Committed(repeated=True)
        assert await take_snapshot(store) == before

    async def test_a_repeated_attempt_is_recognised_once_another_holds_the_job(
        self, store: Store, clock: FakeClock
    ) -> None:
        mine = unit(claim=await add_and_claim(store, "j"), outcome=RetryAt(clock.now_ms(), ERROR), events=[event()])
        await apply(store, mine)
        other = await claim_one(store, worker="w2")
        before = await take_snapshot(store)
        assert await apply(store, mine) == Committed(repeated=True)
        assert await take_snapshot(store) == before
        assert isinstance(await apply(store, unit(claim=other, outcome=Completed())), Committed)

    async def test_a_unit_with_every_part_is_recognised(self, store: Store) -> None:
        whole = (await seed_store(store)).full_unit()
        assert isinstance(await apply(store, whole), Committed)
        before = await take_snapshot(store)
        assert await apply(store, whole) == Committed(repeated=True)
        assert await take_snapshot(store) == before

    async def test_a_repeated_batch_is_recognised_unit_by_unit(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r"), job("r.b.1", run="r")]))
        a, b = await claim_one(store), await claim_one(store)
        batch = [
            unit(claim=a, outcome=Completed(), run=run("r", 1), events=[event()]),
            unit(claim=b, outcome=Completed(), run=run("r", 2), events=[event()]),
            unit(run=run("r", 3), events=[event()]),
            unit(run=run("r", 4), events=[event()]),
            unit(events=[event()]),
        ]
        await store.commit(batch)
        before = await take_snapshot(store)
        assert (await store.commit(batch)).receipts == [Committed(repeated=True)] * 5
        assert await take_snapshot(store) == before

    async def test_several_units_of_one_attempt_are_recognised(self, store: Store) -> None:
        claim = await add_and_claim(store, "j")
        logs = [unit(claim=claim, events=[event(data=n)]) for n in range(3)]
        await store.commit(logs)
        assert (await store.commit(logs)).receipts == [Committed(repeated=True)] * 3
        assert [e.data for e in await store.read(STREAM)] == [0, 1, 2]

    async def test_a_repeated_start_starts_nothing(self, store: Store) -> None:
        start = await _run_started(store)
        await apply(store, start)
        await apply(store, unit(run=run("r", 1, b'"moved"')))
        before = await take_snapshot(store)
        receipt = await apply(store, start)
        assert receipt == Committed(repeated=True) or receipt.version == 2  # type: ignore[union-attr]
        assert await take_snapshot(store) == before

    async def test_a_key_used_by_another_unit_is_not_a_repeat(self, store: Store) -> None:
        await apply(store, unit(once_key="delivery"))
        assert await apply(store, unit(once_key="delivery")) == Refused("duplicate", "delivery")
