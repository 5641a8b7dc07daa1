"""Streams: read by cursor in both directions, listed by prefix, trimmed from the old end."""

from __future__ import annotations

import pytest

from ...core.ids import BadId
from ...ports.store import Retention, Store
from ..clock import FakeClock
from .samples import STREAM, apply, event, run, seqs, unit
from .store_under_test import StoreUnderTest


async def write(store: Store, count: int, stream: str = STREAM) -> None:
    await apply(store, unit(events=[event(stream=stream, data=n) for n in range(1, count + 1)]))


class EventLogContract(StoreUnderTest):
    """The cursor is an event id, and its sequence number is the position."""

    async def test_an_unknown_stream_is_empty(self, store: Store) -> None:
        assert await store.read("nq:flow:none") == []
        assert await store.read("nq:flow:none", backward=True) == []
        with pytest.raises(BadId):
            await store.read("nq:flow:none", after="x")
        with pytest.raises(BadId):
            await store.read("nq:flow:none", before="x")
        assert await store.streams() == []

    @pytest.mark.parametrize(
        ("after", "before", "limit", "backward", "expected"),
        [
            (None, None, 100, False, list(range(1, 11))),
            (None, None, 100, True, list(range(10, 0, -1))),
            (None, None, 3, False, [1, 2, 3]),
            (None, None, 3, True, [10, 9, 8]),
            (7, None, 100, False, [8, 9, 10]),
            (7, None, 2, False, [8, 9]),
            (7, None, 100, True, [10, 9, 8]),
            (None, 4, 100, False, [1, 2, 3]),
            (None, 4, 2, True, [3, 2]),
            (3, 7, 100, False, [4, 5, 6]),
            (3, 7, 2, True, [6, 5]),
            (0, None, 2, False, [1, 2]),
            (10, None, 100, False, []),
            (99, None, 100, False, []),
            (None, 1, 100, False, []),
            (5, 6, 100, False, []),
            (7, 3, 100, True, []),
        ],
    )
    async def test_read_strictly_between_cursors(
        self,
        store: Store,
        after: int | None,
        before: int | None,
        limit: int,
        backward: bool,
        expected: list[int],
    ) -> None:
        await write(store, 10)
        await write(store, 3, "nq:flow:other")
        # The time in a cursor does not matter, only its sequence number.
        cursor = {"after": after, "before": before}
        ids = {name: f"1-{seq}" for name, seq in cursor.items() if seq is not None}
        read = await store.read(STREAM, limit=limit, backward=backward, **ids)
        assert seqs(read) == expected
        assert [e.data for e in read] == expected

    async def test_pages_join_without_gap_or_overlap(self, store: Store) -> None:
        await write(store, 10)
        for backward in (False, True):
            found: list[int] = []
            cursor: str | None = None
            while page := await store.read(
                STREAM,
                after=None if backward else cursor,
                before=cursor if backward else None,
                limit=3,
                backward=backward,
            ):
                found += seqs(page)
                cursor = page[-1].id
            assert found == (list(range(10, 0, -1)) if backward else list(range(1, 11)))

    async def test_an_invalid_cursor_is_refused(self, store: Store) -> None:
        await write(store, 1)
        for cursor in ("abc", "1", "1-", "1-x", "1-1-1", "1-99999999999999999999999", "1-²"):
            with pytest.raises(BadId):
                await store.read(STREAM, after=cursor)

    async def test_streams_by_prefix_with_pages(self, store: Store) -> None:
        # Characters that mean something in LIKE, GLOB, regular expressions and Redis patterns.
        named = [
            "nq:flow:a",
            "nq:flow:a%",
            "nq:flow:a*",
            "nq:flow:a_",
            "nq:flow:ab",
            "nq:flow:a[b]",
            "nq:flow:é",
            "nq:queue:a",
        ]
        for name in named:
            await write(store, 1, name)
        assert await store.streams() == sorted(named)
        assert await store.streams("nq:flow:") == sorted(named)[:-1]
        assert await store.streams("nq:flow:a") == sorted(n for n in named if n.startswith("nq:flow:a"))
        for name in ("nq:flow:a%", "nq:flow:a*", "nq:flow:a_", "nq:flow:a[b]", "nq:flow:é"):
            assert await store.streams(name) == [name]
        assert await store.streams("nope") == []
        found: list[str] = []
        while page := await store.streams("nq:flow:", after=found[-1] if found else None, limit=3):
            found += page
        assert found == sorted(named)[:-1]

    async def test_trim_keeps_the_newest(self, store: Store) -> None:
        await write(store, 10)
        await write(store, 3, "nq:flow:other")
        assert await store.trim(STREAM, keep=4) == 6
        assert seqs(await store.read(STREAM)) == [7, 8, 9, 10]
        assert await store.trim(STREAM, keep=4) == 0
        assert await store.trim(STREAM, keep=100) == 0
        assert len(await store.read("nq:flow:other")) == 3

    async def test_trim_by_time(self, store: Store, clock: FakeClock) -> None:
        for _ in range(4):
            await write(store, 1)
            clock.advance("1s")
        start = clock.now_ms() - 4000
        assert await store.trim(STREAM, before_ms=start) == 0
        assert await store.trim(STREAM, before_ms=start + 2000) == 2
        assert seqs(await store.read(STREAM)) == [3, 4]

    async def test_trim_by_both(self, store: Store, clock: FakeClock) -> None:
        for _ in range(4):
            await write(store, 1)
            clock.advance("1s")
        assert await store.trim(STREAM, keep=3, before_ms=clock.now_ms() - 2000) == 2

    async def test_a_trimmed_stream_continues_its_sequence(self, store: Store, clock: FakeClock) -> None:
        await write(store, 3)
        last = (await store.read(STREAM))[-1].id
        assert await store.trim(STREAM, keep=0) == 3
        assert await store.read(STREAM) == []
        clock.set_ms(clock.now_ms() - 5000)
        await write(store, 1)
        (new,) = await store.read(STREAM, after=last)
        assert new.seq == 4
        assert new.id.split("-")[0] == last.split("-")[0]  # and its time does not go back either

    async def test_trim_of_an_unknown_stream(self, store: Store) -> None:
        assert await store.trim("nq:flow:none", keep=0) == 0


