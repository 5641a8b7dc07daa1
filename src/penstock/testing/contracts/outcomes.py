"""How an attempt can end, and what happens to its job."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ...ports.store import JobRow, Store
from ...ports.unit import (
    Cancelled,
    Committed,
    Completed,
    Dead,
    Fenced,
    JobState,
    Memo,
    Outcome,
    Released,
    RetryAt,
    Suspended,
)
from ..clock import FakeClock
from .samples import ERROR, STREAM, add_and_claim, apply, claim, claim_one, claim_request, event, names, started, unit
from .store_under_test import StoreUnderTest


class OutcomeContract(StoreUnderTest):
    """The effect of each outcome on the queue."""

    async def test_completed_keeps_the_result(self, store: Store, clock: FakeClock) -> None:
        row = await _end(store, Completed(b'{"ok":1}'))
        assert (row.state, row.result, row.error, row.failures) == (JobState.COMPLETED, b'{"ok":1}', None, 0)
        assert row.finished == clock.now_ms()

    async def test_completed_without_a_result(self, store: Store) -> None:
        assert (await _end(store, Completed())).result is None

    async def test_retry_waits_until_it_is_due(self, store: Store, clock: FakeClock) -> None:
        due = clock.now_ms() + 5000
        row = await _end(store, RetryAt(due, ERROR))
        assert (row.state, row.due, row.error, row.failures) == (JobState.DELAYED, due, ERROR, 1)
        assert row.finished is None
        clock.set_ms(due - 1)
        assert await claim(store) == []
        clock.set_ms(due)
        again = await claim_one(store)
        assert (again.attempt, again.failures, again.crashes) == (2, 1, 0)

    async def test_retry_at_once(self, store: Store, clock: FakeClock) -> None:
        await _end(store, RetryAt(clock.now_ms(), ERROR))
        assert (await claim_one(store)).attempt == 2

    async def test_dead_keeps_the_error_and_counts_it(self, store: Store, clock: FakeClock) -> None:
        row = await _end(store, Dead(ERROR))
        assert (row.state, row.error, row.failures, row.result) == (JobState.FAILED, ERROR, 1, None)
        assert row.finished == clock.now_ms()

    async def test_an_error_of_another_form_ends_its_job_too(self, store: Store) -> None:
        row = await _end(store, Dead(b'"out of paper"'))
        assert (row.state, row.error, row.failures) == (JobState.FAILED, b'"out of paper"', 1)

    async def test_suspended_is_neither_active_nor_finished(self, store: Store, clock: FakeClock) -> None:
        row = await _end(store, Suspended())
        assert (row.state, row.finished, row.failures) == (JobState.SUSPENDED, None, 0)
        clock.advance("1d")
        assert await claim(store, max_active=1) == []
        (queue,) = await store.queues()
        assert (queue.counts["suspended"], queue.counts["active"]) == (1, 0)

    async def test_cancelled_is_final(self, store: Store, clock: FakeClock) -> None:
        row = await _end(store, Cancelled("asked for"))
        assert (row.state, row.finished, row.failures) == (JobState.CANCELLED, clock.now_ms(), 0)

    async def test_a_released_job_keeps_its_position(self, store: Store) -> None:
        first = await add_and_claim(store, "first")
        await add_and_claim(store, "second")
        await apply(store, unit(claim=first, outcome=Released()))
        row = await store.job("first")
        assert row is not None
        assert (row.state, row.failures, row.crashes, row.error) == (JobState.WAITING, 0, 0, None)
        again = await claim_one(store)
        assert (again.job, again.attempt, again.failures, again.crashes) == ("first", 2, 0, 0)

    async def test_a_job_released_with_a_delay(self, store: Store, clock: FakeClock) -> None:
        due = clock.now_ms() + 1000
        row = await _end(store, Released(due))
        assert (row.state, row.due) == (JobState.DELAYED, due)
        assert (await store.claim(claim_request())).next_due == due
        clock.set_ms(due)
        assert names(await claim(store)) == ["j"]

    async def test_a_unit_without_an_outcome_continues_the_attempt(self, store: Store) -> None:
        one = await add_and_claim(store, "j")
        for percent in (b"10", b"20"):
            assert isinstance(await apply(store, unit(claim=one, progress=percent, events=[event()])), Committed)
        row = await store.job("j")
        assert row is not None
        assert (row.state, row.progress) == (JobState.ACTIVE, b"20")
        assert isinstance(await apply(store, unit(claim=one, outcome=Completed())), Committed)

    @pytest.mark.parametrize(
        "outcome",
        [Completed(), RetryAt(0, ERROR), Dead(ERROR), Suspended(), Cancelled("stop"), Released()],
        ids=lambda outcome: type(outcome).__name__,
    )
    async def test_an_attempt_ends_once(self, store: Store, outcome: Outcome) -> None:
        one = await add_and_claim(store, "j")
        await apply(store, unit(claim=one, outcome=outcome))
        before = await store.job("j")
        assert await apply(store, unit(claim=one, outcome=Completed(b"2"))) == Fenced()
        assert await apply(store, unit(claim=one, progress=b"9")) == Fenced()
        assert await store.job("j") == before

    async def test_a_removed_job_is_fenced(self, store: Store) -> None:
        one = await add_and_claim(store, "j")
        await apply(store, unit(claim=one, outcome=Released()))
        assert await store.remove("j")
        assert await apply(store, unit(claim=one, outcome=Completed())) == Fenced()
        # The old claim does not match a new job with the same id either.
        other = await add_and_claim(store, "j")
        assert await apply(store, unit(claim=one, outcome=Completed())) == Fenced()
        assert isinstance(await apply(store, unit(claim=other, outcome=Completed())), Committed)

    async def test_two_attempts_have_different_tokens(self, store: Store) -> None:
        one = await add_and_claim(store, "j")
        await apply(store, unit(claim=one, outcome=Released()))
        two = await claim_one(store)
        assert two.token != one.token
        forged = msgspec.structs.replace(two, token=one.token)
        assert await apply(store, unit(claim=forged, outcome=Completed())) == Fenced()

    @pytest.mark.parametrize("outcome", [Released(gives_attempt_back=True), Suspended(1)])
    async def test_an_attempt_that_gives_its_number_back(self, store: Store, outcome: Outcome) -> None:
        one = await add_and_claim(store, "j", started=started())
        memo = Memo(one.scope, "call#1", b"7")
        await apply(store, unit(claim=one, outcome=outcome, memos=[memo]))
        row = await store.job("j")
        assert row is not None
        assert (row.attempt, row.failures) == (0, 0)
        two = await claim_one(store)
        assert (two.attempt, two.memos) == (1, {"call#1": b"7"})
        assert await apply(store, unit(claim=one, outcome=Completed())) == Fenced()
        assert await asyncio.to_thread(store.renew, [one], 30_000) == [one]
        assert isinstance(await apply(store, unit(claim=two, outcome=RetryAt(0, ERROR))), Committed)
        three = await claim_one(store)
        assert three.attempt == 2
        await apply(store, unit(claim=three, outcome=Dead(ERROR, gives_attempt_back=True)))
        row = await store.job("j")
        assert row is not None
        assert (row.attempt, row.failures) == (1, 2)
        assert [event.meta["attempt"] for event in await store.read(STREAM) if event.meta] == [1, 1, 2]


async def _end(store: Store, outcome: Outcome) -> JobRow:
    one = await add_and_claim(store, "j")
    assert isinstance(await apply(store, unit(claim=one, outcome=outcome)), Committed)
    row = await store.job("j")
    assert row is not None
    return row
