"""Children of one parent that end concurrently in different processes, and trees that are added twice concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from penstock.app.store_urls import open_store
from penstock.core.clock import SystemClock
from penstock.ports.store import Store
from penstock.ports.unit import Claim, Completed, Dead, NewJob, OnFailure, Outcome, Parent, Unit
from penstock.testing.contracts.samples import add, claim, claim_request, job, names, state_of, unit

ROUNDS = 12
Two = tuple[Store, Store]


@pytest_asyncio.fixture
async def two(shared_url: str) -> AsyncIterator[Two]:
    """Open two stores on one database, as two processes do."""
    first, second = (open_store(shared_url, clock=SystemClock(), namespace="nq") for _ in range(2))
    await first.open()
    await second.open()
    try:
        yield first, second
    finally:
        await first.close()
        await second.close()


def tree(id: str, on_failure: OnFailure = OnFailure.WAIT) -> list[NewJob]:
    children = [job(f"{id}-{n}", "kids", parent=Parent(id, "orders", on_failure)) for n in (1, 2)]
    return [job(id, waits_for_children=True), *children]


def end(one: Claim, outcome: Outcome) -> Unit:
    return unit(claim=one, outcome=outcome, parent=one.job.rpartition("-")[0])


async def test_children_that_end_at_the_same_time_release_their_parent(two: Two) -> None:
    first, second = two
    for n in range(ROUNDS):
        await add(first, *tree(f"p{n}"))
        a, b = await claim(first, "kids")
        await asyncio.gather(first.commit([end(a, Completed())]), second.commit([end(b, Completed())]))
        assert await state_of(first, f"p{n}") == "waiting"
    assert len(names(await claim(second, limit=ROUNDS))) == ROUNDS


async def test_a_parent_does_not_complete_while_a_child_fails_it(two: Two) -> None:
    """Whichever comes first: a parent that has completed has no child that failed it."""
    first, second = two
    for n in range(ROUNDS):
        jobs = tree(f"p{n}", OnFailure.FAIL)
        jobs[1] = job(f"p{n}-1", "kids", parent=Parent(f"p{n}", "orders", OnFailure.CONTINUE))
        await add(first, *jobs)
        a, b = await claim(first, "kids")
        await first.commit([end(a, Dead(b"{}"))])
        (p,) = await claim(first)
        done = unit(claim=p, outcome=Completed(), children_settled=False)
        await asyncio.gather(first.commit([done]), second.commit([end(b, Dead(b"{}"))]))
        # It had an active child, or one that had failed it: it could not complete in either order.
        assert await state_of(first, f"p{n}") == "active"
        await first.commit([unit(claim=p, outcome=Dead(b"{}"), children_settled=False)])


async def test_a_tree_added_twice_concurrently_exists_once(two: Two) -> None:
    for n in range(ROUNDS):
        root = job(f"p{n}", waits_for_children=True)
        added = []
        for m, store in enumerate(two):
            kids = [job(f"p{n}-{m}{k}", "kids", parent=Parent(f"p{n}", "orders")) for k in range(3)]
            added.append(store.commit([unit(jobs=[root, *kids])]))
        await asyncio.gather(*added)
        assert len(await two[0].children(f"p{n}")) == 3
        found = (await two[0].claim(claim_request("kids", limit=10))).claims
        assert len({one.job[:-1] for one in found}) == 1
        assert len(found) == 3
