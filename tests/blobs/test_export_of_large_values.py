"""Runs with large values move between stores: the file has the values, and the other store puts them into its own blob
store."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock import flow, step
from penstock.blobs.memory import MemoryObjects
from penstock.core.references import MARK

BIG = "é" * 100_000


@flow("moves", emits=["half"])
async def moves(text: str, ctx: Any) -> None:
    read = await ctx.run("read", lambda: text + "!")
    ctx.emit("half", read)


@step(on="half")
async def rest(text: str, ctx: Any) -> Any:
    await ctx.run("before", lambda: text + "?")
    event = await ctx.wait.event("go")
    return [text == BIG + "!", event.data]


async def export(a: Any) -> tuple[str, bytes]:
    async with a.workers.background():
        run = await a.start(moves, BIG)
        await a.wait_for_step(run, "rest", "suspended")
    return run, await a.runs.export(run)


async def finish(b: Any, run: str, line: bytes) -> None:
    """Import the run and let it go on."""
    assert list(await b.runs.import_(line)) == [run]
    await b.workers.run_until_idle()  # the step looks at its wait again
    await b.emit("go", "on")
    async with b.workers.background():
        assert await b.result(run, timeout=20) == [True, "on"]
    assert (await b.runs.get(run)).input == BIG


async def test_a_run_that_waits_goes_on_in_another_store(
    memory: Callable[..., Any], shared: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.stores.offload.store.UPLOAD_WAIT_S", 0.001)  # an upload takes longer than a commit
    objects = MemoryObjects()
    async with memory(moves, rest, blobs=MemoryObjects()) as a:
        run, line = await export(a)
    assert MARK not in line
    assert BIG in json.dumps(json.loads(line), ensure_ascii=False)
    async with shared(moves, rest, blobs=objects) as b:
        await finish(b, run, line)
        stored = await b.store._inner.read(f"nq:flow:{run}")
        assert all(len(str(event.data)) < 60_000 for event in stored), "the events have references"
        assert (await b._value_sweeper.sweep_all())["references"] == 0
        b.store._values._cache.clear()
        assert (await b.runs.get(run)).input == BIG


async def test_a_store_without_blob_store_keeps_the_values_itself(
    memory: Callable[..., Any], shared: Callable[..., Any]
) -> None:
    async with memory(moves, rest, blobs=MemoryObjects()) as a:
        run, line = await export(a)
    async with shared(moves, rest) as b:
        await finish(b, run, line)
