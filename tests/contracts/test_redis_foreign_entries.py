"""Entries that another program added to the streams of Penstock with XADD."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

import redis_server
from penstock.ports.store import Retention
from penstock.stores.redis import RedisStore
from penstock.stores.redis.queue_events import build_event
from penstock.testing.contracts.samples import STREAM, apply, event, first, unit, user_event

pytestmark = pytest.mark.asyncio

FUTURE = "9999999999999-7"


@pytest_asyncio.fixture
async def store() -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_server.url())
    await store.open()
    yield store
    await store.close()


async def _write(store: RedisStore, *numbers: int) -> None:
    for number in numbers:
        await apply(store, unit(events=[user_event(data=number)]))


async def _add(store: RedisStore, key: str, id: str, *fields: Any) -> str:
    return (await store._client.call("XADD", key, id, *fields)).decode()  # type: ignore[no-any-return]


async def _read(store: RedisStore, **options: Any) -> list[Any]:
    return [one.data if not one.is_unreadable else "unreadable" for one in await store.read(STREAM, **options)]


@pytest.mark.parametrize(
    ("id", "fields"),
    [
        ("*", ("order", "7")),
        ("*", ("body", "junk")),
        ("*", ("body", '{"kind":"order.paid"}')),
        ("*", ("\xff", "\x00")),
        (FUTURE, ("order", "7")),
        ("9999999999999-0", ("order", "7")),
    ],
)
async def test_a_foreign_entry_is_marked_where_it_stands(store: RedisStore, id: str, fields: tuple[str, ...]) -> None:
    await _write(store, 1, 2)
    added = await _add(store, STREAM, id, *fields)
    await _write(store, 3, 4)
    everything = [1, 2, "unreadable", 3, 4]
    events = await store.read(STREAM)
    assert (events[2].id, events[2].kind) == (added, "unreadable")
    assert "another program" in events[2].data["error"]
    assert [one.seq for one in events if not one.is_unreadable] == [1, 2, 3, 4]
    assert await _read(store) == everything
    assert await _read(store, backward=True) == everything[::-1]
    assert await _read(store, after=added) == [3, 4]
    assert await _read(store, before=added) == [1, 2]
    assert await _read(store, after=events[1].id) == everything[2:]
    assert await _read(store, after=events[1].id, before=events[4].id) == everything[2:4]
    assert await _read(store, after=added, backward=True) == [4, 3]
    assert await _read(store, after="0-1", before="0-4") == [2, "unreadable", 3]
    assert await _read(store, after=events[3].id, limit=1) == [4]
    tail = await asyncio.wait_for(asyncio.create_task(first(store.tail(STREAM), 5)), 20)
    assert tail == events


async def test_a_foreign_entry_at_the_end_is_followed_by_new_events(store: RedisStore) -> None:
    await _write(store, 1)
    await _add(store, STREAM, "*", "order", "7")
    following = asyncio.create_task(first(store.tail(STREAM), 3))
    await _write(store, 2)
    assert [one.kind for one in await asyncio.wait_for(following, 20)] == ["order.paid", "unreadable", "order.paid"]


async def test_a_foreign_id_with_our_next_sequence_hides_no_event(store: RedisStore) -> None:
    await _write(store, 1)
    await _add(store, STREAM, "9999999999999-2", "body", "junk")
    await _write(store, 2, 3)
    assert await _read(store) == [1, "unreadable", 2, 3]
    assert await _read(store, after="9999999999999-2") == [2, 3]


async def test_junk_in_the_feed_and_in_the_index_of_kinds(store: RedisStore) -> None:
    await _write(store, 1)
    for key in ("nq:feed", "nq:kinds:order.paid"):
        for fields in (
            ("a", "b"),
            ("stream", STREAM, "id", "x"),
            ("stream", "nq:streams", "id", "1-1"),
            ("stream", "x"),
        ):
            await _add(store, key, "*", *fields)
        await _add(store, key, FUTURE, "a", "b")
    await _write(store, 2)
    for items in (await store.feed(""), await store.events_by_kind("order.paid")):
        shown = [item.event.data for item in items if not item.event.is_unreadable]
        assert shown == [1, 2]
        assert len(items) == 7
    assert (await store.feed(None))[0].event.data == 2
    assert [item.event.data for item in await store.feed(FUTURE)] == [2]


async def test_retention_removes_foreign_entries(store: RedisStore) -> None:
    stream = "nq:global"
    await apply(store, unit(events=[event(stream=stream)]))
    for fields in (("a", "b"), ("body", "x", "pos", "junk"), ("body", "x", "pos", "1-1", "kind"), ("a", "b", "c", "d")):
        if len(fields) % 2 == 0:
            await _add(store, stream, "*", *fields)
    await apply(store, unit(events=[event(stream=stream)]))
    while any((await store.sweep(Retention(keep_events=0))).values()):
        pass
    assert await store.read(stream) == []


async def test_junk_among_the_events_of_a_queue() -> None:
    bad = [
        [b"event", b"delayed", b"jobId", b"1", b"delay", b"soon"],
        [b"event", b"added", b"jobId", b"1", b"name", b"\xff"],
        [b"\xff", b"\x00"],
        [b"event", b"delayed", b"jobId", b"1", b"delay", b"inf"],
    ]
    for flat in bad:
        found = build_event("bull:mail:events", "5-1", flat)
        assert found is not None
        assert (found.id, found.kind) == ("5-1", "unreadable")
    assert build_event("bull:mail:events", "5-1", [b"event", b"active", b"jobId", b"a"]).kind == "job.active"  # type: ignore[union-attr]
