"""Dags over HTTP: the same calls as on App, over a real server."""

from __future__ import annotations

from typing import Any

import pytest

from http_server import Serve
from penstock import App
from penstock.client import Client
from penstock.dags import DagBuilder, Fail, node
from penstock.errors import DagInvalid, RunFailed, UnknownDag


@node("greet")
async def greet(input: Any) -> str:
    return f"Hello, {input}!"


@node("fail")
async def fail() -> Any:
    return Fail("out of stock", retry=False)


async def test_definitions_and_their_runs(serve: Serve, url: str) -> None:
    async with (
        App(url, handlers=[greet, fail]) as app,
        serve(app) as http,
        app.workers.background(),
        Client(str(http.base_url)) as client,
    ):
        greeting = DagBuilder("greeting", delay="1ms")
        greeting.add("a", "greet", timeout="5s", retry=2)
        assert (await client.dags.register(greeting.build(), notes="first")).latest == 1
        assert (await client.dags.register(await client.dags.get("greeting"))).latest == 1  # it is the same
        greeting.add("b", "greet", after="a")
        assert (await client.dags.register(greeting.build())).latest == 2
        assert await client.dags.check(greeting.build()) == []
        assert [one.id for one in await client.dags.list()] == ["greeting"]
        assert (await client.dags.describe("greeting")).versions[0].notes == "first"
        assert (await client.dags.compare("greeting", 1, 2)).added == ("b",)
        assert len((await client.dags.diagram("greeting", version=1))["nodes"]) == 1
        run = await client.dags.start("greeting", "Ada", version=1, key="r1")
        assert await client.result(run, timeout="20s") == "Hello, Ada!"
        dag, version = await client.dags.of_run("r1")
        assert (len(dag.nodes), version) == (1, 1)
        assert await client.dags.deactivate("greeting")
        assert await client.dags.activate("greeting")
        assert not await client.dags.activate("greeting")


async def test_errors_have_the_classes_of_app(serve: Serve, url: str) -> None:
    async with (
        App(url, handlers=[greet, fail]) as app,
        serve(app) as http,
        app.workers.background(),
        Client(str(http.base_url)) as client,
    ):
        with pytest.raises(UnknownDag, match="no dag named 'gone'"):
            await client.dags.get("gone")
        with pytest.raises(DagInvalid, match=r"nodes\[0\].type: no executor for 'gret'; did you mean 'greet'"):
            await client.dags.register({"id": "d", "nodes": [{"id": "a", "type": "gret"}]})
        await client.dags.register({"id": "d", "nodes": [{"id": "a", "type": "fail"}]})
        run = await client.start("d", key="r1")
        with pytest.raises(RunFailed):
            await client.result(run, timeout="20s")
        assert list(await client.dags.retry("r1", node="a")) == ["r1.a.2"]
