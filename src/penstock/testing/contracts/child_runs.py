"""Child runs: links to the parent, lists of children, open children of a call, and retention with the parent."""

from __future__ import annotations

from typing import Any

import pytest

from ...ports.store import Retention, Store
from ...ports.unit import Completed, RunParent, Unit
from ..clock import FakeClock
from .samples import add_and_claim, apply, run, unit
from .store_under_test import StoreUnderTest

FAR = 4_000_000_000_000


def child(id: str, parent: str = "p", call: str | None = "c", expect: int = 0, **fields: Any) -> Unit:
    keys = (f"p-{parent}",) if expect == 0 else ()
    return unit(run=run(id, expect, parent=RunParent(parent, "root", 2, call), keys=keys, **fields))


def ended(id: str, parent: str = "p", call: str | None = "c", expect: int = 1) -> Unit:
    return child(id, parent, call, expect, status="completed", closed=True)


class ChildRunsContract(StoreUnderTest):
    """Runs that other runs started."""

    async def test_a_run_names_its_parent(self, store: Store) -> None:
        await apply(store, child("a"))
        await apply(store, child("a", expect=1))
        await apply(store, unit(run=run("b")))
        rows = [await store.run(id) for id in ("a", "b")]
        links = [(row.parent, row.root, row.depth, row.call) for row in rows if row is not None]
        assert links == [("p", "root", 2, "c"), (None, None, 0, None)]

    async def test_children_are_listed_newest_first(self, store: Store, clock: FakeClock) -> None:
        for n in range(5):
            await apply(store, child(f"a{n}", call=None if n == 3 else "c"))
            clock.advance(1)
        await apply(store, child("other", parent="q"))
        await apply(store, ended("a1"))
        assert [row.id for row in await store.runs(keys=["p-p"])] == ["a4", "a3", "a2", "a1", "a0"]
        assert [row.id for row in await store.runs(keys=["p-p"], limit=2, before="a3")] == ["a2", "a1"]
        assert [row.id for row in await store.runs(keys=["p-p"], statuses=["completed"])] == ["a1"]
        assert await store.runs(keys=["p-p"], flow="none") == []
        assert await store.runs(keys=["p-nobody"]) == []

    async def test_open_children_of_a_call(self, store: Store) -> None:
        assert not await store.has_open_children("c")
        for id in ("a", "b"):
            await apply(store, child(id))
        await apply(store, ended("a"))
        assert await store.has_open_children("c")
        await apply(store, ended("b"))
        assert not await store.has_open_children("c")
        await apply(store, child("a", expect=2))  # it was redriven
        assert await store.has_open_children("c")
        assert not await store.has_open_children("other")

    async def test_a_child_that_ends_with_its_last_step_is_no_longer_open(self, store: Store) -> None:
        await apply(store, child("a"))
        one = await add_and_claim(store, "a.step.1", run="a")
        done = ended("a")
        done.claim, done.outcome = one, Completed(b"1")
        await apply(store, done)
        assert not await store.has_open_children("c")
        row = await store.run("a")
        assert row is not None
        assert (row.closed, row.call) == (True, "c")

    @pytest.mark.parametrize("parent_status", ["running", "completed"])
    async def test_a_called_run_stays_as_long_as_its_parent(
        self, store: Store, clock: FakeClock, parent_status: str
    ) -> None:
        await apply(store, unit(run=run("p")))
        await apply(store, child("a"))
        await apply(store, child("free", call=None))
        await apply(store, ended("a"))
        await apply(store, ended("free", call=None))
        clock.advance(3600)
        if parent_status == "completed":
            await apply(store, unit(run=run("p", 1, status="completed", closed=True)))
        before = clock.now_ms() - 1000
        await _sweep(store, Retention(runs_before=before))
        # The child is old enough and its parent is not; the run that was only started has gone.
        assert [await store.run(id) is not None for id in ("p", "a", "free")] == [True, True, False]
        if parent_status == "running":
            await apply(store, unit(run=run("p", 1, status="completed", closed=True)))
        clock.advance(3600)
        await _sweep(store, Retention(runs_before=clock.now_ms()))
        assert await store.run("p") is None
        assert await store.run("a") is None
        assert await store.runs(keys=["p-p"]) == []


async def _sweep(store: Store, what: Retention) -> None:
    for _ in range(20):
        if not any((await store.sweep(what)).values()):
            return
    raise AssertionError("the sweep does not end")
