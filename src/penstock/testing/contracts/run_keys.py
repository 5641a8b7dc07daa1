"""Run keys: an index by which runs are found, with the same meaning on every store."""

from __future__ import annotations

from typing import Any

from ...ports.store import Retention, Store
from ...ports.unit import Completed
from ..clock import FakeClock
from .samples import add, apply, claim_one, event, job, run, unit
from .store_under_test import StoreUnderTest


async def find(store: Store, *keys: str, **which: Any) -> list[str]:
    return [row.id for row in await store.runs(keys=keys, **which)]


class RunKeysContract(StoreUnderTest):
    """A run is found by the keys of every write that was applied, until it is removed."""

    async def test_runs_are_found_by_their_keys_newest_first(self, store: Store, clock: FakeClock) -> None:
        for n in range(6):
            keys = ("all", f"n{n}", "even" if n % 2 == 0 else "odd")
            await apply(store, unit(run=run(f"r{n}", keys=keys)))
            clock.advance("1ms" if n % 2 else 0)  # two share a millisecond
        await apply(store, unit(run=run("other")))
        assert await find(store, "all") == ["r5", "r4", "r3", "r2", "r1", "r0"]
        assert await find(store, "n3") == ["r3"]
        assert await find(store, "all", "even") == await find(store, "even", "all") == ["r4", "r2", "r0"]
        assert await find(store, "even", "odd") == await find(store, "nothing") == await find(store, "al") == []

    async def test_keys_combine_with_all_filters_and_pages(self, store: Store, clock: FakeClock) -> None:
        for n in range(24):
            fields: dict[str, Any] = {"flow": "shop" if n % 2 else "mail", "status": "failed" if n % 3 else "running"}
            first = event("flow.started", f"nq:flow:r{n:02}", {"input": n % 4})
            await apply(
                store, unit(run=run(f"r{n:02}", keys=("k",) if n % 5 else ("k", "k5"), **fields), events=[first])
            )
            clock.advance("1ms" if n % 5 else 0)
        start = (await store.runs(limit=1))[0].created - 14
        every = [row.id for row in await store.runs(flow="shop", statuses=["failed"], since=start)]
        which: dict[str, Any] = {"flow": "shop", "statuses": ["failed"], "since": start}
        assert await find(store, "k", **which) == every
        assert await find(store, "k", "k5", **which) == [id for id in every if int(id[1:]) % 5 == 0]
        odd = [id for id in every if int(id[1:]) % 4 == 1]
        assert await find(store, "k", first_event={"data": {"input": 1}}, **which) == odd
        for keys in (("k",), ("k", "k5")):
            wanted = await find(store, *keys)
            found: list[str] = []
            while page := await find(store, *keys, before=found[-1] if found else None, limit=2):
                found += page
            assert found == wanted
        assert await find(store, "k", until=start) == [row.id for row in await store.runs(until=start)]

    async def test_later_writes_add_keys(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r", keys=("a",))))
        clock.advance("1s")
        await apply(store, unit(run=run("s", keys=("a",))))
        await apply(store, unit(run=run("r", 1, keys=("b", "a"), status="failed")))
        await apply(store, unit(run=run("r", 2)))
        assert await find(store, "a") == ["s", "r"], "the order is that of the runs, not of the writes"
        assert await find(store, "a", "b") == await find(store, "b", statuses=["running"]) == ["r"]

    async def test_an_attempt_that_ends_adds_keys(self, store: Store) -> None:
        await apply(store, unit(run=run("r")))
        await add(store, job("r.a.1", run="r"))
        claim = await claim_one(store)
        await apply(store, unit(claim=claim, outcome=Completed(), run=run("r", 1, closed=True, keys=("k",))))
        assert await find(store, "k") == ["r"]

    async def test_a_refused_unit_adds_no_key(self, store: Store) -> None:
        await apply(store, unit(run=run("r")))
        await apply(store, unit(run=run("r", 7, keys=("k",))))
        await apply(store, unit(run=run("r", 0, keys=("k",))))
        assert await find(store, "k") == []

    async def test_keys_are_removed_with_their_run(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r", keys=("a", "b"), closed=True)))
        await apply(store, unit(run=run("s", keys=("a",))))
        clock.advance("1d")
        await store.sweep(Retention(runs_before=clock.now_ms()))
        assert await find(store, "a") == ["s"]
        await apply(store, unit(run=run("r")))
        assert (await find(store, "a"), await find(store, "b")) == (["s"], [])
