"""Processes killed with SIGKILL while they upload, commit and sweep large values.

Nothing that the store refers to is ever missing, and what nothing refers to is removed by a later sweep."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest
from faultkit.backends import Backend
from faultkit.blob_process import answer, make_answer, make_chat, make_sweeper, open_app
from faultkit.config import FULL
from faultkit.fork_server import start

from penstock.core.references import REFERENCES
from penstock.ports.unit import StateWrite

pytestmark = [pytest.mark.xdist_group("faults"), pytest.mark.timeout(600)]

POINTS = ("uploading", "uploaded", "committed", "fenced", "deleted")
TIMES = (1, 2, 3, 5, 8) if FULL else (2,)
JOBS = 3


async def kill_at(app: Any, folder: Path, url: str, blobs: str, point: str, left: int, *more: str) -> None:
    """Give a process work and something to sweep, and wait until it has killed itself."""
    for n in range(JOBS):
        await app.enqueue(answer, make_chat(2 + n), key=f"{point}-{left}-{n}")
    for n in range(4):  # values that lose their owner
        await app.enqueue("nowhere", [f"{point} {left} {n}" * 5000], key=f"gone-{n}")
        await app.jobs.remove(f"gone-{n}")
    await app.store.trim("nq:queue:nowhere", keep=0)
    mark = folder / "killed"
    process = start("blob_process", url, blobs, str(mark), point, str(left), *more, has_stdout=False)
    process.stdin.close()
    await asyncio.to_thread(process.wait)
    assert mark.exists(), f"the process did not come to {point}"


async def read_names(app: Any) -> set[str]:
    """Return the names that the store refers to."""
    rows = await app.store._inner.states(REFERENCES, limit=10_000)
    return {row.key.removeprefix(REFERENCES).partition("/")[0] for row in rows}


async def find_missing(app: Any) -> list[str]:
    """Return the objects that the store refers to, and that are not there or damaged."""
    missing = []
    for name in sorted(await read_names(app)):
        reader = await app.store._objects.open(f"values/{name}")
        data = b"".join([chunk async for chunk in reader]) if reader is not None else b""
        if hashlib.sha256(data).hexdigest() != name[:64]:
            missing.append(name)
    return missing


async def list_objects(app: Any) -> set[str]:
    return {one.path.removeprefix("values/") for one in await app.store._objects.list("values/", limit=10_000)}


async def pass_fences(app: Any, sweeper: Any) -> None:
    """End the fences, as their hour does: the killed sweep had one before it deleted its object."""
    for row in await app.store._inner.states("blob/fence/", limit=100):
        await sweeper._write(StateWrite(row.key, None))


@pytest.mark.parametrize("left", TIMES)
@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_process_loses_no_value_and_leaves_no_garbage(
    shared: Backend, tmp_path: Path, point: str, left: int
) -> None:
    url, blobs = shared.url(tmp_path), f"file://{tmp_path}/blobs"
    async with open_app(url, blobs) as app:
        await kill_at(app, tmp_path, url, blobs, point, left)
        assert await find_missing(app) == []
        if point == "uploaded":  # the kill was between an upload and its commit
            assert await list_objects(app) - await read_names(app)
        async with app.workers.background():
            for n in range(JOBS):
                job = f"{point}-{left}-{n}"
                assert await app.jobs.result(job, timeout=60) == make_answer(make_chat(2 + n))
        await app.enqueue("nowhere", [f"{point} {left} 0" * 5000], key="again")  # perhaps behind a fence
        sweeper = make_sweeper(app)
        await sweeper.sweep_all()
        await pass_fences(app, sweeper)
        await sweeper.sweep_all()
        assert await find_missing(app) == []
        assert await list_objects(app) == await read_names(app)
        assert (await app.jobs.get("again")).input == [f"{point} {left} 0" * 5000]


async def test_a_kill_catches_an_upload_that_follows_its_commit(store_file: Backend, tmp_path: Path) -> None:
    """The mutant: the commit that refers to a value comes before its upload."""
    url, blobs = store_file.url(tmp_path), f"file://{tmp_path}/blobs"
    async with open_app(url, blobs) as app:
        await kill_at(app, tmp_path, url, blobs, "committed", 1, "--mutant")
        assert await find_missing(app) != []
