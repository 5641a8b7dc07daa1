"""Clients of the HTTP benchmark: HTTP over plain sockets, so that they cost little."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

HEAD = "HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@asynccontextmanager
async def subscribe(port: int, path: str) -> AsyncIterator[asyncio.StreamReader]:
    """Open an event stream and yield its reader, after the headers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    try:
        writer.write(f"GET {path} {HEAD}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head, head
        yield reader
    finally:
        writer.close()


async def read_events(reader: asyncio.StreamReader, count: int, seen: list[tuple[int, float]], cursor: str) -> str:
    """Read `count` events into `seen`, with how late they are, and return the last cursor."""
    while count > 0 and (line := await reader.readline()):
        if line.startswith(b"id: "):
            cursor = line[4:-1].decode()
        elif line.startswith(b"data: {"):
            data = json.loads(line[6:])["data"]
            seen.append((data["n"], time.time() - data["at"]))
            count -= 1
    return cursor


async def count_events(reader: asyncio.StreamReader, count: int) -> None:
    """Read `count` events without looking at them."""
    tail = b""
    while count > 0 and (part := await reader.read(2**18)):
        joined = tail + part
        count -= joined.count(b"\nid: ")
        tail = joined[-4:]  # a line may be split; four bytes hold no whole mark


async def start_runs(
    port: int, requests: int, concurrency: int, per_second: int | None = None
) -> tuple[float, list[float]]:
    """Start runs over keep-alive connections, as fast as they go or at a rate. Return the rate and the durations.

    At a rate, the duration of a request counts from the moment it is due."""
    times: list[float] = []
    left = iter(range(requests))
    body = b'{"input":{"order":7}}'
    head = f"POST /api/_flow/noop/runs {HEAD}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for n in left:
            start = time.perf_counter()
            if per_second is not None:
                await asyncio.sleep(max(0.0, began + n / per_second - start))
                start = began + n / per_second
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert b" 201 " in answer, answer
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
            times.append(time.perf_counter() - start)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return requests / (time.perf_counter() - began), times
