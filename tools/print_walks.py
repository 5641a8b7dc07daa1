"""Print the three walks of docs/architecture.md: the files that a start, a plain job and an event pass.

    python tools/print_walks.py

Each story runs for real, on a store in memory, with a worker in this process. A profiler notes every file of
src/penstock in which a function is called, in the order of the first call. Importing a module does not count.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import penstock
from penstock import App, Context, flow, job, step
from penstock.testing import until

PACKAGE = Path(penstock.__file__).parent


@flow("order", emits=["order.accepted"])
async def accept(order: dict[str, Any], ctx: Context) -> None:
    """Accept an order."""
    ctx.emit("order.accepted", order)


@step(on="order.accepted")
async def ship(order: dict[str, Any], ctx: Context) -> str:
    """Ship an order when it is paid."""
    await ctx.wait.event("order.paid", match={"id": order["id"]})
    return "shipped"


@job(queue="mail")
async def send(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


class Trace:
    """Notes the files of the package that are entered while it is on, in order, in every thread."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self._is_on = False
        self._prefix = str(PACKAGE) + "/"

    def install(self) -> None:
        """Install the profiler here and in every thread that starts later."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    @staticmethod
    def remove() -> None:
        """Remove the profiler."""
        threading.setprofile(None)
        sys.setprofile(None)

    @contextmanager
    def on(self) -> Iterator[list[str]]:
        """Note files while the block runs."""
        self.files = []
        self._is_on = True
        try:
            yield self.files
        finally:
            self._is_on = False

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._is_on or event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(self._prefix) or not code.co_flags & inspect.CO_OPTIMIZED:
            return  # another package, or the body of a module or class while it is imported
        file = code.co_filename.removeprefix(self._prefix)
        if file not in self.files:
            self.files.append(file)


@asynccontextmanager
async def open_app(trace: Trace, *, worker: bool) -> AsyncIterator[App]:
    """Open an App in memory, with or without a worker."""
    trace.install()
    try:
        async with App(":memory:", handlers=[accept, ship, send]) as app:
            if worker:
                async with app.workers.background():
                    yield app
            else:
                yield app
    finally:
        trace.remove()


async def walk_start() -> list[str]:
    """Walk through `app.start`: from the call to the run's id."""
    trace = Trace()
    async with open_app(trace, worker=False) as app:
        await app.start("order", {"id": 1})  # a first call imports modules
        with trace.on() as files:
            await app.start("order", {"id": 2})
    return files


async def walk_job() -> list[str]:
    """Walk through a plain job: from `app.enqueue` to the recorded result."""
    trace = Trace()
    async with open_app(trace, worker=True) as app:
        await app.jobs.result(await app.enqueue(send, "ada"))
        await idle()
        with trace.on() as files:
            id = await app.enqueue(send, "eve")
            await app.jobs.result(id)
    return files


async def walk_event() -> list[str]:
    """Walk through an event that wakes a run: from `app.emit` to the end of the run that waited for it."""
    trace = Trace()
    async with open_app(trace, worker=True) as app:
        for order in (1, 2):
            run = await app.start("order", {"id": order})
            await until(lambda: app.waits.list(run=run))  # noqa: B023
            await idle()
            with trace.on() as files:
                await app.emit("order.paid", {"id": order})
                await app.result(run)
    return files


async def idle() -> None:
    """Let the worker finish what it does after a commit."""
    await asyncio.sleep(0.2)


WALKS: dict[str, Callable[[], Coroutine[Any, Any, list[str]]]] = {
    "A start": walk_start,
    "A plain job": walk_job,
    "An event that wakes a run": walk_event,
}


def walk(name: str) -> list[str]:
    """Run a story three times and return its shortest walk: a timer of the worker may fire in one of them."""
    return min((asyncio.run(WALKS[name]()) for _ in range(3)), key=len)


def print_walks() -> None:
    """Print each walk with the number of its files."""
    for name in WALKS:
        files = walk(name)
        print(f"{name}: {len(files)} files")
        for file in files:
            print(f"  {file}")


if __name__ == "__main__":
    print_walks()
