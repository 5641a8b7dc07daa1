"""A worker with children, to be killed: `python killed_worker.py URL [no-guard]`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from penstock import App, SyncContext, flow, job, step
from penstock.runners.guard import Guard


def mark(input: Any, line: str) -> None:
    with Path(input["trace"]).open("a") as file:
        file.write(f"{line}\n")


@flow("chain", runner="process", emits=["chain.next"], retry=5)
def chain(input: Any, ctx: SyncContext) -> int:
    mark(input, f"pid {os.getpid()}")
    if input["n"] % 3 == 0:  # a process of its own that outlives its parent
        forked = subprocess.Popen(["sleep", "600"])
        mark(input, f"pid {forked.pid}")
    ctx.run("charge", lambda: mark(input, f"charge {input['n']}"))
    time.sleep(0.01)
    ctx.emit("chain.next", input)
    return int(input["n"])


@step(flow="chain", on="chain.next", runner="process", emits=[], retry=5)
async def end(input: Any) -> int:
    mark(input, f"pid {os.getpid()}")
    await asyncio.sleep(0.01)
    return int(input["n"])


@job(queue="blocks", runner="process", retry=5)
def blocks(input: Any) -> None:
    mark(input, f"pid {os.getpid()}")
    import ctypes

    ctypes.PyDLL(None).sleep(600)  # keeps the interpreter's lock: only the system can end it


HANDLERS = [chain, end, blocks]


async def main(url: str) -> None:
    options = {"concurrency": 2, "lease": "1s", "max_crashes": 10_000, "process_pool": 2, "process_grace": "200ms"}
    async with App(url, handlers=HANDLERS, **options) as app:  # type: ignore[arg-type]
        print("ready", flush=True)
        await app.workers.run()


if __name__ == "__main__":
    if "no-guard" in sys.argv:  # a mutant: nobody kills what the children have started
        Guard.add = lambda *_: None  # type: ignore[method-assign]
    asyncio.run(main(sys.argv[1]))
