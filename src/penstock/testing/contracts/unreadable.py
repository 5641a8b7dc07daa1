"""Events that another program wrote or changed: readers mark them and continue after them."""

from __future__ import annotations

import asyncio

from ...core.events import Event
from ...ports.store import Retention, Store
from ...ports.unit import NewEvent
from .samples import STREAM, apply, event, first, run, seqs, unit, user_event
from .store_under_test import StoreUnderTest

TIMEOUT_S = 20  # only a failing test takes this long
KIND = "order.paid"

# JSON of another shape than an event.
WRONG_SHAPES = [
    b"null",
    b"7",
    b'"text"',
    b"[]",
    b"[1,2]",
    b"{}",
    b'{"data":1}',
    b'{"kind":null}',
    b'{"kind":5,"data":1}',
    b'{"kind":["a"]}',
    b'{"kind":"a","subject":5}',
    b'{"kind":"a","flow":{}}',
    b'{"kind":"a","step":[]}',
    b'{"kind":"a","trigger":true}',
    b'{"kind":"a","correlationId":1}',
    b'{"kind":"a","meta":"x"}',
    b'{"kind":"a","meta":[]}',
    b'{"kind":"a","data":1e400}',
    b'{"kind":"a","data":' + b"[" * 3000 + b"]" * 3000 + b"}",
    b'{"kind":"step.started","meta":{"n":"x"}}',
    b'{"kind":"step.started","meta":{"attempt":-1}}',
    b'{"kind":"step.completed","meta":{"starts":7}}',
    b'{"kind":"step.failed","data":{"frames":[1]}}',
    b'{"kind":"step.failed","data":{"nextRetryAt":"soon"}}',
    b'{"kind":"step.await.time","data":{"resumeAt":5}}',
    b'{"kind":"flow.started","data":{"name":7}}',
    b'{"kind":"flow.completed","data":{"duration":"long"}}',
    b'{"kind":"job.active","meta":{"jobId":{}}}',
]
# Bytes that are no JSON. A store that checks them refuses to write them.
JUNK = [
    b"",
    b"junk",
    b"\x00\x00\x00",
    b"\xff\xfe\x00{",
    b"\xef\xbb\xbf" + b'{"kind":"a"}',
    b'{"kind":"a"',
    b'{"kind":"a"} {"kind":"b"}',
    b'{"kind":"\xff"}',
    b'{"kind":"\x00"}',
    b"x" * 100_000,
]


class UnreadableEventsContract(StoreUnderTest):
    """One bad event never hides the good ones."""

    accepts_any_bytes = True  # False for a store that only writes event bodies that are JSON

    def bad_bodies(self) -> list[bytes]:
        return [*WRONG_SHAPES, *JUNK] if self.accepts_any_bytes else WRONG_SHAPES

    async def write(self, store: Store, stream: str = STREAM, kind: str | None = None) -> int:
        """Append a good event, a bad one of each kind, and a good one. Return how many."""
        bad = [NewEvent(stream, body, kind) for body in self.bad_bodies()]
        good = user_event(KIND, stream, 1) if kind is not None else event(stream=stream, data=1)
        await apply(store, unit(events=[good, *bad, good]))
        return len(bad) + 2

    async def test_read_marks_them_and_continues(self, store: Store) -> None:
        count = await self.write(store)
        found = await store.read(STREAM, limit=count + 1)
        assert seqs(found) == list(range(1, count + 1))
        _check(found)
        assert await store.read(STREAM, backward=True, limit=count) == found[::-1]
        by_one: list[Event] = []
        while page := await store.read(STREAM, after=by_one[-1].id if by_one else None, limit=1):
            by_one += page
        assert by_one == found
        assert await store.read(STREAM, after=found[2].id, before=found[5].id) == found[3:5]

    async def test_tail_continues(self, store: Store) -> None:
        count = await self.write(store)
        tail = asyncio.create_task(first(store.tail(STREAM), count + 1))
        await apply(store, unit(events=[event(data=2)]))
        found = await asyncio.wait_for(tail, TIMEOUT_S)
        assert seqs(found) == list(range(1, count + 2))
        assert found[-1].data == 2

    async def test_the_feed_continues(self, store: Store) -> None:
        count = await self.write(store)
        items = await store.feed("", limit=count + 1)
        _check([item.event for item in items])
        assert await store.feed(items[3].cursor, limit=2) == items[4:6]
        assert await store.feed(None) == items[-1:]

    async def test_events_by_kind_continue(self, store: Store) -> None:
        count = await self.write(store, kind=KIND)
        items = await store.events_by_kind(KIND, limit=count + 1)
        _check([item.event for item in items])
        assert await store.events_by_kind(KIND, after=items[-2].cursor) == items[-1:]

    async def test_runs_are_found_beside_one_with_a_bad_first_event(self, store: Store) -> None:
        for n, body in enumerate(self.bad_bodies()):
            await apply(store, unit(run=run(f"bad-{n}"), events=[NewEvent(f"nq:flow:bad-{n}", body)]))
        good = event("flow.started", "nq:flow:good", {"input": {"order": 7}})
        await apply(store, unit(run=run("good"), events=[good]))
        found = await store.runs(first_event={"data": {"input": {"order": 7}}}, limit=5)
        assert [row.id for row in found] == ["good"]

    async def test_retention_removes_them(self, store: Store) -> None:
        count = await self.write(store, "nq:global", KIND)
        assert await store.trim("nq:global", keep=count - 3) == 3
        while any((await store.sweep(Retention(keep_events=0))).values()):
            pass
        assert await store.read("nq:global") == []
        assert await store.feed("") == []


def _check(events: list[Event]) -> None:
    """Check that the first and the last event are good, and that those between them are marked."""
    assert (events[0].data, events[-1].data) == (1, 1)
    assert not events[0].is_unreadable
    for one in events[1:-1]:
        assert one.is_unreadable
        assert (one.kind, one.step, one.meta) == ("unreadable", None, None)
        assert one.data["error"]
        assert len(one.data["raw"]) <= 201
