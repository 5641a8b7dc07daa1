"""The start of a stream: a client that is cut off before its first event misses none, whatever it connected to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from http_server import Serve
from penstock import App
from penstock.client import Client

STREAM = "nq:entity:e-1"
LINES = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1eh\r\ni"


async def read_frame(lines: AsyncIterator[str]) -> dict[str, str]:
    """Return the next message as a browser reads it."""
    found: dict[str, str] = {}
    async for line in lines:
        if line == "" and "data" in found:
            return found
        key, _, value = line.partition(": ")
        found[key] = value
    raise EOFError


@pytest.mark.parametrize("path", ["/api/_events/entity/e-1/stream?backfill=3", "/api/_events/stream"])
async def test_a_browser_that_connects_before_the_first_event_misses_none(serve: Serve, url: str, path: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as client, asyncio.timeout(20):
        async with client.stream("GET", path) as response:
            last_id = (await read_frame(response.aiter_lines()))["id"]
        for n in range(5):
            await app.events.append(STREAM, "thing.happened", {"n": n})
        # A browser sends the header only if the last id is not empty.
        headers = {"last-event-id": last_id} if last_id else {}
        async with client.stream("GET", path, headers=headers) as response:
            lines = response.aiter_lines()
            found = [await read_frame(lines)]
            while len(found) < 6:
                found.append(await read_frame(lines))
    assert [f'"n":{n}' in frame["data"] for n, frame in enumerate(found[1:])] == [True] * 5


async def test_the_client_reads_text_with_every_kind_of_line_end(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as http, Client(str(http.base_url)) as client:
        await app.events.append(STREAM, "thing.happened", {"text": LINES})
        async with asyncio.timeout(20), aclosing(client.events.subscribe(STREAM)) as events:
            assert (await anext(events)).data == {"text": LINES}
