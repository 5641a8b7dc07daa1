"""Concurrent patches of one key: in one process they take turns, across processes they are retried."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock import flow, step
from penstock.context import state
from penstock.context.state import StateContention

MANY = 150


@flow("count", emits=["one"])
async def count(n: int, ctx: Any) -> None:
    for _ in range(n):
        ctx.emit("one", n)


@step(on="one", mode="each", emits=["all"])
async def each(n: int, ctx: Any) -> None:
    if await ctx.state.patch("so far", lambda so_far: (so_far or 0) + 1) == n:
        ctx.emit("all", n)


@step(on="all")
async def last(n: int) -> int:
    return n


async def test_many_instances_patch_one_key(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without turns, most of them would conflict repeatedly."""
    monkeypatch.setattr(state, "MAX_PATCH_TRIES", 3)
    async with app(count, each, last) as a, a.workers.background(concurrency=50):
        assert await a.run_for_result("count", MANY) == MANY


async def test_many_concurrent_patches_outside_handlers(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_PATCH_TRIES", 3)
    async with app(last) as a:
        values = await asyncio.gather(*(a.state.patch("n", lambda n: (n or 0) + 1) for _ in range(MANY)))
        assert sorted(values) == list(range(1, MANY + 1))


@pytest.mark.spec("000-4.3.5")
async def test_conflicting_patches_of_two_processes_are_retried(shared: Any) -> None:
    apps = [shared(count, each, last) for _ in range(2)]
    async with (
        apps[0] as one,
        apps[1] as two,
        one.workers.background(concurrency=20),
        two.workers.background(concurrency=20),
    ):
        assert await one.run_for_result("count", MANY) == MANY


@pytest.mark.spec("000-4.3.5")
async def test_a_patch_that_always_conflicts_raises(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "PATCH_PAUSE_S", 0.0)
    async with memory(last) as a:
        real = a.store.state

        async def overtaken(key: str) -> Any:
            row = await real(key)
            if key == "shared/n":
                await a.state.set("n", 0)
            return row

        monkeypatch.setattr(a.store, "state", overtaken)
        with pytest.raises(StateContention, match=r"state shared/n was changed by other processes 100 times"):
            await a.state.patch("n", lambda _n: 1)


async def test_locks_of_unused_keys_are_removed(memory: Any) -> None:
    async with memory(last) as a:
        for n in range(10):
            await a.state.patch(f"k{n}", lambda _n: 1)
        assert not list(state._locks_by_store[a.store])
