"""Handlers that wait for a file, so that a test can look at them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from penstock import Context, SyncContext, job


@job(queue="looks-async")
async def looks_async(input: Any, ctx: Context) -> str:
    ctx.log("on the loop")
    return await wait_on_loop(input)


async def wait_on_loop(input: Any) -> str:
    while not Path(input["gate"]).exists():
        await asyncio.sleep(0.01)
    return "async"


@job(queue="looks-thread")
def looks_thread(input: Any, ctx: SyncContext) -> str:
    ctx.log("on a thread")
    return wait_here(input)


@job(queue="looks-process", runner="process")
def looks_process(input: Any) -> str:
    print("in a child", flush=True)
    return wait_here(input)


@job(queue="looks-process-async", runner="process")
async def looks_process_async(input: Any, ctx: Context) -> str:
    ctx.log("in a child, on its loop")
    return await wait_on_loop(input)


def wait_here(input: Any) -> str:
    while not Path(input["gate"]).exists():
        time.sleep(0.01)
    return "here"


@job(queue="streams", retry={"attempts": 2, "backoff": {"type": "fixed", "delayMs": 1}})
async def streams(input: Any, ctx: Context) -> Any:
    ctx.log("working", n=input["n"])
    ctx.progress(50)
    ctx.partial("half")
    if input["n"] == 13 and ctx.attempt == 1:
        raise ValueError("unlucky")
    if input["n"] == 0:
        raise ZeroDivisionError("nothing to divide")
    return input["n"] * 2


HANDLERS = [looks_async, looks_thread, looks_process, looks_process_async, streams]
