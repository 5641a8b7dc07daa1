"""Waits: settled once, by the first that comes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ...ports.store import Retention, Store, WaitRow
from ...ports.unit import Committed, Completed, Memo, NewEvent, Refused, SettleWait, Unit
from ..clock import FakeClock
from .samples import STREAM, apply, claim_one, event, job, run, unit, wait
from .store_under_test import StoreUnderTest


class WaitsContract(StoreUnderTest):
    """The first of event, trigger, timeout and cancel wins."""

    async def test_the_first_to_settle_a_wait_wins(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))

        def settle(how: str) -> Unit:
            return unit(waits=[SettleWait("w", how)], events=[event(how)], jobs=[job(f"r.{how}", run="r")])

        first, second = (await store.commit([settle("resolved"), settle("expired")])).receipts
        assert isinstance(first, Committed)
        assert second == Refused("wait", "w")
        assert [e.kind for e in await store.read(STREAM)] == ["resolved"]
        assert await store.job("r.expired") is None

    async def test_one_of_many_racing_wins(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))
        racing = [apply(store, unit(waits=[SettleWait("w", "resolved")], events=[event(data=n)])) for n in range(20)]
        receipts = await asyncio.gather(*racing)
        assert sum(isinstance(r, Committed) for r in receipts) == 1
        assert sum(r == Refused("wait", "w") for r in receipts) == 19
        assert len(await store.read(STREAM)) == 1

    @pytest.mark.parametrize("how", ["resolved", "expired"])
    async def test_a_resolved_or_expired_wait_cannot_be_registered_again(self, store: Store, how: str) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))
        await apply(store, unit(waits=[SettleWait("w", how)]))
        again = unit(waits=[wait("w", "r")], events=[event()], memos=[Memo("r.charge.1", "a#1", b"1")])
        assert await apply(store, again) == Refused("wait", "w")
        assert await _state(store, "w") == how
        assert await store.read(STREAM) == []

    async def test_a_cancelled_wait_may_be_registered_again(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))
        await apply(store, unit(waits=[SettleWait("w", "cancelled")]))
        assert await store.waits("r") == []
        assert isinstance(await apply(store, unit(waits=[wait("w", "r", body=b"[2]")])), Committed)
        assert [(row.id, row.body) for row in await store.waits("r")] == [("w", b"[2]")]
        assert isinstance(await apply(store, unit(waits=[SettleWait("w", "resolved")])), Committed)

    async def test_a_wait_that_was_cancelled_with_a_result_cannot_be_registered_again(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))
        await apply(store, unit(waits=[SettleWait("w", "cancelled", final=True)]))
        assert await apply(store, unit(waits=[wait("w", "r")])) == Refused("wait", "w")
        assert await _state(store, "w") == "cancelled"

    async def test_registering_a_pending_wait_again_replaces_it(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="a", key="k", due=1)]))
        await apply(store, unit(waits=[wait("w", "r", topic="b", key="l", due=2, job="r.b.1", body=b"[2]")]))
        row = WaitRow("w", "r", "r.charge.1", "event", "pending", b"[2]", 2, "r.b.1", "b", "l")
        assert _without_times(await store.wait_row("w")) == row
        assert await store.waits_for_topic("a", None) == []
        assert [row.id for row in await store.waits_for_topic("b", ["l"])] == ["w"]

    async def test_a_wait_registered_and_settled_by_one_unit(self, store: Store) -> None:
        both = unit(run=run("r"), waits=[wait("w", "r"), SettleWait("w", "cancelled", lenient=True)])
        assert isinstance(await apply(store, both), Committed)
        assert await _state(store, "w") == "cancelled"

    @pytest.mark.parametrize("before", ["resolved", "expired", "cancelled"])
    async def test_a_lenient_settle_leaves_a_settled_wait_unchanged(self, store: Store, before: str) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r"), wait("open", "r")]))
        await apply(store, unit(waits=[SettleWait("w", before)]))
        settles = [SettleWait(id, "cancelled", lenient=True) for id in ("w", "open", "missing")]
        assert isinstance(await apply(store, unit(waits=settles, events=[event()])), Committed)
        assert [await _state(store, id) for id in ("w", "open", "missing")] == [before, "cancelled", None]

    async def test_the_columns_of_a_wait_row(self, store: Store, clock: FakeClock) -> None:
        assert await store.wait_row("w") is None
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", due=5, job="r.a.1", topic="t", key="k")]))
        body = b'{"kind":"order.paid"}'
        row = await store.wait_row("w")
        assert row is not None
        assert _without_times(row) == WaitRow("w", "r", "r.charge.1", "event", "pending", body, 5, "r.a.1", "t", "k")
        assert (row.created, row.settled) == (clock.now_ms(), None)
        assert await store.waits("r") == await store.waits_by_time() == [row]
        clock.advance("1s")
        await apply(store, unit(waits=[wait("w", "r", due=5, job="r.a.1", topic="t", key="k")]))
        assert await store.wait_row("w") == row  # it keeps the time of its first registration
        await apply(store, unit(waits=[SettleWait("w", "expired")]))
        assert await store.wait_row("w") == msgspec.structs.replace(row, state="expired", settled=clock.now_ms())

    async def test_the_position_of_a_wait_is_before_the_events_delivered_to_it(self, store: Store) -> None:
        await apply(store, unit(events=[_indexed(1)]))
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="t")]))
        await apply(store, unit(events=[_indexed(2)]))
        row = await store.wait_row("w")
        assert row is not None
        assert [item.event.data for item in await store.events_by_kind("t", after=row.position)] == [2]

    async def test_all_waits_settled_by_a_unit_must_be_pending(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("a", "r"), wait("b", "r")]))
        await apply(store, unit(waits=[SettleWait("b", "expired")]))
        both = unit(waits=[SettleWait("a", "resolved"), SettleWait("b", "resolved")])
        assert await apply(store, both) == Refused("wait", "b")
        assert isinstance(await apply(store, unit(waits=[SettleWait("a", "resolved")])), Committed)

    async def test_cancelling_a_run_cancels_only_its_own_waits(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r")]))
        await apply(store, unit(run=run("r.b"), waits=[wait("other", "r.b")]))
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True, cancel_jobs=True)))
        assert await apply(store, unit(waits=[SettleWait("w", "resolved")])) == Refused("wait", "w")
        assert isinstance(await apply(store, unit(waits=[SettleWait("other", "resolved")])), Committed)

    @pytest.mark.parametrize("status", ["completed", "failed"])
    async def test_closing_a_run_cancels_its_pending_waits(self, store: Store, status: str) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("a", "r"), wait("b", "r")]))
        await apply(store, unit(run=run("r.b"), waits=[wait("other", "r.b")]))
        await apply(store, unit(waits=[SettleWait("a", "resolved")]))
        await apply(store, unit(run=run("r", 1, status=status, closed=True)))
        assert [await _state(store, id) for id in ("a", "b", "other")] == ["resolved", "cancelled", "pending"]

    @pytest.mark.parametrize("by", ["attempt", "command"])
    async def test_a_unit_that_settles_a_run_may_settle_its_waits(self, store: Store, by: str) -> None:
        waits = [wait(id, "r") for id in ("resolved", "expired", "left", "other")]
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")], waits=waits))
        settles = [SettleWait("resolved", "resolved"), SettleWait("expired", "expired", lenient=True)]
        last = unit(run=run("r", 1, status="completed", closed=True), waits=[*settles, wait("new", "r")])
        if by == "attempt":
            last.claim, last.outcome = await claim_one(store), Completed()
        assert isinstance(await apply(store, last), Committed)
        ids = ("resolved", "expired", "left", "other", "new")
        assert [await _state(store, id) for id in ids] == ["resolved", "expired", *["cancelled"] * 3]
        assert await store.waits(run="r") == []

    async def test_a_unit_that_settles_a_run_may_settle_its_only_wait(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), jobs=[job("r.a.1", run="r")], waits=[wait("w", "r")]))
        claim = await claim_one(store)
        closing = run("r", 1, status="completed", closed=True)
        waits = [SettleWait("w", "resolved", lenient=True), SettleWait("w", "cancelled", lenient=True)]
        await apply(store, unit(claim=claim, outcome=Completed(), run=closing, waits=waits))
        assert await _state(store, "w") == "resolved"

    async def test_a_run_closed_in_the_same_commit_cancels_earlier_waits(self, store: Store) -> None:
        await store.commit([unit(run=run("r"), waits=[wait("w", "r")]), unit(run=run("r", 1, closed=True))])
        assert await _state(store, "w") == "cancelled"

    async def test_pending_waits_by_run_and_kind_with_pages(self, store: Store) -> None:
        kinds = ("time", "event", "trigger", "call")
        for of in ("r", "r.b"):
            waits = [wait(f"{kind}-{of}-{n}", of, kind=kind) for kind in kinds for n in range(3)]
            await apply(store, unit(run=run(of), waits=waits))
        await apply(store, unit(waits=[wait("flow-1", "", kind="flow", topic="t"), SettleWait("time-r-0", "resolved")]))
        everything = sorted(f"{kind}-{of}-{n}" for kind in kinds for of in ("r", "r.b") for n in range(3))
        everything.remove("time-r-0")
        assert await _pages(store, "r") == [id for id in everything if "-r-" in id]
        assert await _pages(store, "r", kind="event") == [f"event-r-{n}" for n in range(3)]
        assert await _pages(store, "r.b", kind="time") == [f"time-r.b-{n}" for n in range(3)]
        assert await _pages(store, "", kind="flow") == ["flow-1"]
        assert await _pages(store, "none") == []
        assert sorted(await _pages_by_time(store)) == sorted([*everything, "flow-1"])
        assert await _pages_by_time(store, kind="event") == [f"event-{of}-{n}" for of in ("r.b", "r") for n in "210"]
        assert await _pages_by_time(store, run="r", kind="time") == ["time-r-2", "time-r-1"]
        assert await _pages_by_time(store, run="r", state="resolved") == ["time-r-0"]

    async def test_triggers_by_time_and_state_with_pages(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r")))
        times = []
        for n in range(8):
            times.append(clock.now_ms())
            both = [wait(f"t{n}{half}", "r", kind="trigger") for half in "ab"]  # two of one millisecond
            await apply(store, unit(waits=[*both, wait(f"e{n}", "r", topic="t")]))
            clock.advance("1s")
        for n, how in ((1, "resolved"), (2, "expired"), (3, "cancelled"), (4, "resolved")):
            await apply(store, unit(waits=[SettleWait(f"{kind}", how) for kind in (f"t{n}a", f"t{n}b", f"e{n}")]))
        assert await _pages_by_time(store, kind="trigger") == [f"t{n}{half}" for n in (7, 6, 5, 0) for half in "ba"]
        assert await _pages_by_time(store, kind="trigger", state="resolved") == ["t4b", "t4a", "t1b", "t1a"]
        assert await _pages_by_time(store, kind="trigger", state="expired") == ["t2b", "t2a"]
        assert await _pages_by_time(store, state="cancelled") == ["t3b", "t3a"]
        window = {"since": times[5], "until": times[7]}
        assert await _pages_by_time(store, kind="trigger", **window) == ["t6b", "t6a", "t5b", "t5a"]
        assert await _pages_by_time(store, run="r", kind="trigger", **window) == ["t6b", "t6a", "t5b", "t5a"]
        assert await store.waits_by_time(kind="trigger", before="missing") == []
        await apply(store, unit(waits=[wait("t3a", "r", kind="trigger")]))  # a cancelled one may become pending again
        assert await _pages_by_time(store, kind="trigger", state="cancelled") == ["t3b"]
        assert "t3a" in await _pages_by_time(store, kind="trigger")
        await apply(store, unit(run=run("r", 1, status="cancelled", closed=True)))
        assert await _pages_by_time(store) == []
        assert len(await _pages_by_time(store, kind="trigger", state="cancelled")) == 10
        await store.sweep(Retention(keep_runs=0))
        assert await store.waits_by_time(kind="trigger", state="resolved") == []

    async def test_waits_for_a_topic_by_key_with_pages(self, store: Store) -> None:
        waits = [wait(f"{topic}-{key}-{n}", "r", topic=topic, key=key) for topic in "ab" for key in "xyz" for n in "12"]
        await apply(store, unit(run=run("r"), waits=[*waits, wait("no-topic", "r")]))
        await apply(store, unit(waits=[SettleWait("a-y-1", "resolved")]))
        assert await _listeners(store, "a", ["x"]) == ["a-x-1", "a-x-2"]
        assert await _listeners(store, "a", ["z", "y", "none"]) == ["a-y-2", "a-z-1", "a-z-2"]
        assert await _listeners(store, "a", None) == ["a-x-1", "a-x-2", "a-y-2", "a-z-1", "a-z-2"]
        assert await _listeners(store, "a", []) == []
        assert await _listeners(store, "c", None) == []

    async def test_memos_are_read_by_scope(self, store: Store) -> None:
        kept = [Memo("r.a.1", "rate#1", b"1.5"), Memo("r.a.1", "now#1", b"7"), Memo("r.a.10", "rate#1", b"9")]
        await apply(store, unit(memos=kept))
        assert await store.memos("r.a.1") == {"rate#1": b"1.5", "now#1": b"7"}
        assert await store.memos("r.a") == {}


async def _state(store: Store, id: str) -> str | None:
    row = await store.wait_row(id)
    return row.state if row is not None else None


async def _pages(store: Store, run: str, **which: Any) -> list[str]:
    found: list[str] = []
    while page := await store.waits(run, **which, after=found[-1] if found else None, limit=2):
        found += [row.id for row in page]
    return found


async def _pages_by_time(store: Store, **which: Any) -> list[str]:
    found: list[str] = []
    while page := await store.waits_by_time(**which, before=found[-1] if found else None, limit=3):
        found += [row.id for row in page]
    return found


def _indexed(data: Any) -> NewEvent:
    return msgspec.structs.replace(event("t", data=data), kind="t")


def _without_times(row: WaitRow | None) -> WaitRow:
    assert row is not None
    return msgspec.structs.replace(row, created=0, settled=None, position="")


async def _listeners(store: Store, topic: str, keys: list[str] | None) -> list[str]:
    found: list[str] = []
    while page := await store.waits_for_topic(topic, keys, after=found[-1] if found else None, limit=2):
        found += [row.id for row in page]
    return found
