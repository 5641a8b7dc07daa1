"""What a large value costs: a flow of one step whose input and result are one text, with and without a blob store.

python benchmarks/large_values.py [SECONDS]
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock import App, flow

SIZES = {
    "1 KB": 1_000,
    "30 KB, in the store": 30_000,
    "60 KB, in the store": 60_000,
    "60 KB": 60_000,
    "1 MB": 1_000_000,
}
CONCURRENCY = 10


@flow("echo")
async def echo(text: str) -> str:
    return text


async def measure(seconds: float, text: Any, folder: Path, **options: Any) -> float:
    """Return runs per second."""
    async with App(f"sqlite:///{folder}/store.db", handlers=[echo], **options) as app, app.workers.background():
        done, end = 0, time.perf_counter() + seconds

        async def work(number: int) -> None:
            nonlocal done
            while time.perf_counter() < end:
                # A text of its own for each run: an equal one would be uploaded once.
                mine = f"{number}-{done}{text}"
                assert await app.result(await app.start(echo, mine)) == mine
                done += 1

        began = time.perf_counter()
        await asyncio.gather(*map(work, range(CONCURRENCY)))
        return done / (time.perf_counter() - began)


async def main(seconds: float) -> None:
    for name, size in SIZES.items():
        for place in ("no blob store", "memory:", "file"):
            if place == "no blob store" and size > 65_000:
                continue
            with tempfile.TemporaryDirectory() as root:
                url = {"blob_url": place if place == "memory:" else f"file:{root}/blobs"}
                options: dict[str, Any] = {} if place == "no blob store" else url
                if "in the store" in name and options:
                    options["blob_threshold"] = 65_000
                rate = await measure(seconds, os.urandom(size // 2).hex(), Path(root), **options)
            print(f"{name:>20}  {place:14} {rate:8.1f} runs/s", flush=True)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 3))
