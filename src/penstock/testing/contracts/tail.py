"""Tailing a stream: existing events, then new ones, each exactly once."""

from __future__ import annotations

import asyncio

from ...core.events import Event
from ...ports.store import Store
from .event_log import write
from .samples import STREAM, add, apply, claim, event, first, job, seqs, started, unit
from .store_under_test import StoreUnderTest

TIMEOUT_S = 20  # only a failing test takes this long


class TailContract(StoreUnderTest):
    """No event is lost between backfill and live."""

    async def test_tail_yields_existing_and_new_events(self, store: Store) -> None:
        await write(store, 3)
        tail = asyncio.create_task(first(store.tail(STREAM), 5))
        await write(store, 1)
        await write(store, 1)
        assert seqs(await _finish(tail)) == [1, 2, 3, 4, 5]

    async def test_tail_after_a_cursor(self, store: Store) -> None:
        await write(store, 5)
        cursor = (await store.read(STREAM))[2].id
        assert seqs(await _finish(asyncio.create_task(first(store.tail(STREAM, after=cursor), 2)))) == [4, 5]

    async def test_tail_of_a_stream_that_starts_later(self, store: Store) -> None:
        tail = asyncio.create_task(first(store.tail("nq:flow:later"), 2))
        await asyncio.sleep(0)
        await write(store, 1)
        await write(store, 2, "nq:flow:later")
        found = await _finish(tail)
        assert [e.data for e in found] == [1, 2]

    async def test_tail_longer_than_a_page(self, store: Store) -> None:
        count = 1203
        await write(store, count)
        assert seqs(await _finish(asyncio.create_task(first(store.tail(STREAM), count)))) == list(range(1, count + 1))

    async def test_tails_under_concurrent_writers_lose_and_repeat_nothing(self, store: Store) -> None:
        writers, each = 8, 25

        async def writer(n: int) -> None:
            for k in range(each):
                await apply(store, unit(events=[event(data=[n, k]), event("other", "nq:flow:other")]))

        total = writers * each
        early = [asyncio.create_task(first(store.tail(STREAM), total)) for _ in range(3)]
        writing = [asyncio.create_task(writer(n)) for n in range(writers)]
        late: list[asyncio.Task[list[Event]]] = []
        for _ in range(4):  # tails that start while events are being written
            await apply(store, unit(events=[event("other", "nq:flow:other")]))
            late.append(asyncio.create_task(first(store.tail(STREAM), total)))
        await asyncio.gather(*writing)
        for tail in early + late:
            found = await _finish(tail)
            assert seqs(found) == list(range(1, total + 1))
            assert sorted(e.data for e in found) == [[n, k] for n in range(writers) for k in range(each)]

    async def test_tail_yields_events_appended_by_claims(self, store: Store) -> None:
        tail = asyncio.create_task(first(store.tail(STREAM), 1))
        await add(store, job("j", started=started()))
        await claim(store)
        (event,) = await _finish(tail)
        assert event.kind == "step.started"

    async def test_tail_continues_after_a_trim(self, store: Store) -> None:
        await write(store, 5)
        cursor = (await store.read(STREAM))[1].id
        await store.trim(STREAM, keep=1)
        assert seqs(await _finish(asyncio.create_task(first(store.tail(STREAM, after=cursor), 1)))) == [5]


async def _finish(tail: asyncio.Task[list[Event]]) -> list[Event]:
    async with asyncio.timeout(TIMEOUT_S):
        return await tail