class StreamListContract(StoreUnderTest):
    """Streams of a type, the last created first."""

    async def test_the_newest_streams_of_a_type(self, store: Store, clock: FakeClock) -> None:
        for n, name in enumerate(("c", "a", "d", "b")):
            await write(store, n + 1, f"nq:flow:{name}")
            await write(store, 1, f"nq:flowers:{name}")
            clock.advance("1s")
        await write(store, 1, "nq:global")
        await write(store, 1, "nq:flow:c")  # another event makes it no newer
        rows = await store.newest_streams("nq:flow:")
        assert [(row.name, row.seq) for row in rows] == [
            ("nq:flow:b", 4),
            ("nq:flow:d", 3),
            ("nq:flow:a", 2),
            ("nq:flow:c", 2),
        ]
        assert str(rows[-1].ms) == (await store.read("nq:flow:c", limit=1, backward=True))[0].id.partition("-")[0]
        found: list[str] = []
        while page := await store.newest_streams("nq:flow:", before=found[-1] if found else None, limit=3):
            found += [row.name for row in page]
        assert found == [row.name for row in rows]
        assert await store.newest_streams("nq:flow:", before="nq:flow:none") == []
        assert await store.newest_streams("nq:webhook:") == []

    async def test_a_stream_that_is_removed_is_not_listed(self, store: Store, clock: FakeClock) -> None:
        await apply(store, unit(run=run("r", closed=True), events=[event(stream="nq:flow:r")]))
        clock.advance("1d")
        await store.sweep(Retention(runs_before=clock.now_ms()))
        assert await store.newest_streams("nq:flow:") == []
