"""Put and get one large blob, and print by how many MB the memory of this process grew at most: `large_blob.py URL MB`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from penstock import App

MB = 2**20


async def chunks(count: int) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number % 256]) * MB


async def main(url: str, size: int) -> None:
    async with App(":memory:", handlers=(), blob_url=url) as app:
        await app.blobs.put("warm", b"x")
        await app.blobs.get("warm")
        before = peak()
        blob = await app.blobs.put("large", chunks(size))
        assert blob.size == size * MB
        read = 0
        async for chunk in app.blobs.stream("large"):
            read += len(chunk)
        assert read == size * MB
        print((peak() - before) // 1024)


def peak() -> int:
    """Return the most memory that this program has had, in KB. What getrusage returns counts the program that started it too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
