"""Rows of events that somebody changed with SQL: the body, or the time. The tables refuse other types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from penstock.stores.sqlite import SqliteStore
from penstock.testing.contracts.samples import STREAM, apply, event, first, unit

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def store() -> AsyncIterator[SqliteStore]:
    store = SqliteStore()
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize(
    "change",
    [
        "body = CAST(7 AS BLOB)",
        "body = CAST('text' AS BLOB)",
        "body = x'ff00'",
        "body = x''",
        "ms = -5",
        "ms = 9000000000000000000",
    ],
)
async def test_a_changed_row_is_marked(store: SqliteStore, change: str) -> None:
    await apply(store, unit(events=[event(data=n) for n in range(1, 4)]))
    await store._writer.run(lambda c: _execute(c, f"UPDATE events SET {change} WHERE seq = 2"))
    found = await asyncio.wait_for(first(store.tail(STREAM), 3), 20)
    assert [one.data if not one.is_unreadable else one.id.partition("-")[2] for one in found] == [1, "2", 3]
    assert await store.read(STREAM, after=found[1].id) == found[2:]
    assert [item.event for item in await store.feed("")] == found


def _execute(cursor: Any, statement: str) -> None:
    cursor.execute(statement)
