"""The feed: every event of every stream, in the order of commits."""

from __future__ import annotations

import asyncio

import pytest

from ...core.ids import BadId
from ...ports.store import FeedItem, Store
from ..until import until
from .event_log import write
from .samples import STREAM, add, apply, claim, event, job, run, started, unit
from .store_under_test import StoreUnderTest

TIMEOUT_S = 20  # only a failing test takes this long


async def read_feed(store: Store, cursor: str | None, count: int) -> list[FeedItem]:
    """Read the feed until it has that many events: an event may wait for transactions that began before it."""

    async def read() -> list[FeedItem] | None:
        page = await store.feed(cursor)
        return page if len(page) >= count else None

    return await until(read, TIMEOUT_S)  # type: ignore[no-any-return]


class FeedContract(StoreUnderTest):
    """A reader with a cursor misses no event, even if events before the cursor are trimmed."""

    @pytest.mark.parametrize("cursor", ["x", "1-x", "-1", "1" * 19, "1.2.3", "\x00", "9" * 100])
    async def test_an_invalid_feed_cursor_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(BadId, match="invalid cursor"):
            await store.feed(cursor)

    async def test_an_empty_feed(self, store: Store) -> None:
        assert await store.feed(None) == []
        assert await store.feed("") == []

    async def test_none_returns_the_newest_event_as_a_starting_point(self, store: Store) -> None:
        await write(store, 3)
        await write(store, 1, "nq:flow:last")
        await read_feed(store, "", 4)
        (newest,) = await read_feed(store, None, 1)
        assert (newest.stream, newest.event.seq) == ("nq:flow:last", 1)
        assert await store.feed(newest.cursor) == []
        await write(store, 2)
        assert _positions(await read_feed(store, newest.cursor, 2)) == [(STREAM, 4), (STREAM, 5)]

    async def test_all_streams_in_the_order_of_commits(self, store: Store) -> None:
        a, b = "nq:flow:a", "nq:flow:b"
        await apply(store, unit(events=[event("1", a), event("2", b), event("3", a)]))
        await add(store, job("j", started=started(b), added=event("4", a)))
        await claim(store)
        await apply(store, unit(events=[event("5", b)]))
        items = await read_feed(store, "", 6)
        assert [item.event.kind for item in items] == ["1", "2", "3", "4", "step.started", "5"]
        assert _positions(items) == [(a, 1), (b, 1), (a, 2), (a, 3), (b, 2), (b, 3)]
        assert [item.event for item in items if item.stream == a] == await store.read(a)
        assert len({item.cursor for item in items}) == len(items)

    async def test_pages_of_the_feed_join(self, store: Store) -> None:
        for n in range(7):
            await write(store, 1, f"nq:flow:{n % 3}")
        await read_feed(store, "", 7)
        found: list[FeedItem] = []
        while page := await store.feed(found[-1].cursor if found else "", limit=3):
            assert len(page) <= 3
            found += page
        assert found == await store.feed("")
        assert len(found) == 7

    async def test_a_refused_unit_leaves_no_gap_in_the_feed(self, store: Store) -> None:
        await write(store, 1)
        await apply(store, unit(run=run("r", 7), events=[event(), event()]))
        await write(store, 1)
        assert _positions(await read_feed(store, "", 2)) == [(STREAM, 1), (STREAM, 2)]

    async def test_a_cursor_stays_valid_when_its_event_is_trimmed(self, store: Store) -> None:
        await write(store, 3)
        await read_feed(store, "", 3)
        (newest,) = await read_feed(store, None, 1)
        await store.trim(STREAM, keep=0)
        assert await store.feed(newest.cursor) == []
        # A store that reused positions would hide these from a reader with that cursor.
        await write(store, 2)
        assert _positions(await read_feed(store, newest.cursor, 2)) == [(STREAM, 4), (STREAM, 5)]

    async def test_a_reader_among_writers_misses_nothing(self, store: Store) -> None:
        writers, each = 6, 20

        async def writer(n: int) -> None:
            for _ in range(each):
                await apply(store, unit(events=[event(stream=f"nq:flow:{n}"), event()]))

        async def reader() -> list[FeedItem]:
            found: list[FeedItem] = []
            with store.signals.listen("events") as listener:
                while len(found) < writers * each * 2:
                    page = await store.feed(found[-1].cursor if found else "", limit=50)
                    found += page
                    if not page:
                        await listener.wait(1.0)
            return found

        reading = asyncio.create_task(reader())
        await asyncio.gather(*map(writer, range(writers)))
        async with asyncio.timeout(TIMEOUT_S):
            found = await reading
        assert sorted(_positions(found)) == sorted(
            [(f"nq:flow:{n}", k) for n in range(writers) for k in range(1, each + 1)]
            + [(STREAM, k) for k in range(1, writers * each + 1)]
        )
        of_stream = [item.event.seq for item in found if item.stream == STREAM]
        assert of_stream == sorted(of_stream)


def _positions(items: list[FeedItem]) -> list[tuple[str, int]]:
    return [(item.stream, item.event.seq) for item in items]
