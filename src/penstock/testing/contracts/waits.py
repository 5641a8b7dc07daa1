"""Waits: gates that are closed once, by whoever comes first."""

from __future__ import annotations

import asyncio

from ...ports.store import Store
from ...ports.unit import CloseWait, Committed, Refused, Unit
from .samples import STREAM, apply, event, job, run, unit, wait
from .subject import StoreUnderTest


class WaitsContract(StoreUnderTest):
    """Of event, trigger, timeout and cancel, the first wins."""

    async def test_the_first_to_close_a_wait_wins(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))

        def closing(how: str) -> Unit:
            return unit(waits=[CloseWait("w", how)], events=[event(how)], jobs=[job(f"r.{how}", run="r")])

        first, second = (await store.commit([closing("resolved"), closing("expired")])).receipts
        assert isinstance(first, Committed)
        assert second == Refused("wait", "w")
        assert [e.kind for e in await store.read(STREAM)] == ["resolved"]
        assert await store.job("r.expired") is None

    async def test_one_of_many_racing_wins(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))
        racing = [apply(store, unit(waits=[CloseWait("w", "resolved")], events=[event(data=n)])) for n in range(20)]
        receipts = await asyncio.gather(*racing)
        assert sum(isinstance(r, Committed) for r in receipts) == 1
        assert sum(r == Refused("wait", "w") for r in receipts) == 19
        assert len(await store.read(STREAM)) == 1

    async def test_a_closed_wait_is_not_opened_again(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))
        await apply(store, unit(waits=[CloseWait("w", "expired")]))
        assert isinstance(await apply(store, unit(waits=[wait("w", "r")])), Committed)
        assert await apply(store, unit(waits=[CloseWait("w", "resolved")])) == Refused("wait", "w")

    async def test_all_waits_of_a_unit_must_be_open(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("a", "r"), wait("b", "r")]))
        await apply(store, unit(waits=[CloseWait("b", "expired")]))
        both = unit(waits=[CloseWait("a", "resolved"), CloseWait("b", "resolved")])
        assert await apply(store, both) == Refused("wait", "b")
        assert isinstance(await apply(store, unit(waits=[CloseWait("a", "resolved")])), Committed)

    async def test_cancelling_a_run_closes_its_waits_and_no_others(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))
        await apply(store, unit(run=run("r.b"), waits=[wait("other", "r.b")]))
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True, cancel_jobs=True)))
        assert await apply(store, unit(waits=[CloseWait("w", "resolved")])) == Refused("wait", "w")
        assert isinstance(await apply(store, unit(waits=[CloseWait("other", "resolved")])), Committed)
