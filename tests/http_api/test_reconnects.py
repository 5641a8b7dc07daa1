"""Clients of a socket and of the feed that disconnect at random: nothing is missing, repeated or out of order."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from http_server import Serve
from penstock import App, Context, flow
from penstock.http import shared_reader

STREAMS = ("nq:entity:e-0", "nq:entity:e-1", "nq:entity:e-2")
TOTAL = 120


async def write(app: App) -> None:
    rng = random.Random(7)
    for n in range(TOTAL):
        await app.events.append(rng.choice(STREAMS), "thing.happened", {"n": n})


async def read_socket(client: httpx.AsyncClient, cursor: str, want: int, stream: str | None) -> tuple[list[int], str]:
    """Subscribe after a cursor, read some events and leave without a word."""
    address = str(client.base_url).replace("http", "ws").rstrip("/")
    found: list[int] = []
    async with connect(f"{address}/api/_events/ws") as socket:
        message = {"op": "subscribe", "id": "s", "after": cursor, "kinds": ["thing.happened"]}
        await socket.send(json.dumps(message | ({"stream": stream} if stream else {})))
        while len(found) < want:
            got = json.loads(await socket.recv())
            if "record" in got:
                found.append(got["record"]["data"]["n"])
            cursor = got.get("cursor", cursor)
        socket.transport.abort()
    return found, cursor


async def read_feed(client: httpx.AsyncClient, cursor: str, want: int, _stream: str | None) -> tuple[list[int], str]:
    """Follow the feed by server-sent events after a cursor."""
    found: list[int] = []
    headers = {"last-event-id": cursor} if cursor else {}
    path = "/api/_events/stream?kind=thing.happened" + ("" if cursor else "&after=")
    async with client.stream("GET", path, headers=headers) as response:
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                cursor = line[4:]
            elif line.startswith("data: {"):
                found.append(json.loads(line[6:])["record"]["data"]["n"])
                if len(found) == want:
                    break
    return found, cursor


@pytest.mark.parametrize(
    ("read", "stream"),
    [(read_socket, None), (read_socket, "nq:entity:all"), (read_feed, None)],
    ids=["socket-feed", "socket-stream", "sse-feed"],
)
async def test_clients_that_disconnect_miss_and_repeat_nothing(
    serve: Serve, url: str, monkeypatch: pytest.MonkeyPatch, read: Any, stream: str | None
) -> None:
    monkeypatch.setattr(shared_reader, "KEEP_EVENTS", 20)  # most clients fall behind what is kept
    async with App(url, handlers=()) as app, serve(app) as client, asyncio.timeout(100):

        async def follow(seed: int) -> list[int]:
            mine, cursor, found = random.Random(seed), "", list[int]()
            while len(found) < TOTAL:
                want = min(mine.randint(1, 40), TOTAL - len(found))
                more, cursor = await read(client, cursor, want, stream)
                found += more
            return found

        clients = [asyncio.create_task(follow(seed)) for seed in range(5)]
        if stream is None:
            await write(app)
        else:
            for n in range(TOTAL):
                await app.events.append(stream, "thing.happened", {"n": n})
        for found in await asyncio.gather(*clients):
            assert found == list(range(TOTAL))


@flow("order")
async def order(_input: Any, ctx: Context) -> None:
    waiting = await ctx.wait.trigger("approval")
    await waiting.wait()


@flow("refund")
async def refund(_input: Any) -> None: ...


@pytest.mark.parametrize("wanted", ["order", "o-1"])
async def test_a_filter_by_flow_takes_names_and_runs(serve: Serve, url: str, wanted: str) -> None:
    async with App(url, handlers=[order, refund]) as app, serve(app) as client, asyncio.timeout(30):
        await app.start(refund, key="f-1")
        await app.start(order, key="o-1")
        await app.start(refund, key="f-2")
        async with client.stream("GET", f"/api/_events/stream?after=&flow={wanted}&kind=flow.started") as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    assert json.loads(line[6:])["stream"] == "nq:flow:o-1"
                    break
        address = str(client.base_url).replace("http", "ws").rstrip("/")
        async with connect(f"{address}/api/_events/ws") as socket:
            await socket.send(json.dumps({"op": "subscribe", "id": "s", "after": "", "flows": [wanted]}))
            while "record" not in (message := json.loads(await socket.recv())):
                pass
            assert message["stream"] == "nq:flow:o-1"


async def test_the_snapshot_of_a_trigger_comes_first(serve: Serve, url: str) -> None:
    async with App(url, handlers=[order]) as app, serve(app) as client, app.workers.background(), asyncio.timeout(30):
        await app.start(order, key="o-1")
        while not (pending := await app.waits.list()):
            await asyncio.sleep(0.01)
        path = f"/api/_events/trigger/{pending[0].id}/stream?snapshot=true"
        async with client.stream("GET", path) as response:
            assert response.status_code == 200, await response.aread()
            lines: list[str] = []
            async for line in response.aiter_lines():
                lines.append(line)
                if line.startswith("data: {"):
                    break
        assert "event: snapshot" in lines
        assert json.loads(lines[-1][6:])["status"] == "registered"
        refused = await client.get("/api/_events/queue/mail/stream?snapshot=true")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_request")


async def test_streams_are_listed_by_kind_in_full_pages(serve: Serve) -> None:
    async with App(":memory:", handlers=[order]) as app, serve(app) as client:
        for n in range(5):
            await app.start(order, key=f"o-{n}")
        ids, before = [], ""
        while True:
            page = (await client.get(f"/api/_events/flow/list?limit=2{before}")).json()
            ids += [one["id"] for one in page["items"]]
            if page["next"] is None:
                break
            before = f"&before={page['next']}"
        assert sorted(ids) == [f"o-{n}" for n in range(5)]


async def test_callers_do_not_see_where_the_store_is(serve: Serve, url: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as client:
        error = (await client.get("/api/_run/none")).json()["error"]
        assert error["message"] == "no run with id 'none'; check the id and the URL"
        assert (await client.get("/api/nothing")).json()["error"]["hint"] == "GET /api/openapi.json lists every path"
