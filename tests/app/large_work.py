"""A process with a lot of work of one kind: prints its peak memory, its time and the longest stop of its event loop."""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock import App, Context, flow, job
from penstock.app.export import export_run
from penstock.app.run_import import import_runs
from penstock.ports.store import Retention
from penstock.ports.unit import StateWrite, Unit

PAGE = 500


@flow("large")
async def large(input: int, ctx: Context) -> None:
    for n in range(input):
        ctx.emit("part.made", {"n": n})


@job(queue="small")
async def small(input: int, ctx: Context) -> None:
    pass


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@asynccontextmanager
async def watched_loop(stops: list[float]) -> AsyncIterator[None]:
    """Measure the longest time in which no other task could run."""

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            stops.append(time.perf_counter() - before)

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()


async def fill_state(app: App, run: str, count: int) -> None:
    for start in range(0, count, 10 * PAGE):
        keys = range(start, min(start + 10 * PAGE, count))
        writes = [StateWrite(f"run/{run}/key-{n:09}", b'{"n":%d}' % n) for n in keys]
        await app.store.commit([Unit(f"fill-{start}", state=writes)])


async def enqueue_many(app: App, count: int) -> None:
    ids = await app.jobs.enqueue_many("small", range(count))
    assert len(set(ids)) == count


async def fan_out(app: App, count: int) -> str:
    async with app.workers.background():
        run = await app.start("large", count)
        await app.runs.wait(run, timeout="10m")
    return str((await app.runs.get(run)).status)


async def list_state(app: App, run: str) -> int:
    total, page = 0, await app.state.of_run(run).list(limit=PAGE)
    while True:
        total += len(page)
        if page.next is None:
            return total
        page = await app.state.of_run(run).list(after=page.next, limit=PAGE)


async def write_export(app: App, count: int) -> Path:
    """Write an export of runs of one MB each, in little memory."""
    async with app.workers.background():
        run = await app.start("large", 1, key="full")
        await app.runs.wait(run, timeout="1m")
    writes = [StateWrite(f"run/{run}/key-{n}", b'"%b"' % (b"x" * 50_000)) for n in range(20)]
    await app.store.commit([Unit("fill", state=writes)])
    line = await export_run(app, run)
    path = Path(tempfile.mkdtemp()) / "runs.jsonl"
    with path.open("wb") as file:
        for n in range(count):
            file.write(line.replace(b"full", b"copy-%d" % n) + b"\n")
    return path


async def main(what: str, count: int, url: str) -> None:
    stops: list[float] = []
    found: dict[str, object] = {}
    async with App(url, handlers=[large, small]) as app:
        if what in ("list", "export", "import", "sweep"):
            async with app.workers.background():
                run = await app.start("large", 1, key="full")
                await app.runs.wait(run, timeout="1m")
            await fill_state(app, run, count)
        line = await export_run(app, run) if what == "import" else b""
        if what == "import":
            line = line.replace(b"full", b"copy")
        path = await write_export(app, count) if what == "import_file" else None
        before, started = peak_mb(), time.perf_counter()
        async with watched_loop(stops):
            if what == "enqueue_many":
                await enqueue_many(app, count)
            elif what == "fan_out":
                found["status"] = await fan_out(app, count)
            elif what == "list":
                assert await list_state(app, run) == count
            elif what == "export":
                found["bytes"] = len(await export_run(app, run))
            elif what == "import":
                await import_runs(app, line)
            elif path is not None:
                assert len(await import_runs(app, path)) == count
                shutil.rmtree(path.parent)
            elif what == "sweep":
                while any((await app.store.sweep(Retention(runs_before=2**52))).values()):
                    await asyncio.sleep(0)
                assert await list_state(app, run) == 0
        took = time.perf_counter() - started
    found |= {"peak_mb": round(peak_mb(), 1), "before_mb": round(before, 1), "seconds": round(took, 2)}
    print(json.dumps(found | {"longest_stop_ms": round(max(stops, default=0) * 1000)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
