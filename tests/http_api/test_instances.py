"""Several servers on one store: a client of any of them gets what every process writes."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from websockets.asyncio.client import connect

from http_server import Serve
from penstock import App
from penstock.http import shared_reader
from penstock.testing.until import until

STREAM = "nq:entity:e-1"
TOTAL = 20


async def read_sse(client: httpx.AsyncClient, path: str) -> list[int]:
    """Return the numbers of all events, as server-sent events."""
    found: list[int] = []
    async with client.stream("GET", path) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                found.append(event.get("record", event)["data"]["n"])
                if len(found) == TOTAL:
                    break
    return found


async def read_socket(client: httpx.AsyncClient) -> list[int]:
    """Return the numbers of all events, from a WebSocket."""
    address = str(client.base_url).replace("http", "ws").rstrip("/")
    found: list[int] = []
    async with connect(f"{address}/api/_events/ws") as socket:
        await socket.send(json.dumps({"op": "subscribe", "id": "s", "stream": STREAM, "after": ""}))
        while len(found) < TOTAL:
            message = json.loads(await socket.recv())
            found += [message["record"]["data"]["n"]] if "record" in message else []
    return found


@pytest.mark.spec("000-3.35", "001-3.2", "003-4.4", "003-12.5")
async def test_clients_of_every_instance_get_every_event(
    serve: Serve, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wake-ups alone bring the events: readers that poll would come an hour later."""
    monkeypatch.setattr(shared_reader, "POLL_INTERVAL_S", 3600.0)
    async with (
        App(shared_url, handlers=()) as one,
        App(shared_url, handlers=()) as two,
        serve(one) as first,
        serve(two) as second,
        asyncio.timeout(60),
    ):
        reading = [
            asyncio.create_task(read(client))
            for client in (first, second)
            for read in (
                lambda client: read_sse(client, "/api/_events/entity/e-1/stream?after="),
                lambda client: read_sse(client, "/api/_events/stream?after=&kind=thing.happened"),
                read_socket,
            )
        ]
        for client in (first, second):  # all of them wait for live events
            await until(lambda client=client: client.services.readers.clients == 3)  # type: ignore[misc]
        for n in range(TOTAL):
            await (one, two)[n % 2].events.append(STREAM, "thing.happened", {"n": n})
        for found in await asyncio.gather(*reading):
            assert found == list(range(TOTAL))
