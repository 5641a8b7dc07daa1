"""A unit may have thousands of state writes: eight times as many must not take sixty-four times as long."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import postgres_server
import redis_server
from penstock.app.store_urls import open_store
from penstock.core.clock import SystemClock
from penstock.ports.store import Store
from penstock.ports.unit import Committed, StateWrite, Unit

FEW, MANY = 400, 3200
MAX_RATIO = 32  # between linear (8) and quadratic (64)
STORES: dict[str, Callable[[], str]] = {
    "memory": lambda: ":memory:",
    "redis": redis_server.url,
    "postgres": postgres_server.url,
}


@pytest.mark.parametrize("expect", [None, 0], ids=["any version", "new keys"])
@pytest.mark.parametrize("name", STORES)
async def test_time_grows_with_the_number(name: str, expect: int | None) -> None:
    store = open_store(STORES[name](), clock=SystemClock(), namespace="nq")
    await store.open()
    try:
        # A pause of the machine is no proof: only what is slow several times in a row is slow.
        for attempt in range(4):
            few = min([await write(store, f"{attempt}-few-{n}", FEW, expect) for n in range(3)])
            if await write(store, f"{attempt}-many", MANY, expect) <= few * MAX_RATIO:
                return
        pytest.fail(f"{MANY} writes take more than {MAX_RATIO} times as long as {FEW}")
    finally:
        await store.close()


async def write(store: Store, name: str, count: int, expect: int | None) -> float:
    """Write so many keys in one unit, and return the seconds it takes."""
    unit = Unit(name, state=[StateWrite(f"{name}/{n}", b"1", expect) for n in range(count)])
    started = time.perf_counter()
    (receipt,) = (await store.commit([unit])).receipts
    assert isinstance(receipt, Committed)
    return time.perf_counter() - started


@pytest.mark.parametrize("name", STORES)
async def test_writes_of_one_key_in_one_unit(name: str) -> None:
    store = open_store(STORES[name](), clock=SystemClock(), namespace="nq")
    await store.open()
    try:
        unit = Unit("u", state=[StateWrite("k", b"1", 0), StateWrite("k", b"2", 0), StateWrite("k", b"3")])
        assert isinstance((await store.commit([unit])).receipts[0], Committed)
        row = await store.state("k")
        assert row is not None
        assert (row.value, row.version) == (b"3", 3)
    finally:
        await store.close()
