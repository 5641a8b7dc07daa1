"""Snapshots: a fold reads only new events, and never returns a state that the store no longer has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock import Context, Event, SyncApp, flow
from penstock.app import snapshots as module
from penstock.app.snapshots import Reducer, Snapshots
from penstock.core.clock import to_iso
from penstock.core.errors import BadArgument
from penstock.core.events import BadStream
from penstock.flows.reducer import RunView, finish_view, reduce_flow
from penstock.testing import FakeClock


@flow("long")
async def long(input: int, ctx: Context) -> None:
    for n in range(input):
        ctx.log.info(f"line {n}", n=n)


def count(state: Any, event: Event) -> Any:
    return {"n": state["n"] + 1, "last": event.data}


class Reads:
    """Counts the events that a store returns."""

    def __init__(self, store: Any) -> None:
        self.count = 0
        self._read = store.read
        store.read = self.read

    async def read(self, *args: Any, **kwargs: Any) -> list[Event]:
        found: list[Event] = await self._read(*args, **kwargs)
        self.count += len(found)
        return found

    def take(self) -> int:
        count, self.count = self.count, 0
        return count


@pytest.mark.spec("003-1.5", "003-5.6")
async def test_a_second_look_at_a_long_run_reads_only_what_is_new(app: Callable[..., Any]) -> None:
    async with app(long) as one, one.workers.background():
        run = await one.start(long, 300)
        await run.wait()
        reads = Reads(one.store)
        first = await run.get()
        total = len(await one.stream(run))
        assert reads.take() > total
        first.logs.clear()
        first.steps.clear()
        second = await run.get()
        assert reads.take() <= 2
        fresh = reduce_flow(await one.stream(run))
        finish_view(fresh)
        assert second == fresh
        reads.take()
        await one.events.append(f"nq:flow:{run}", "noted", 7)
        assert [event["kind"] for event in (await run.get()).emitted] == ["noted"]
        assert reads.take() <= 3


async def test_a_trimmed_stream_is_folded_again(app: Callable[..., Any]) -> None:
    async with app(long) as one:
        stream = "nq:entity:e"
        for n in range(60):
            await one.events.append(stream, "changed", n)
        fold = lambda: one.events.state("entity", "e", count, {"n": 0})  # noqa: E731
        assert await fold() == await fold() == {"n": 60, "last": 59}
        for keep, left in ((59, 59), (20, 20), (0, 0)):
            await one.store.trim(stream, keep=keep)
            assert (await fold())["n"] == left
        await one.events.append(stream, "changed", "new")
        assert await fold() == {"n": 1, "last": "new"}


class RewindingStore:
    """A server that can lose its last writes, and write others with the same sequence."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.rewind_epoch = 0

    def append(self, data: Any, ms: int = 5) -> None:
        seq = len(self.events) + 1
        self.events.append(Event(f"{ms}-{seq}", to_iso(ms), "changed", "e", data=data))

    async def read(self, stream: str, *, after: str | None = None, limit: int = 100) -> list[Event]:
        low = int(after.partition("-")[2]) if after else 0
        return [event for event in self.events if event.seq > low][:limit]


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "unnoticed"])
@pytest.mark.parametrize("lost", [1, 2, 30])
async def test_a_server_that_went_back_is_folded_again(lost: int, is_noticed: bool) -> None:
    store, clock = RewindingStore(), FakeClock()
    snapshots = Snapshots(store, clock)  # type: ignore[arg-type]
    reducer = Reducer("all", list, lambda state, event: [*state, event.data])
    for n in range(80):
        store.append(n)
    assert (await snapshots.fold("s", reducer)) == list(range(80))
    del store.events[-lost:]
    store.rewind_epoch += is_noticed
    assert (await snapshots.fold("s", reducer)) == list(range(80 - lost))
    for n in range(lost + 1):  # as many as were lost, and one more
        store.append(f"new {n}", ms=6)
        wanted = [*range(80 - lost), *(f"new {k}" for k in range(n + 1))]
        assert (await snapshots.fold("s", reducer)) == wanted


@pytest.mark.parametrize("lost", [1, 2, 30])
@pytest.mark.parametrize("more", [0, 1, 5])
async def test_writes_after_a_rewind_that_nobody_noticed(lost: int, more: int) -> None:
    store = RewindingStore()
    snapshots = Snapshots(store, FakeClock())  # type: ignore[arg-type]
    reducer = Reducer("all", list, lambda state, event: [*state, event.data])
    for n in range(80):
        store.append(n)
    await snapshots.fold("s", reducer)
    del store.events[-lost:]
    for n in range(lost + more):  # the sequence is where it was, or further
        store.append(f"new {n}", ms=6)
    assert await snapshots.fold("s", reducer) == [*range(80 - lost), *(f"new {n}" for n in range(lost + more))]


