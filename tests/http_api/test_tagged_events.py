"""Events by tag over HTTP: pages, live streams, sockets, and the client."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from websockets.asyncio.client import connect

from http_server import Serve
from penstock import App
from penstock.app import tagged_events
from penstock.client import Client
from penstock.errors import BadArgument
from penstock.http.routes import events as routes
from penstock.testing.until import until

pytestmark = pytest.mark.spec("001-1.12")
STREAM = "nq:entity:e"


async def test_the_client_sets_tags_and_selects_by_them(serve: Serve, url: str) -> None:
    async with App(url, handlers=[]) as app, serve(app) as http, Client(str(http.base_url)) as client:
        await client.emit("price.changed", 1, tags=["eu"])
        await client.emit("price.changed", 2)
        event = await client.events.append(STREAM, "x", 1, tags=["audit", "eu"])
        assert event is not None
        assert event.meta == {"tags": ["audit", "eu"]}
        assert [one.data for one in await client.events.read("nq:global", tags=["eu"])] == [1]
        assert await client.events.read(STREAM, tags=["eu", "us"]) == []
        feed = [item async for item in client.events.feed(tags=["eu"])]
        assert [(item.stream, item.event.data) for item in feed] == [("nq:global", 1), (STREAM, 1)]
        with pytest.raises(BadArgument, match="list of words"):
            await client.emit("x", tags="eu")


async def test_live_streams_have_only_events_with_the_tags(serve: Serve, url: str) -> None:
    async with App(url, handlers=[]) as app, serve(app) as http, Client(str(http.base_url)) as client:
        await app.events.append(STREAM, "first", tags=["x"])
        seen: list[str] = []

        async def follow(events: Any) -> None:
            async with aclosing(events):
                async for event in events:
                    seen.append(getattr(event, "event", event).kind)

        reading = [
            asyncio.create_task(follow(client.events.subscribe(STREAM, tags=["x"]))),
            asyncio.create_task(follow(client.events.feed(follow=True, tags=["x"]))),
        ]
        await until(lambda: len(seen) == 2)
        await app.events.append(STREAM, "second")
        await app.events.append(STREAM, "third", tags=["x"])
        await until(lambda: len(seen) == 4)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        assert sorted(seen) == ["first", "first", "third", "third"]


async def test_a_socket_selects_by_tags(serve: Serve) -> None:
    async with App(":memory:", handlers=[]) as app, serve(app) as http:
        await app.events.append(STREAM, "first")
        await app.events.append(STREAM, "second", tags=["x"])
        address = str(http.base_url).replace("http", "ws").rstrip("/") + "/api/_events/ws"
        async with asyncio.timeout(30), connect(address) as socket:
            await socket.send(
                json.dumps({"op": "subscribe", "id": "s", "stream": STREAM, "backfill": 9, "tags": ["x"]})
            )
            while (message := json.loads(await socket.recv())).get("op", "event") not in ("event", "error"):
                pass
            assert "second" in json.dumps(message)
            await socket.send(json.dumps({"op": "subscribe", "id": "t", "stream": STREAM, "tags": [""]}))
            while (message := json.loads(await socket.recv())).get("op") != "error":
                pass
            assert "must not be empty" in json.dumps(message)


async def test_a_page_by_tags_reads_a_bounded_number_of_events(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_SCANNED", 6)
    monkeypatch.setattr(tagged_events, "PAGE_EVENTS", 3)
    async with App(":memory:", handlers=[]) as app, serve(app) as http, Client(str(http.base_url)) as client:
        for n in range(20):
            await app.events.append(STREAM, "x", n, tags=["rare"] if n in (1, 15) else None)
        first = (await http.get(f"/api/_events/{STREAM}", params={"tag": "rare"})).json()
        assert ([one["data"] for one in first["items"]], first["next"].partition("-")[2]) == ([1], "6")
        second = (await http.get(f"/api/_events/{STREAM}", params={"tag": "rare", "after": first["next"]})).json()
        assert (second["items"], second["next"].partition("-")[2]) == ([], "12")
        assert [one.data for one in await client.events.read(STREAM, tags=["rare"])] == [1, 15]
        assert [one.data for one in await client.events.read(STREAM, tags=["rare"], backward=True)] == [15, 1]
        assert [one.data for one in await client.events.read(STREAM, tags=["rare"], limit=1)] == [1]
        refused = await http.get(f"/api/_events/{STREAM}", params={"tag": ""})
        assert (refused.status_code, "must not be empty" in refused.text) == (400, True)


async def test_a_page_of_the_feed_without_items_is_not_its_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.client.events.FEED_PAGE", 2)
    async with App(":memory:", handlers=[]) as app, serve(app) as http, Client(str(http.base_url)) as client:
        for n in range(7):
            await app.events.append(STREAM, "x", n, tags=["last"] if n == 6 else None)
        assert [item.event.data async for item in client.events.feed(tags=["last"])] == [6]
        assert len([item async for item in client.events.feed()]) == 7
