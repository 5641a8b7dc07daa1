"""Deliveries: an event that a pending wait listens to is delivered by the write that appends it."""

from __future__ import annotations

from typing import Any

import msgspec

from ...core.events import build_event
from ...ports.store import JobRow, Store
from ...ports.unit import DELIVER, DELIVERIES, Committed, JobState, SettleWait
from ..clock import FakeClock
from .change_signals import SIGNAL_TIMEOUT_S
from .samples import STREAM, apply, claim, claim_one, event, first, run, unit, user_event, wait
from .store_under_test import StoreUnderTest


class DeliveriesContract(StoreUnderTest):
    """Each event with a pending wait on its topic is delivered once; other events are not."""

    async def test_an_event_with_a_pending_wait_is_delivered(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]))
        with store.signals.listen(f"queue:{DELIVERIES}") as listener:
            receipt = await apply(store, unit(events=[event(), user_event("order.paid")]))
            assert await listener.wait(SIGNAL_TIMEOUT_S)
        assert isinstance(receipt, Committed)
        one = await claim_one(store, DELIVERIES)
        ms, seq = receipt.events[1]
        (item,) = await store.events_by_kind("order.paid")
        payload = msgspec.json.decode(one.payload)
        body = payload.pop("body")
        assert (one.name, payload) == (DELIVER, {"stream": STREAM, "id": f"{ms}-{seq}", "cursor": item.cursor})
        assert build_event(STREAM, payload["id"], body) == item.event
        assert (one.run, one.scope) == (None, one.job)
        assert await claim(store, DELIVERIES) == []

    async def test_an_event_without_a_pending_wait_is_not_delivered(self, store: Store) -> None:
        waits = [wait("gone", "r", topic="order.paid"), wait("other", "r", topic="order.sent"), wait("no-topic", "r")]
        await apply(store, unit(run=run("r"), waits=waits))
        await apply(store, unit(waits=[SettleWait("gone", "cancelled")]))
        await apply(store, unit(events=[user_event("order.paid"), event("order.sent")]))
        assert await _delivered_ids(store) == []

    async def test_each_event_is_delivered_once(self, store: Store) -> None:
        waits = [wait(f"w{n}", "r", topic="order.paid", key=str(n)) for n in range(5)]
        await apply(store, unit(run=run("r"), waits=waits))
        await store.commit(
            [unit(events=[user_event(data=n)]) for n in range(3)] + [unit(events=[user_event(), user_event()])]
        )
        ids = [e.id for e in await store.read(STREAM)]
        assert await _delivered_ids(store) == ids
        assert len(set(ids)) == 5

    async def test_wait_and_event_of_one_call_find_each_other(self, store: Store) -> None:
        add_wait, emit = (
            unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]),
            unit(events=[user_event()]),
        )
        await store.commit([add_wait, emit])
        assert len(await _delivered_ids(store)) == 1

    async def test_event_and_wait_of_one_call_find_each_other(self, store: Store) -> None:
        # A new wait looks back for its event: the event must be found, and a delivery is allowed.
        add_wait, emit = (
            unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]),
            unit(events=[user_event()]),
        )
        await store.commit([emit, add_wait])
        assert len(await _delivered_ids(store)) <= 1
        assert len(await store.events_by_kind("order.paid")) == 1

    async def test_event_and_wait_of_one_unit_find_each_other(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")], events=[user_event()]))
        assert len(await store.events_by_kind("order.paid")) == 1
        assert len(await _delivered_ids(store)) <= 1

    async def test_events_before_and_after_a_wait_are_delivered_by_separate_jobs(self, store: Store) -> None:
        """A delivery job reads the waits once, as of its first event."""
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]))
        add_wait = unit(waits=[wait("later", "r", topic="order.paid")])
        emits = [unit(events=[user_event(data=n), user_event(data=n)]) for n in range(2)]
        await store.commit([emits[0], add_wait, emits[1]])
        items = {item.event.id: item for item in await store.events_by_kind("order.paid")}
        rows = await store.jobs(DELIVERIES, JobState.WAITING)
        assert sorted(one["id"] for job in _events_by_job(rows) for one in job) == sorted(items)
        for job in _events_by_job(rows):
            assert [one["cursor"] for one in job] == [items[one["id"]].cursor for one in job]
            listeners = [await store.waits_for_topic("order.paid", None, before=one["cursor"]) for one in job]
            assert all(rows == listeners[0] for rows in listeners)

    async def test_code_receives_the_original_of_a_redacted_event(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]))
        redacted, plain = user_event(data="[redacted]", original="secret"), user_event(data="plain")
        other = user_event(stream="nq:entity:other", data="[redacted]", original="secret too")
        await store.commit([unit(events=[plain, redacted]), unit(events=[event(), other, plain])])
        originals = ["plain", "secret", "secret too", "plain"]
        assert [item.event.data for item in await store.events_by_kind("order.paid")] == originals
        jobs = _events_by_job(await store.jobs(DELIVERIES, JobState.WAITING))
        assert [one["body"]["data"] for job in jobs for one in job] == originals

    async def test_readers_see_a_redacted_event_without_its_original(self, store: Store) -> None:
        await apply(store, unit(events=[user_event(data="[redacted]", original="secret")]))
        (read,), (fed,) = await store.read(STREAM), await store.feed("")
        assert read.data == fed.event.data == (await first(store.tail(STREAM), 1))[0].data == "[redacted]"

    async def test_an_original_is_trimmed_with_its_event(self, store: Store) -> None:
        await apply(store, unit(events=[user_event(data="[redacted]", original="secret"), user_event(data=1)]))
        await store.trim(STREAM, keep=1)
        assert [item.event.data for item in await store.events_by_kind("order.paid")] == [1]

    async def test_a_refused_unit_delivers_nothing(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]))
        await apply(store, unit(events=[user_event()], removes=["missing"]))
        assert await _delivered_ids(store) == []
        assert await store.events_by_kind("order.paid") == []

    async def test_a_repeated_unit_delivers_once(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("w", "r", topic="order.paid")]))
        emit = unit(events=[user_event()])
        for _ in range(2):
            await apply(store, emit)
        assert len(await _delivered_ids(store)) == 1

    async def test_events_are_found_by_kind_in_the_order_of_commits(self, store: Store, clock: FakeClock) -> None:
        for n in range(3):
            await apply(
                store,
                unit(
                    events=[
                        user_event("a", f"nq:entity:{n}", n),
                        user_event("b"),
                        event("a"),
                        user_event("a", data=n),
                    ]
                ),
            )
            clock.advance("1s")
        found = await store.events_by_kind("a")
        assert [item.event.data for item in found] == [0, 0, 1, 1, 2, 2]
        assert [item.stream for item in found[:2]] == ["nq:entity:0", STREAM]
        assert [item.event.kind for item in found] == ["a"] * 6
        assert await store.events_by_kind("c") == []

    async def test_events_found_in_pages(self, store: Store) -> None:
        await apply(store, unit(events=[user_event("a", data=n) for n in range(7)]))
        found: list[int] = []
        after: str | None = None
        while page := await store.events_by_kind("a", after=after, limit=2):
            after = page[-1].cursor
            found += [item.event.data for item in page]
        assert found == list(range(7))
        feed = {item.event.id: item.cursor for item in await store.feed("")}
        assert [item.cursor for item in await store.events_by_kind("a")] == list(feed.values())

    async def test_events_found_since_the_start_of_a_stream(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(events=[user_event("a", data="before")]))
        await apply(store, unit(events=[event("flow.started", "nq:flow:r")]))
        clock.set_ms(clock.now_ms() - 3_600_000)  # commits define the order, not clocks
        await apply(store, unit(events=[user_event("a", data="after"), user_event("a", "nq:flow:r", "own")]))
        assert [item.event.data for item in await store.events_by_kind("a", since="nq:flow:r")] == ["after", "own"]
        last = (await store.events_by_kind("a"))[1].cursor
        assert [item.event.data for item in await store.events_by_kind("a", since="nq:flow:r", after=last)] == ["own"]

    async def test_waits_registered_before_an_event(self, store: Store) -> None:
        await apply(store, unit(run=run("r"), waits=[wait("early", "r", topic="order.paid", key="k")]))
        await apply(store, unit(events=[user_event()]))
        (item,) = await store.events_by_kind("order.paid")
        await apply(store, unit(waits=[wait("late", "r", topic="order.paid", key="k")]))
        for keys in (["k"], None):
            rows = await store.waits_for_topic("order.paid", keys, before=item.cursor)
            assert [row.id for row in rows] == ["early"]
            assert len(await store.waits_for_topic("order.paid", keys)) == 2


async def _delivered_ids(store: Store) -> list[str]:
    """Return the ids of the events that waiting delivery jobs carry."""
    rows = await store.jobs(DELIVERIES, JobState.WAITING, limit=1000)
    return [one["id"] for job in _events_by_job(rows) for one in job]


def _events_by_job(rows: list[JobRow]) -> list[list[dict[str, Any]]]:
    """Return the events that each delivery job carries."""
    payloads = [msgspec.json.decode(row.payload) for row in rows]
    return [payload.get("events", [payload]) for payload in payloads]
