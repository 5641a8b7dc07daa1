"""A store's profile is true: as many commits as it allows in flight keep the order it promises."""

from __future__ import annotations

import asyncio

from ...ports.store import Store
from ...ports.unit import Committed, Completed
from .samples import QUEUE, STREAM, add, apply, claim, event, job, seqs, unit
from .store_under_test import StoreUnderTest


class ProfileContract(StoreUnderTest):
    """What the worker and the committer rely on when they read `store.profile`."""

    async def test_profile_allows_at_least_one_commit(self, store: Store) -> None:
        profile = store.profile
        assert profile == store.profile
        assert profile.max_commits_in_flight >= 1
        assert profile.max_unordered_finishes >= 1
        assert profile.prefetch >= 0

    async def test_commits_in_flight_are_applied_in_the_order_of_the_calls(self, store: Store) -> None:
        lanes = store.profile.max_commits_in_flight
        for round in range(10):
            units = [unit(events=[event(f"order.n{round}-{n}")]) for n in range(lanes)]
            replies = await asyncio.gather(*(store.commit([one]) for one in units))
            assert [type(reply.receipts[0]) for reply in replies] == [Committed] * lanes
        events = await store.read(STREAM, limit=1000)
        assert [one.kind for one in events] == [f"order.n{round}-{n}" for round in range(10) for n in range(lanes)]
        assert seqs(events) == list(range(1, len(events) + 1))

    async def test_finishes_in_flight_are_all_applied(self, store: Store) -> None:
        lanes = store.profile.max_unordered_finishes
        await add(store, *(job(f"j{n}") for n in range(lanes * 5)))
        claims = await claim(store, limit=lanes * 5)
        for n in range(0, len(claims), lanes):
            batch = [unit(claim=one, outcome=Completed(b"1")) for one in claims[n : n + lanes]]
            replies = await asyncio.gather(*(store.commit([one]) for one in batch))
            assert all(isinstance(reply.receipts[0], Committed) for reply in replies)
        (row,) = [row for row in await store.queues() if row.name == QUEUE]
        assert row.counts.get("completed") == lanes * 5

    async def test_rewind_epoch_is_steady_while_the_server_is(self, store: Store) -> None:
        await apply(store, unit(events=[event()]))
        before = store.rewind_epoch
        await apply(store, unit(events=[event()]))
        assert store.rewind_epoch == before
        assert store.profile.may_rewind or before == 0
