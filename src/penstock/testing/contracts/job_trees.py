"""Job trees: a parent waits for its children, and the write that ends a child updates its parent, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ...ports.store import ChildState, Retention, Store
from ...ports.unit import (
    Cancelled,
    Claim,
    Committed,
    Completed,
    Dead,
    Fenced,
    NewJob,
    OnFailure,
    Outcome,
    Parent,
    Refused,
    RetryAt,
    Unit,
)
from ..clock import FakeClock
from .samples import (
    ERROR,
    QUEUE,
    STREAM,
    add,
    apply,
    claim,
    claim_one,
    claim_request,
    event,
    job,
    names,
    state_of,
    unit,
)
from .store_under_test import StoreUnderTest

KIDS = "letters"  # the queue of the children
FAR = 4_000_000_000_000


def child(id: str, on_failure: str = "wait", of: str = "p", queue: str = KIDS, **fields: Any) -> NewJob:
    home = QUEUE if of == "p" else KIDS
    return job(id, queue, parent=Parent(of, home, OnFailure(on_failure)), **fields)


def tree(*children: NewJob, **fields: Any) -> list[NewJob]:
    return [job("p", waits_for_children=True, **fields), *children]


def end(one: Claim, outcome: Outcome, parent: str | None = "p", **fields: Any) -> Unit:
    return unit(claim=one, outcome=outcome, parent=parent, **fields)


async def children_of(store: Store, id: str = "p") -> dict[str, tuple[str, object]]:
    """Return what a parent sees of its children."""
    return {row.id: (row.state.value, row.value or row.reason) for row in await store.children(id)}


class JobTreesContract(StoreUnderTest):
    """Trees of jobs."""

    async def test_a_parent_is_claimed_after_its_last_child(self, store: Store) -> None:
        await add(store, *tree(child("a"), child("b", queue=QUEUE)))
        assert names(await claim(store)) == ["b"]
        assert await state_of(store, "p") == "waiting-children"
        a = await claim_one(store, KIDS)
        assert isinstance(await apply(store, end(a, Completed(b'{"n":1}'))), Committed)
        assert names(await claim(store)) == []
        row = await store.job("b")
        assert row is not None
        assert row.parent == "p"

    async def test_the_last_child_releases_it_with_all_values(self, store: Store) -> None:
        await add(store, *tree(child("a"), child("b"), child("c")))
        a, b, c = await claim(store, KIDS)
        # Two children of one parent in one commit, then the last one: all of them count.
        receipts = (await store.commit([end(a, Completed(b'{"n":1}')), end(b, Completed())])).receipts
        assert [type(one) for one in receipts] == [Committed, Committed]
        assert await children_of(store) == {
            "a": ("processed", b'{"n":1}'),
            "b": ("processed", b"null"),
            "c": ("unprocessed", None),
        }
        assert await state_of(store, "p") == "waiting-children"
        await apply(store, end(c, Completed(b"[]")))
        assert names(await claim(store)) == ["p"]
        keys = [row.key for row in await store.children("p")]
        assert keys == [f"bull:{KIDS}:{id}" for id in "abc"]

    async def test_the_commit_of_the_last_child_claims_its_parent(self, store: Store) -> None:
        await add(store, *tree(child("a")))
        a = await claim_one(store, KIDS)
        reply = await store.commit([end(a, Completed())], claim_request())
        claimed = names(reply.claimed) or names(await claim(store))
        assert claimed == ["p"]

    async def test_the_last_child_notifies_the_parents_queue(self, store: Store) -> None:
        await add(store, *tree(child("a")))
        a = await claim_one(store, KIDS)
        with store.signals.listen(f"queue:{QUEUE}") as listener:
            await apply(store, end(a, Completed()))
            assert await listener.wait(10)

    async def test_a_tree_of_three_levels(self, store: Store) -> None:
        middle = job("m", KIDS, waits_for_children=True, parent=Parent("p", QUEUE))
        await add(store, *tree(middle, child("leaf", of="m")))
        leaf = await claim_one(store, KIDS)
        assert leaf.job == "leaf"
        await apply(store, end(leaf, Completed(b"1"), parent="m"))
        assert await state_of(store, "p") == "waiting-children"
        m = await claim_one(store, KIDS)
        assert m.job == "m"
        await apply(store, end(m, Completed(b"2"), children_settled=False))
        assert await children_of(store) == {"m": ("processed", b"2")}
        assert names(await claim(store)) == ["p"]

    async def test_a_failure_with_a_retry_does_not_change_the_parent(self, store: Store) -> None:
        await add(store, *tree(child("a", "fail")))
        await apply(store, end(await claim_one(store, KIDS), RetryAt(0, ERROR)))
        assert await children_of(store) == {"a": ("unprocessed", None)}
        await apply(store, end(await claim_one(store, KIDS), Completed(b"1")))
        assert names(await claim(store)) == ["p"]

    @pytest.mark.parametrize(
        ("on_failure", "known", "others", "released"),
        [
            ("wait", ("unprocessed", None), False, False),
            ("fail", ("failed", None), True, True),
            ("continue", ("ignored", "no"), True, True),
            ("ignore", ("ignored", "no"), False, True),
            ("remove", None, False, True),
        ],
    )
    async def test_how_the_failure_of_a_child_affects_its_parent(
        self, store: Store, on_failure: str, known: tuple[str, object] | None, others: bool, released: bool
    ) -> None:
        """`others`: the parent is released while another child is active; `released`: after that child has ended."""
        await add(store, *tree(child("a", on_failure), child("b")))
        a, b = await claim(store, KIDS)
        await apply(store, end(a, Dead(ERROR)))
        assert (await children_of(store)).get("a") == known
        assert (await state_of(store, "p") == "waiting") is others
        await apply(store, end(b, Completed(b"2")))
        assert (names(await claim(store)) == ["p"]) is released

    async def test_a_parent_cannot_complete_before_its_children(self, store: Store) -> None:
        await add(store, *tree(child("a", "continue"), child("b")))
        a, b = await claim(store, KIDS)
        await apply(store, end(a, Dead(ERROR)))
        p = await claim_one(store)
        early = unit(claim=p, outcome=Completed(b"1"), children_settled=False, events=[event()])
        assert await apply(store, early) == Refused("children", "p")
        assert await state_of(store, "p") == "active"
        await apply(store, end(b, Completed()))
        assert isinstance(await apply(store, unit(claim=p, outcome=Completed(), children_settled=False)), Committed)
        assert await state_of(store, "p") == "completed"

    async def test_a_parent_cannot_complete_after_a_child_failed_it(self, store: Store) -> None:
        await add(store, *tree(child("a", "continue"), child("b", "fail")))
        a, b = await claim(store, KIDS)
        await apply(store, end(a, Dead(ERROR)))
        p = await claim_one(store)
        await apply(store, end(b, Dead(ERROR)))
        done = unit(claim=p, outcome=Completed(), children_settled=False)
        assert await apply(store, done) == Refused("children", "p")
        assert isinstance(await apply(store, unit(claim=p, outcome=Dead(ERROR), children_settled=False)), Committed)

    async def test_a_fenced_child_does_not_change_the_parent(self, store: Store, clock: FakeClock) -> None:
        await add(store, *tree(child("a")))
        late = await claim_one(store, KIDS)
        clock.advance("31s")
        again = await claim_one(store, KIDS)
        assert isinstance(await apply(store, end(late, Completed(b'"late"'))), Fenced)
        assert await children_of(store) == {"a": ("unprocessed", None)}
        await apply(store, end(again, Completed(b'"again"')))
        assert await children_of(store) == {"a": ("processed", b'"again"')}

    async def test_a_repeated_commit_of_a_child_counts_once(self, store: Store) -> None:
        await add(store, *tree(child("a"), child("b")))
        a, b = await claim(store, KIDS)
        done = end(a, Completed(b"1"))
        await apply(store, done)
        assert await apply(store, done) == Committed(repeated=True)
        assert await state_of(store, "p") == "waiting-children"
        last = end(b, Completed(b"2"))
        await apply(store, last)
        p = await claim_one(store)
        assert await apply(store, last) == Committed(repeated=True)
        assert await claim(store) == []
        assert isinstance(await apply(store, unit(claim=p, outcome=Completed(), children_settled=False)), Committed)

    async def test_children_that_end_concurrently_release_the_parent_once(self, store: Store) -> None:
        ids = [f"c{n}" for n in range(12)]
        await add(store, *tree(*map(child, ids)))
        claims = await claim(store, KIDS, limit=20)
        await asyncio.gather(*(store.commit([end(one, Completed(b"1"))]) for one in claims))
        assert names(await claim(store)) == ["p"]
        assert set(await children_of(store)) == set(ids)

    async def test_a_tree_is_added_once(self, store: Store) -> None:
        jobs = tree(child("a"), child("b"), added=event())
        assert await apply(store, unit(jobs=jobs)) == Committed([], [True] * 3)
        assert await apply(store, unit(jobs=jobs)) == Committed([], [False] * 3)
        # Other children of the same parent are not added either: the parent may have ended long ago.
        assert await apply(store, unit(jobs=tree(child("x")))) == Committed([], [False] * 2)
        assert await store.job("x") is None
        assert len(await store.read(STREAM)) == 1

    async def test_a_tree_with_an_existing_id_is_refused(self, store: Store) -> None:
        await add(store, job("b"))
        assert await apply(store, unit(jobs=tree(child("a"), child("b")), events=[event()])) == Refused("job", "b")
        assert await store.job("p") is None
        assert await store.job("a") is None
        assert await store.read(STREAM) == []

    @pytest.mark.parametrize("how", ["remove", "drain"])
    async def test_a_parent_does_not_wait_for_a_removed_child(self, store: Store, how: str) -> None:
        await add(store, *tree(child("a"), child("b")))
        await apply(store, end(await claim_one(store, KIDS), Completed(b"1")))
        if how == "remove":
            assert await store.remove("b")
        else:
            assert await store.drain(KIDS) == 1
        assert await children_of(store) == {"a": ("processed", b"1")}
        assert names(await claim(store)) == ["p"]

    @pytest.mark.parametrize(("on_failure", "seen"), [("ignore", ("ignored", "stop")), ("fail", ("failed", None))])
    async def test_an_attempt_that_ends_as_cancelled_counts_as_a_failed_child(
        self, store: Store, on_failure: str, seen: tuple[str, object]
    ) -> None:
        await add(store, *tree(child("a", on_failure)))
        await apply(store, end(await claim_one(store, KIDS), Cancelled("stop")))
        assert await children_of(store) == {"a": seen}
        assert names(await claim(store)) == ["p"]

    async def test_a_parent_does_not_wait_for_a_swept_child(self, store: Store) -> None:
        await add(store, *tree(child("a")))
        await apply(store, end(await claim_one(store, KIDS), Dead(ERROR)))
        await store.sweep(Retention(jobs_before=FAR))
        assert names(await claim(store)) == ["p"]

    async def test_values_stay_when_the_child_is_swept(self, store: Store) -> None:
        await add(store, *tree(child("a"), child("b")))
        await apply(store, end(await claim_one(store, KIDS), Completed(b"1")))
        await store.sweep(Retention(jobs_before=FAR))
        assert await store.job("a") is None
        assert await children_of(store) == {"a": ("processed", b"1"), "b": ("unprocessed", None)}

    async def test_a_removed_parent_leaves_its_children_alone(self, store: Store) -> None:
        await add(store, *tree(child("a")))
        assert await store.remove("p")
        assert await store.children("p") == []
        a = await claim_one(store, KIDS)
        assert isinstance(await apply(store, end(a, Completed(b"1"))), Committed)
        assert await store.job("p") is None
        assert await store.children("p") == []

    @pytest.mark.parametrize("on_failure", ["wait", "fail", "ignore"])
    async def test_a_parent_waits_for_a_retried_child_again(self, store: Store, on_failure: str) -> None:
        await add(store, *tree(child("a", on_failure), child("b")))
        a, b = await claim(store, KIDS)
        await apply(store, end(a, Dead(ERROR)))
        assert await store.retry("a")
        assert (await children_of(store))["a"] == ("unprocessed", None)
        await apply(store, end(b, Completed(b"2")))
        await apply(store, end(await claim_one(store, KIDS), Completed(b"1")))
        assert await children_of(store) == {"a": ("processed", b"1"), "b": ("processed", b"2")}
        assert names(await claim(store)) == ["p"]

    async def test_a_parent_that_is_retried_waits_for_the_child_that_failed_it(self, store: Store) -> None:
        await add(store, *tree(child("a", "fail")))
        await apply(store, end(await claim_one(store, KIDS), Dead(ERROR)))
        await apply(store, unit(claim=await claim_one(store), outcome=Dead(ERROR), children_settled=False))
        assert await store.retry("a")
        assert await store.retry("p")
        assert await state_of(store, "p") == "waiting-children"
        await apply(store, end(await claim_one(store, KIDS), Completed(b"1")))
        p = await claim_one(store)
        assert isinstance(await apply(store, unit(claim=p, outcome=Completed(), children_settled=False)), Committed)

    async def test_a_redriven_job_replaces_a_failed_child(self, store: Store) -> None:
        await add(store, *tree(child("a")))
        await apply(store, end(await claim_one(store, KIDS), Dead(ERROR)))
        again = job("a.redrive-1", KIDS, parent=Parent("p", QUEUE, replaces="a"))
        await add(store, again)
        assert await children_of(store) == {"a.redrive-1": ("unprocessed", None)}
        await apply(store, end(await claim_one(store, KIDS), Completed(b"1")))
        assert await children_of(store) == {"a.redrive-1": ("processed", b"1")}
        assert names(await claim(store)) == ["p"]

    async def test_a_redriven_job_of_an_ignored_child_is_a_plain_job(self, store: Store) -> None:
        await add(store, *tree(child("a", "ignore")))
        await apply(store, end(await claim_one(store, KIDS), Dead(ERROR)))
        await add(store, job("a.redrive-1", KIDS, parent=Parent("p", QUEUE, replaces="a")))
        await apply(store, end(await claim_one(store, KIDS), Completed(b"1")))
        assert await children_of(store) == {"a": ("ignored", "no")}
        assert names(await claim(store)) == ["p"]

    async def test_the_delay_of_a_parent_starts_when_its_children_have_ended(
        self, store: Store, clock: FakeClock
    ) -> None:
        await add(store, *tree(child("a"), due=clock.now_ms() + 5_000))
        clock.advance("20s")
        await apply(store, end(await claim_one(store, KIDS), Completed()))
        assert await state_of(store, "p") == "delayed"
        clock.advance("4s")
        assert await claim(store) == []
        clock.advance("2s")
        assert names(await claim(store)) == ["p"]

    async def test_a_parent_of_a_paused_queue_waits_there(self, store: Store) -> None:
        await add(store, *tree(child("a")))
        await store.pause(QUEUE)
        await apply(store, end(await claim_one(store, KIDS), Completed()))
        assert await claim(store) == []
        await store.resume(QUEUE)
        assert names(await claim(store)) == ["p"]

    async def test_a_job_without_children_has_none(self, store: Store) -> None:
        await add(store, job("j"))
        assert await store.children("j") == []
        assert await store.children("nothing") == []
        assert {state.value for state in ChildState} == {"unprocessed", "processed", "ignored", "failed"}
