"""The garbage collector runs less often while a worker runs, and as before afterwards."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from penstock import App, job
from penstock.commit.committer import MANY_PENDING
from penstock.core.gc_tuning import GC_THRESHOLD_OBJECTS, NEVER, reduce_collections
from penstock.testing import until


@pytest.fixture(autouse=True)
def pythons_own() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


async def test_a_running_worker_raises_the_gc_threshold() -> None:
    seen: list[tuple[int, int, int]] = []

    @job(queue="look")
    async def look(_: None) -> None:
        seen.append(gc.get_threshold())

    async with App(url="sqlite:///:memory:", handlers=[look]) as app, app.workers.background():
        await app.jobs.result(await app.enqueue("look"), timeout=20)
    assert seen == [(GC_THRESHOLD_OBJECTS, 10, 10)]
    assert gc.get_threshold() == (700, 10, 10)


async def test_many_waiting_commands_raise_the_gc_threshold() -> None:
    """They are no garbage: with `gather`, the collector looked at all of them again and again."""
    async with App(url="sqlite:///:memory:") as app:
        commit, seen = app.store.commit, set()

        async def look(units: Any, request: Any = None) -> Any:
            seen.add(gc.get_threshold()[:2])
            return await commit(units, request)

        app.store.commit = look  # type: ignore[method-assign]
        await asyncio.gather(*(app.enqueue("few") for _ in range(MANY_PENDING - 1)))
        assert seen == {(700, 10)}
        await asyncio.gather(*(app.enqueue("many") for _ in range(MANY_PENDING)))
        assert seen == {(700, 10), (GC_THRESHOLD_OBJECTS, NEVER)}
        await until(lambda: gc.get_threshold() == (700, 10, 10))


def test_the_last_worker_restores_the_gc_threshold() -> None:
    first, second = reduce_collections(), reduce_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (GC_THRESHOLD_OBJECTS, 10, 10)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [0, 50, 5_000, 100_000])
def test_a_custom_threshold_is_kept(chosen: int) -> None:
    gc.set_threshold(chosen, 5, 5)
    with reduce_collections():
        assert gc.get_threshold() == (chosen, 5, 5)
    assert gc.get_threshold() == (chosen, 5, 5)


def test_a_threshold_set_while_a_worker_runs_is_kept() -> None:
    with reduce_collections():
        gc.set_threshold(1_000)
    assert gc.get_threshold()[0] == 1_000


def test_older_objects_are_left_alone_only_as_long_as_asked() -> None:
    with reduce_collections():
        with reduce_collections(young_only=True):
            assert gc.get_threshold() == (GC_THRESHOLD_OBJECTS, NEVER, 10)
        assert gc.get_threshold() == (GC_THRESHOLD_OBJECTS, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)