async def test_a_rewind_between_two_reads_is_not_kept() -> None:
    store, clock = RewindingStore(), FakeClock()
    snapshots = Snapshots(store, clock)  # type: ignore[arg-type]
    reducer = Reducer("all", list, lambda state, event: [*state, event.data])
    for n in range(80):
        store.append(n)
    await snapshots.fold("s", reducer)
    read = store.read

    async def rewind_after_read(*args: Any, **kwargs: Any) -> list[Event]:
        page = await read(*args, **kwargs)
        store.rewind_epoch += 1
        return page

    store.read = rewind_after_read  # type: ignore[method-assign]
    await snapshots.fold("s", reducer)
    store.read = read  # type: ignore[method-assign]
    store.events[3] = Event("5-4", to_iso(5), "changed", "e", data="other")
    assert (await snapshots.fold("s", reducer))[3] == "other"


async def test_the_cache_is_bounded_by_number_size_and_age(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = RewindingStore(), FakeClock()
    snapshots = Snapshots(store, clock)  # type: ignore[arg-type]
    reducer = Reducer("all", list, lambda state, event: [*state, event.data])
    for _ in range(60):
        store.append("x" * 100)
    monkeypatch.setattr(module, "MAX_SNAPSHOTS", 3)
    for n in range(5):
        await snapshots.fold(f"s{n}", reducer)
    assert snapshots.size[0] == 3
    one = snapshots.size[1] // 3
    monkeypatch.setattr(module, "MAX_SNAPSHOT_BYTES", 2 * one)
    await snapshots.fold("s9", reducer)
    assert snapshots.size == (2, 2 * one)
    clock.advance("61s")
    await snapshots.fold("s10", reducer)
    assert snapshots.size == (1, one), "what was not used for a minute is dropped"


async def test_a_state_that_cannot_be_kept_unchanged_is_folded_each_time() -> None:
    store = RewindingStore()
    snapshots = Snapshots(store, FakeClock())  # type: ignore[arg-type]
    for n in range(60):
        store.append(n)
    for new, apply, wanted in (
        (tuple, lambda state, event: (*state, event.data), tuple(range(60))),
        (set, lambda state, event: {*state, event.data}, set(range(60))),
        (object, lambda state, event: state, None),
    ):
        reducer: Reducer[Any] = Reducer("odd", new, apply)
        for _ in range(2):
            state = await snapshots.fold("s", reducer)
            assert wanted is None or (state, type(state)) == (wanted, type(wanted))
    assert snapshots.size == (0, 0)


@pytest.mark.spec("003-5.7")
async def test_the_state_of_any_stream(app: Callable[..., Any]) -> None:
    @flow("asks")
    async def asks(input: Any, ctx: Context) -> None:
        trigger = await ctx.wait.trigger("approval")
        await trigger.wait()

    async with app(asks) as one, one.workers.background():
        run = await one.start(asks)
        await one.wait_for_step(run, "asks", "suspended")
        view = await one.events.state("flow", run)
        assert isinstance(view, RunView)
        assert view.status == "waiting"
        shown = await run.get()
        assert (shown.waiting_for, shown.wait_step, shown.wait_trigger) == (
            "trigger", "asks", (await one.waits.list(run=run))[0].id,
        )  # fmt: skip
        trigger = await one.events.state("trigger", shown.wait_trigger or "")
        assert (trigger.status, trigger.name, trigger.flow) == ("registered", "approval", run)
        await one.events.append("nq:entity:user-7", "user.renamed", {"name": "ada"})
        state = await one.events.state("entity", "user-7", lambda state, event: state | event.data, {"id": 7})
        assert state == {"id": 7, "name": "ada"}
        assert await one.events.state("entity", "nobody", count, {"n": 0}) == {"n": 0}
        with pytest.raises(BadStream):
            await one.events.state("nothing", "x", count)
        with pytest.raises(BadArgument, match="streams of type 'webhook' have no reducer of their own; pass reducer="):
            await one.events.state("webhook", "user-7")


@pytest.mark.spec("003-12.3")
async def test_an_application_adds_a_type_of_streams(app: Callable[..., Any]) -> None:
    async with app(long) as one:
        with pytest.raises(BadStream, match="cart"):
            await one.events.append("nq:cart:7", "cart.filled", 1)
    async with app(long, stream_types=["cart"]) as one:
        for n in range(3):
            await one.events.append("nq:cart:7", "cart.filled", n)
        assert [event.data for event in await one.events.read("nq:cart:7")] == [0, 1, 2]
        assert await one.events.state("cart", "7", lambda sum, event: sum + event.data, 0) == 3
        assert [row.id for row in await one.events.streams("cart")] == ["7"]
        assert "nq:cart:7" in {item.stream async for item in one.events.feed()}


def test_the_state_of_a_stream_with_the_sync_app() -> None:
    with SyncApp(":memory:", handlers=[long]) as app:
        app.events.append("nq:entity:e", "changed", 1)
        assert app.events.state("entity", "e", count, {"n": 0}) == {"n": 1, "last": 1}
