"""Search for runs by time, tag and input, on every store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock import Context, SyncApp, flow
from penstock.core.errors import BadArgument, NotJSON
from penstock.testing.clock import FakeClock


@flow("order")
async def order(input: Any, ctx: Context) -> None: ...


@flow("refund")
async def refund(input: Any, ctx: Context) -> None: ...


async def _found(app: Any, **which: Any) -> list[str]:
    return [row.id for row in await app.runs.list(**which)]


async def test_runs_by_tag_input_flow_and_time(app: Callable[..., Any], clock: FakeClock) -> None:
    async with app(order, refund, clock=clock) as one:
        created = clock.now_ms()
        lines = [{"sku": "a"}, {"sku": "b"}]
        await one.start(order, {"customer": 7, "lines": lines}, key="first", tags={"shop": "rome"})
        clock.advance("1h")
        await one.start(refund, {"customer": 7}, key="second", tags={"shop": "rome", "vip": "yes"})
        clock.advance("1h")
        await one.start(order, {"customer": 8}, key="third", tags={"shop": "oslo"})
        assert await _found(one, where={"customer": 7}) == ["second", "first"]
        assert await _found(one, where={"lines": [{"sku": "b"}]}) == ["first"]
        assert await _found(one, where={"customer": 7}, flow="order") == ["first"]
        assert await _found(one, tags={"shop": "rome"}) == ["second", "first"]
        assert await _found(one, tags={"shop": "rome", "vip": "yes"}) == ["second"]
        assert await _found(one, tags={"shop": "rome"}, where={"customer": 8}) == []
        assert await _found(one, since="90m") == ["third", "second"]
        assert await _found(one, until=timedelta(hours=1)) == ["first"]
        assert await _found(one, since=datetime.fromtimestamp(created / 1000, UTC), until="30m") == ["second", "first"]
        assert await _found(one, where={"customer": 7}, before="second") == ["first"]
        assert await _found(one, where={"customer": 7}, status="completed") == []


async def test_a_redacted_value_cannot_be_searched(memory: Callable[..., Any]) -> None:
    async with memory(order) as one:
        await one.start(order, {"customer": 7, "password": "sesame-1"})
        assert await _found(one, where={"password": "sesame-1"}) == []
        assert len(await _found(one, where={"customer": 7})) == 1


async def test_forks_and_replays_are_found_by_the_original_input(memory: Callable[..., Any]) -> None:
    async with memory(order) as one, one.workers.background():
        run, _ = await one.run_to_end(order, {"customer": 7}, key="old", tags={"shop": "rome"})
        first_event = (await one.stream(run))[0].id
        await one.runs.fork(run, first_event, key="new")
        assert await _found(one, where={"customer": 7}, tags={"shop": "rome"}) == ["new", "old"]


@pytest.mark.parametrize(
    ("which", "problem"),
    [
        ({"since": "soon"}, BadArgument),
        ({"tags": {"shop": 7}}, Exception),
        ({"where": {"a": float("nan")}}, NotJSON),
        ({"status": "done"}, BadArgument),
    ],
)
async def test_an_invalid_search_raises(
    memory: Callable[..., Any], which: dict[str, Any], problem: type[Exception]
) -> None:
    async with memory(order) as one:
        with pytest.raises(problem, match=r"soon|shop|where|done"):
            await one.runs.list(**which)


def test_search_with_the_sync_app() -> None:
    with SyncApp(":memory:", handlers=[order]) as app:
        run = app.start(order, {"customer": 7}, tags={"shop": "rome"})
        assert [row.id for row in app.runs.list(where={"customer": 7}, tags={"shop": "rome"}, since="1h")] == [run]
