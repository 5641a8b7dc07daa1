"""State: keys with a version and a time to live, written only through commits."""

from __future__ import annotations

import asyncio

from ...ports.store import StateRow, Store
from ...ports.unit import Committed, Receipt, Refused, StateWrite
from ..clock import FakeClock
from .samples import apply, unit
from .store_under_test import StoreUnderTest


async def put(
    store: Store, key: str, value: bytes | None, expect: int | None = None, expires: int | None = None
) -> Receipt:
    return await apply(store, unit(state=[StateWrite(key, value, expect, expires)]))


class StateContract(StoreUnderTest):
    """The last write wins, unless it expects a version."""

    async def test_an_unknown_key(self, store: Store) -> None:
        assert await store.state("k") is None
        assert await store.states("") == []

    async def test_versions_count_writes(self, store: Store) -> None:
        await put(store, "k", b'{"a":1}')
        assert await store.state("k") == StateRow("k", b'{"a":1}', 1)
        await put(store, "k", b'{"a":2}')
        assert await store.state("k") == StateRow("k", b'{"a":2}', 2)

    async def test_deleting(self, store: Store) -> None:
        await put(store, "k", b"1")
        assert isinstance(await put(store, "k", None), Committed)
        assert await store.state("k") is None
        assert isinstance(await put(store, "k", None), Committed)  # deleting a missing key is fine
        assert isinstance(await put(store, "k", b"2", expect=0), Committed)

    async def test_compare_and_set(self, store: Store) -> None:
        assert isinstance(await put(store, "k", b"1", expect=0), Committed)
        assert await put(store, "k", b"x", expect=0) == Refused("state", "k")
        assert await put(store, "k", b"x", expect=2) == Refused("state", "k")
        assert isinstance(await put(store, "k", b"2", expect=1), Committed)
        assert await put(store, "k", None, expect=1) == Refused("state", "k")
        assert isinstance(await put(store, "k", None, expect=2), Committed)
        assert await store.state("k") is None

    async def test_one_refused_key_refuses_the_unit(self, store: Store) -> None:
        await put(store, "b", b"1")
        writes = [StateWrite("a", b"1"), StateWrite("b", b"2", expect=7), StateWrite("c", b"1")]
        assert await apply(store, unit(state=writes)) == Refused("state", "b")
        assert [row.key for row in await store.states("")] == ["b"]

    async def test_concurrent_increments_all_count(self, store: Store) -> None:
        await put(store, "n", b"0")

        async def increment() -> None:
            while True:
                row = await store.state("n")
                assert row is not None
                if isinstance(await put(store, "n", b"%d" % (int(row.value) + 1), expect=row.version), Committed):
                    return

        await asyncio.gather(*(increment() for _ in range(10)))
        assert await store.state("n") == StateRow("n", b"10", 11)

    async def test_a_key_lives_until_it_expires(self, store: Store, clock: FakeClock) -> None:
        end = clock.now_ms() + 1000
        await put(store, "k", b"1", expires=end)
        assert await store.state("k") == StateRow("k", b"1", 1, end)
        clock.set_ms(end - 1)
        assert await store.state("k") is not None
        clock.set_ms(end)
        assert await store.state("k") is None
        assert await store.states("") == []

    async def test_an_expired_key_counts_as_absent(self, store: Store, clock: FakeClock) -> None:
        await put(store, "k", b"1", expires=clock.now_ms() + 1000)
        clock.advance("1s")
        assert await put(store, "k", b"2", expect=1) == Refused("state", "k")
        assert isinstance(await put(store, "k", b"2", expect=0), Committed)
        row = await store.state("k")
        assert row is not None
        assert (row.value, row.expires) == (b"2", None)
        assert isinstance(await put(store, "k", b"3", expect=row.version), Committed)

    async def test_each_write_sets_its_own_time_to_live(self, store: Store, clock: FakeClock) -> None:
        end = clock.now_ms() + 1000
        await put(store, "kept", b"1", expires=end)
        await put(store, "kept", b"2")
        await put(store, "lost", b"1")
        await put(store, "lost", b"2", expires=end)
        clock.set_ms(end)
        assert [row.key for row in await store.states("")] == ["kept"]

    async def test_a_time_to_live_in_the_past_expires_at_once(self, store: Store, clock: FakeClock) -> None:
        await put(store, "k", b"1", expires=clock.now_ms())
        assert await store.state("k") is None

    async def test_keys_by_prefix_with_pages(self, store: Store, clock: FakeClock) -> None:
        # Characters that mean something in LIKE, GLOB, regular expressions and Redis patterns.
        keys = [
            "a",
            "a%",
            "a*",
            "a/1",
            "a/2",
            "a/3",
            "a/é",
            "a/\U0001f9ea",
            "a?",
            "a[b]",
            "a\\",
            "a_",
            "ab",
            "b",
        ]
        await apply(store, unit(state=[StateWrite(key, key.encode()) for key in reversed(keys)]))
        await put(store, "a/0", b"expired", expires=clock.now_ms())
        assert [row.key for row in await store.states("")] == sorted(keys)
        for prefix in ("a", "a/", "a%", "a*", "a?", "a_", "a[b]", "a\\", "b", "c"):
            expected = sorted(key for key in keys if key.startswith(prefix))
            assert [row.key for row in await store.states(prefix)] == expected, prefix
        found: list[str] = []
        while page := await store.states("a/", after=found[-1] if found else None, limit=2):
            found += [row.key for row in page]
        assert found == sorted(key for key in keys if key.startswith("a/"))

    async def test_values_come_back_byte_for_byte(self, store: Store) -> None:
        raw = b'{ "empty":[], "map":{} ,"n":9007199254740991,"f":1.0}'
        await put(store, "k", raw)
        row = await store.state("k")
        assert row is not None
        assert row.value == raw
