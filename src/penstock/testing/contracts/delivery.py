"""Events that others may wait for: found by their kind, and told of in the very write that appends them."""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.events import event_of
from ...ports.store import JobRow, Store
from ...ports.unit import DELIVER, DELIVERIES, Committed, JobState, SettleWait
from ..clock import FakeClock
from .samples import STREAM, apply, claim, claim_one, event, run, told, unit, wait
from .signals import BOUND
from .subject import StoreUnderTest


class DeliveriesContract(StoreUnderTest):
    """Each event of a topic that an open wait has is told of once, others never."""

    async def test_an_event_that_someone_waits_for_is_told_of(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]))
        with store.signals.listen(f"queue:{DELIVERIES}") as listener:
            receipt = await apply(store, unit(events=[event(), told("order.paid")]))
            assert await listener.wait(BOUND)
        assert isinstance(receipt, Committed)
        one = await claim_one(store, DELIVERIES)
        ms, seq = receipt.events[1]
        (item,) = await store.events_by_kind("order.paid")
        payload = msgspec.json.decode(one.payload)
        body = payload.pop("body", None)
        assert (one.name, payload) == (DELIVER, {"stream": STREAM, "id": f"{ms}-{seq}", "cursor": item.cursor})
        assert body is None or event_of(STREAM, payload["id"], body) == item.event
        assert (one.run, one.scope) == (None, one.job)
        assert await claim(store, DELIVERIES) == []

    async def test_nobody_is_told_when_nobody_waits(self, store: Store) -> None:
        opened = [wait("gone", "r", topic="order.paid"), wait("other", "r", topic="order.sent"), wait("deaf", "r")]
        await apply(store, unit(run=run("r"), waits=opened))
        await apply(store, unit(waits=[SettleWait("gone", "cancelled")]))
        await apply(store, unit(events=[told("order.paid"), event("order.sent")]))
        assert await _told_jobs(store) == []

    async def test_each_event_is_told_of_once(self, store: Store) -> None:
        opened = [wait(f"w{n}", "r", topic="order.paid", key=str(n)) for n in range(5)]
        await apply(store, unit(run=run("r"), waits=opened))
        await store.commit([unit(events=[told(data=n)]) for n in range(3)] + [unit(events=[told(), told()])])
        ids = [e.id for e in await store.read(STREAM)]
        assert await _told_jobs(store) == ids
        assert len(set(ids)) == 5

    async def test_wait_and_event_of_one_call_find_each_other(self, store: Store) -> None:
        opening, saying = unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]), unit(events=[told()])
        await store.commit([opening, saying])
        assert len(await _told_jobs(store)) == 1

    async def test_event_and_wait_of_one_call_find_each_other(self, store: Store) -> None:
        # The wait looks back for itself, so a job is allowed, and the event must be there to be found.
        opening, saying = unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]), unit(events=[told()])
        await store.commit([saying, opening])
        assert len(await _told_jobs(store)) <= 1
        assert len(await store.events_by_kind("order.paid")) == 1

    async def test_event_and_wait_of_one_unit_find_each_other(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")], events=[told()]))
        assert len(await store.events_by_kind("order.paid")) == 1
        assert len(await _told_jobs(store)) <= 1

    async def test_events_on_both_sides_of_a_wait_are_not_told_of_by_one_job(self, store: Store) -> None:
        """Whoever delivers them asks once who was there before the first of them."""
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]))
        opening = unit(waits=[wait("later", "r", topic="order.paid")])
        saying = [unit(events=[told(data=n), told(data=n)]) for n in range(2)]
        await store.commit([saying[0], opening, saying[1]])
        items = {item.event.id: item for item in await store.events_by_kind("order.paid")}
        rows = await store.jobs(DELIVERIES, JobState.WAITING)
        assert sorted(one["id"] for job in _told_by(rows) for one in job) == sorted(items)
        for job in _told_by(rows):
            assert [one["cursor"] for one in job] == [items[one["id"]].cursor for one in job]
            listeners = [await store.waits_for_topic("order.paid", None, before=one["cursor"]) for one in job]
            assert all(rows == listeners[0] for rows in listeners)

    async def test_a_refused_unit_tells_nobody(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]))
        await apply(store, unit(events=[told()], removes=["missing"]))
        assert await _told_jobs(store) == []
        assert await store.events_by_kind("order.paid") == []

    async def test_a_repeated_unit_tells_once(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]))
        said = unit(events=[told()])
        for _ in range(2):
            await apply(store, said)
        assert len(await _told_jobs(store)) == 1

    async def test_events_are_found_by_kind_in_the_order_of_commits(self, store: Store, clock: FakeClock) -> None:
        for n in range(3):
            await apply(store, unit(events=[told("a", f"nq:entity:{n}", n), told("b"), event("a"), told("a", data=n)]))
            clock.advance("1s")
        found = await store.events_by_kind("a")
        assert [item.event.data for item in found] == [0, 0, 1, 1, 2, 2]
        assert [item.stream for item in found[:2]] == ["nq:entity:0", STREAM]
        assert [item.event.kind for item in found] == ["a"] * 6
        assert await store.events_by_kind("c") == []

    async def test_events_found_in_pages(self, store: Store) -> None:
        await apply(store, unit(events=[told("a", data=n) for n in range(7)]))
        found: list[int] = []
        after: str | None = None
        while page := await store.events_by_kind("a", after=after, limit=2):
            after = page[-1].cursor
            found += [item.event.data for item in page]
        assert found == list(range(7))
        feed = {item.event.id: item.cursor for item in await store.feed("")}
        assert [item.cursor for item in await store.events_by_kind("a")] == list(feed.values())

    async def test_events_found_since_a_stream_began(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(events=[told("a", data="before")]))
        await apply(store, unit(events=[event("flow.started", "nq:flow:r")]))
        clock.set_ms(clock.now_ms() - 3_600_000)  # the order is that of commits, whatever clocks say
        await apply(store, unit(events=[told("a", data="after"), told("a", "nq:flow:r", "own")]))
        assert [item.event.data for item in await store.events_by_kind("a", since="nq:flow:r")] == ["after", "own"]
        last = (await store.events_by_kind("a"))[1].cursor
        assert [item.event.data for item in await store.events_by_kind("a", since="nq:flow:r", after=last)] == ["own"]

    async def test_who_listened_before_an_event_came(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("early", "r", topic="order.paid", key="k")]))
        await apply(store, unit(events=[told()]))
        (item,) = await store.events_by_kind("order.paid")
        await apply(store, unit(waits=[wait("late", "r", topic="order.paid", key="k")]))
        for keys in (["k"], None):
            rows = await store.waits_for_topic("order.paid", keys, before=item.cursor)
            assert [row.id for row in rows] == ["early"]
            assert len(await store.waits_for_topic("order.paid", keys)) == 2


async def _told_jobs(store: Store) -> list[str]:
    """The ids of the events that somebody is told of."""
    rows = await store.jobs(DELIVERIES, JobState.WAITING, limit=1000)
    return [told["id"] for job in _told_by(rows) for told in job]


def _told_by(rows: list[JobRow]) -> list[list[dict[str, Any]]]:
    """What each of these jobs tells of."""
    payloads = [msgspec.json.decode(row.payload) for row in rows]
    return [payload.get("events", [payload]) for payload in payloads]
