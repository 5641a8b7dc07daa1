"""Cancelling plain jobs: in every open state, once, with what depends on them."""

from __future__ import annotations

import pytest

from ...ports.store import Store
from ...ports.unit import CancelJob, Committed, Completed, Dedupe, Fenced, JobState, Refused, Unit
from ..clock import FakeClock
from .job_trees import KIDS, child, children_of, end, tree
from .queue_admin import IN_STATE
from .samples import ERROR, QUEUE, add, add_and_claim, apply, claim, claim_one, event, job, names, state_of, unit
from .store_under_test import StoreUnderTest

REASON = b'{"error":"stop","name":"JobCancelled","code":"cancelled"}'
OPEN = [one for one in IN_STATE if one not in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)]


def cancel(*ids: str, **parts: object) -> Unit:
    return unit(cancels=[CancelJob(id, REASON) for id in ids], **parts)


class CancelJobsContract(StoreUnderTest):
    """Units that cancel jobs."""

    @pytest.mark.parametrize("state", OPEN)
    async def test_an_open_job_is_cancelled(self, store: Store, clock: FakeClock, state: JobState) -> None:
        await IN_STATE[state](store, clock, "a", QUEUE)
        assert isinstance(await apply(store, cancel("a", events=[event()])), Committed)
        row = await store.job("a")
        assert row is not None
        assert (row.state, row.error, row.lease) == (JobState.CANCELLED, REASON, None)
        assert row.finished == clock.now_ms()
        assert [one.id for one in await store.jobs(QUEUE, JobState.CANCELLED)] == ["a"]
        assert await claim(store) == []
        (queue,) = [one for one in await store.queues() if one.name == QUEUE]
        assert {name for name, count in queue.counts.items() if count} == {"cancelled"}

    @pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED])
    async def test_an_ended_job_is_not_cancelled(self, store: Store, clock: FakeClock, state: JobState) -> None:
        await IN_STATE[state](store, clock, "a", QUEUE)
        assert await apply(store, cancel("a", events=[event()])) == Refused("taken", "a")
        assert await state_of(store, "a") == state.value

    async def test_a_missing_job_refuses_the_whole_unit(self, store: Store) -> None:
        await add(store, job("a"))
        assert await apply(store, cancel("a", "gone")) == Refused("taken", "gone")
        assert await state_of(store, "a") == "waiting"

    async def test_a_running_attempt_loses_its_lease(self, store: Store) -> None:
        one = await add_and_claim(store, "a")
        assert store.renew([one], 30_000) == []
        await apply(store, cancel("a"))
        assert store.renew([one], 30_000) == [one]
        assert await apply(store, unit(claim=one, outcome=Completed(b"1"))) == Fenced()
        assert await apply(store, unit(claim=one, events=[event()])) == Fenced()
        assert await state_of(store, "a") == "cancelled"

    async def test_an_attempt_that_ends_in_the_same_call_is_fenced(self, store: Store) -> None:
        one = await add_and_claim(store, "a")
        reply = await store.commit([cancel("a"), unit(claim=one, outcome=Completed(b"1"))])
        assert reply.receipts == [Committed(), Fenced()]
        two = await add_and_claim(store, "b")
        reply = await store.commit([unit(claim=two, outcome=Completed(b"1")), cancel("b")])
        assert reply.receipts == [Committed(), Refused("taken", "b")]

    async def test_a_unit_that_is_sent_again_changes_nothing(self, store: Store) -> None:
        await add(store, job("a"))
        stop = cancel("a", events=[event()])
        await apply(store, stop)
        assert await apply(store, stop) == Committed(repeated=True)

    async def test_it_can_be_retried(self, store: Store) -> None:
        one = await add_and_claim(store, "a")
        await apply(store, cancel("a"))
        assert await store.retry("a")
        two = await claim_one(store)
        assert (two.job, two.token != one.token) == ("a", True)
        assert isinstance(await apply(store, unit(claim=two, outcome=Completed(b"1"))), Committed)

    async def test_it_releases_the_next_job_of_its_order_key(self, store: Store) -> None:
        for id in ("a", "b", "c"):
            await add(store, job(id, order_key="k"))
        await apply(store, cancel("b"))
        assert names(await claim(store)) == ["a"]
        await apply(store, cancel("a"))
        assert names(await claim(store)) == ["c"]

    async def test_it_releases_its_dedupe_key(self, store: Store) -> None:
        await add(store, job("a", dedupe=Dedupe("k")), job("b", dedupe=Dedupe("other", 60_000)))
        await apply(store, cancel("a", "b"))
        again = [job("c", dedupe=Dedupe("k")), job("d", dedupe=Dedupe("other", 60_000))]
        receipt = await apply(store, unit(jobs=again))
        assert isinstance(receipt, Committed)
        assert (receipt.added, receipt.deduplicated) == ([True, False], {1: "b"})

    @pytest.mark.parametrize(
        ("on_failure", "seen", "is_released"),
        [
            ("fail", {"a": "failed", "b": "unprocessed"}, True),
            ("continue", {"a": "ignored", "b": "unprocessed"}, True),
            ("ignore", {"a": "ignored", "b": "unprocessed"}, False),
            ("remove", {"b": "unprocessed"}, False),
            ("wait", {"a": "unprocessed", "b": "unprocessed"}, False),
        ],
    )
    @pytest.mark.parametrize("is_running", [False, True])
    async def test_a_cancelled_child_counts_as_a_failed_one(
        self, store: Store, on_failure: str, seen: dict[str, str], is_released: bool, is_running: bool
    ) -> None:
        await add(store, *tree(child("a", on_failure), child("b")))
        if is_running:
            assert (await claim_one(store, KIDS)).job == "a"
        await apply(store, cancel("a"))
        assert {id: state for id, (state, _) in (await children_of(store)).items()} == seen
        assert names(await claim(store)) == (["p"] if is_released else [])

    @pytest.mark.parametrize("on_failure", ["ignore", "remove"])
    async def test_the_last_child_may_be_cancelled(self, store: Store, on_failure: str) -> None:
        await add(store, *tree(child("b"), child("a", on_failure)))
        await apply(store, end(await claim_one(store, KIDS), Completed(b"1")))
        await apply(store, cancel("a"))
        assert names(await claim(store)) == ["p"]
        if on_failure == "ignore":
            assert (await children_of(store))["a"] == ("ignored", "stop")

    async def test_a_parent_waits_for_a_cancelled_child_that_is_retried(self, store: Store) -> None:
        await add(store, *tree(child("a", "ignore"), child("b")))
        await apply(store, cancel("a"))
        assert await store.retry("a")
        for one in await claim(store, KIDS):
            await apply(store, end(one, Completed(b"1")))
        assert {state for state, _ in (await children_of(store)).values()} == {"processed"}
        assert names(await claim(store)) == ["p"]

    async def test_a_cancelled_parent_is_not_released_by_its_children(self, store: Store) -> None:
        await add(store, *tree(child("a"), child("b", "fail")))
        await apply(store, cancel("p"))
        await apply(store, end(await claim_one(store, KIDS), Completed(b"1")))
        await apply(store, cancel("b"))
        assert await claim(store) == []
        assert await state_of(store, "p") == "cancelled"

    async def test_a_failed_error_is_replaced(self, store: Store) -> None:
        await add(store, job("a"))
        await apply(store, unit(cancels=[CancelJob("a", ERROR)]))
        row = await store.job("a")
        assert row is not None
        assert row.error == ERROR
