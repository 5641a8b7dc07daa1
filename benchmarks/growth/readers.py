"""Readers of streams: many of one stream, and many of streams of their own."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from penstock import App

from .reading import Meter

EVENTS, PAUSE_S = 40, 0.05
WRITER = """
import asyncio, sys, time
from penstock import App
async def main(url, readers, events, pause):
    async with App(url) as app:
        for n in range(events):
            await app.events.append(f"nq:entity:s{n % readers}", "ticked", {"at": time.time()})
            await asyncio.sleep(pause)
asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
"""


async def _follow(app: App, stream: str, took: list[float], started: asyncio.Semaphore) -> None:
    events = app.events.subscribe(stream)
    started.release()
    async for event in events:
        took.append((time.time() - event.data["at"]) * 1e6)


async def _measure(meter: Meter, url: str, size: int, streams: int) -> None:
    """Another process writes an event every 50 ms, to one stream after the other."""
    took: list[float] = []
    async with App(url) as app:
        started = asyncio.Semaphore(0)
        tasks: list[asyncio.Task[Any]] = [
            asyncio.create_task(_follow(app, f"nq:entity:s{n % streams}", took, started)) for n in range(size)
        ]
        await asyncio.sleep(2)
        command = [sys.executable, "-c", WRITER, url, str(streams), str(EVENTS), str(PAUSE_S)]
        began, cpu = time.perf_counter(), time.process_time()
        writer = await asyncio.create_subprocess_exec(*command, env=os.environ, stderr=subprocess.PIPE)
        await writer.wait()
        await asyncio.sleep(1)
        busy = (time.process_time() - cpu) / (time.perf_counter() - began)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        expected = EVENTS * (size if streams == 1 else 1)
        assert len(took) == expected, (len(took), expected)
        meter.found = {"time": statistics.median(took), "CPU": busy * 1e6}


async def readers_one(meter: Meter, url: str, size: int) -> None:
    """Readers of one stream: from the write to a reader, in microseconds; CPU of a core, in millionths."""
    await _measure(meter, url, size, 1)


async def readers_own(meter: Meter, url: str, size: int) -> None:
    """Readers of a stream each."""
    await _measure(meter, url, size, size)
