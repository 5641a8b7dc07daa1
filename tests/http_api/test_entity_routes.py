"""Entities over HTTP: the same calls as on App, over a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from http_server import Serve
from penstock import App
from penstock.client import Client, SyncClient
from penstock.entities import States, Transition, entity
from penstock.errors import EntityRefused, SchemaViolation, UnknownEntity


def add(data: dict[str, Any], payload: int) -> None:
    data["sum"] = data.get("sum", 0) + payload


@entity("tally")
class Tally:
    events = {"add": int}
    states = States("open", idles=["open"], finals=["done"])
    transitions = [Transition("add", "open", "open", actions=[add]), Transition("finish", "open", "done")]


async def test_entities_over_http(serve: Serve, url: str) -> None:
    async with (
        App(url, handlers=[Tally]) as app,
        serve(app) as http,
        app.workers.background(),
        Client(str(http.base_url)) as client,
    ):
        first = await client.entities.emit("urn:tally:a b/1", "add", 3, key="k")
        assert (first.n, first.is_new) == (1, True)
        assert (await client.entities.result(first, timeout="20s")).to == "open"
        assert (await first.result(timeout="20s")).to == "open"

        def emit_and_wait() -> str | None:
            with SyncClient(str(http.base_url)) as sync:
                return sync.entities.emit("urn:tally:sync", "finish").result(timeout="20s").to

        assert await asyncio.to_thread(emit_and_wait) == "done"
        again = await client.entities.emit("urn:tally:a b/1", "add", 3, key="k")
        assert not again.is_new
        assert (await client.entities.result(again, timeout="20s")).n == 1
        view = await client.entities.get("urn:tally:a b/1")
        assert (view.urn, view.data, view.status) == ("urn:tally:a b/1", {"sum": 3}, "open")
        assert (await client.entities.get(view.id, at=view.last_event)).data == {"sum": 3}
        assert await client.entities.create("tally-2", {"sum": 1})
        assert not await client.entities.create("tally-2", {"sum": 1})
        assert [one.urn for one in await client.entities.list(type="tally")] == [
            "tally-2",
            "urn:tally:sync",
            "urn:tally:a b/1",
        ]
        assert await client.entities.counts("tally") == {"open": 2, "done": 1}
        assert [one.name for one in await client.entities.types()] == ["tally"]
        assert "[*] --> s0" in str(await client.entities.diagram("tally", urn="tally-2"))
        assert str(await client.entities.diagram("tally", format="svg")).startswith("<svg")
        await client.entities.emit("tally-2", "finish")
        assert (await client.entities.wait_for("tally-2", ["done"], timeout="20s")).status == "done"
        assert [one.event for one in await client.entities.history("tally-2")] == ["finish"]
        assert await client.entities.pause("urn:tally:a b/1", reason="x")
        assert await client.entities.resume("urn:tally:a b/1")
        late = await client.entities.emit("tally-2", "add", 1)
        with pytest.raises(EntityRefused, match="final"):
            await client.entities.result(late, timeout="20s")
        with pytest.raises(SchemaViolation):
            await client.entities.emit("tally-3", "add", "much")
        with pytest.raises(UnknownEntity):
            await client.entities.get("tally-3")
