"""The handlers that `python -m benchmarks.runners` measures."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from penstock import job


@job(queue="loop")
async def on_loop(input: object) -> object:
    return input


@job(queue="thread")
def on_thread(input: object) -> object:
    return input


@job(queue="process", runner="process")
async def in_process(input: object) -> object:
    return input


@job(queue="compute", runner="process")
def compute(n: int) -> int:
    return sum(i % 7 for i in range(n))


def stopped(file: str) -> None:
    Path(file).write_text(str(time.time()))


@job(queue="stop-loop")
async def stop_loop(file: str) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        stopped(file)


@job(queue="stop-thread")
def stop_thread(file: str) -> None:
    try:
        while True:
            time.sleep(0.01)
    finally:
        stopped(file)


@job(queue="stop-process", runner="process")
def stop_process(file: str) -> None:
    try:
        time.sleep(60)
    finally:
        stopped(file)
