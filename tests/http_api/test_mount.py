"""The API mounted in other frameworks, each on a real server. The user's lifespan opens the App."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.asyncio.client import connect

from http_server import run_server
from penstock import App
from penstock.http import Caller, asgi_app

SOCKET = "/ops/api/_events/ws"
STREAM = "/ops/api/_events/entity/e-1/stream"


def lifespan_of(app: App) -> Any:
    """Return what a user writes: the App is open while the site runs."""

    @asynccontextmanager
    async def lifespan(_site: Any) -> AsyncIterator[None]:
        async with app:
            yield

    return lifespan


def in_fastapi(app: App, **options: Any) -> Any:
    site = FastAPI(lifespan=lifespan_of(app))
    site.mount("/ops", asgi_app(app, **options))
    return site


def in_starlette(app: App, **options: Any) -> Any:
    return Starlette(routes=[Mount("/ops", asgi_app(app, **options))], lifespan=lifespan_of(app))


def in_litestar(app: App, **options: Any) -> Any:
    mounted = asgi("/ops", is_mount=True, copy_scope=True)(asgi_app(app, **options))
    return Litestar([mounted], openapi_config=None, lifespan=[lifespan_of(app)])


def in_django(app: App, **options: Any) -> Any:
    import django
    from django.conf import settings
    from django.core.asgi import get_asgi_application

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="x", DATABASES={})
        django.setup()
    site = get_asgi_application()
    return Starlette(routes=[Mount("/ops", asgi_app(app, **options)), Mount("/", site)], lifespan=lifespan_of(app))


urlpatterns: list[Any] = []
FRAMEWORKS = pytest.mark.parametrize("mount", [in_fastapi, in_starlette, in_litestar, in_django])


async def read_events(client: httpx.AsyncClient, count: int, **options: Any) -> list[int]:
    """Return the numbers of the next events of the stream, as they arrive."""
    found: list[int] = []
    async with asyncio.timeout(20), client.stream("GET", f"{STREAM}?after=", **options) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                found.append(json.loads(line.removeprefix("data: "))["data"]["n"])
                if len(found) == count:
                    break
    return found


@FRAMEWORKS
async def test_a_mounted_application_serves_an_app_that_the_user_opens(mount: Callable[..., Any]) -> None:
    app = App(":memory:", handlers=())
    async with run_server(mount(app)) as client:
        added = await client.post("/ops/api/_queue/mail/jobs", json={"input": {"to": "ada"}})
        assert added.status_code == 201, added.text
        assert (await client.get(f"/ops/api/_job/{added.json()['id']}")).json()["input"] == {"to": "ada"}
        assert (await client.get("/ops/api/nothing")).json()["error"]["code"] == "no_route"
        assert (await client.get("/ops/api/_queue", headers={"origin": "https://evil.example"})).status_code == 403
        assert (await client.get("/api/_queue")).status_code == 404
    assert not app._is_open  # the site's lifespan closed it


@pytest.mark.spec("000-3.39")
@FRAMEWORKS
async def test_streams_and_sockets_work_through_a_mount(mount: Callable[..., Any]) -> None:
    app = App(":memory:", handlers=())
    async with run_server(mount(app)) as client:
        await app.events.append("nq:entity:e-1", "thing.happened", {"n": 0})
        reading = asyncio.create_task(read_events(client, 3))
        for n in (1, 2):
            await app.events.append("nq:entity:e-1", "thing.happened", {"n": n})
        assert await reading == [0, 1, 2]
        address = str(client.base_url).replace("http", "ws").rstrip("/") + SOCKET
        async with asyncio.timeout(20), connect(address) as socket:
            await socket.send(json.dumps({"op": "subscribe", "id": "s", "stream": "nq:entity:e-1", "after": ""}))
            found: list[int] = []
            while len(found) < 3:
                message = json.loads(await socket.recv())
                found += [message["record"]["data"]["n"]] if "record" in message else []
            assert found == [0, 1, 2]


@pytest.mark.spec("000-3.39", "000-9.5")
@FRAMEWORKS
async def test_the_sessions_of_the_site_are_enough(mount: Callable[..., Any]) -> None:
    async def authenticate(connection: Any) -> Caller | None:
        name = connection.cookies.get("user")
        return Caller(name, "viewer") if name else None

    app = App(":memory:", handlers=())
    async with run_server(mount(app, authenticate=authenticate)) as client:
        await app.events.append("nq:entity:e-1", "thing.happened", {"n": 0})
        session = {"cookie": "user=ada"}
        assert (await client.get("/ops/api/_session")).status_code == 401
        assert (await client.get("/ops/api/_session", headers=session)).json()["name"] == "ada"
        assert (await client.post("/ops/api/_queue/mail/pause", headers=session)).status_code == 403
        assert await read_events(client, 1, headers=session) == [0]
        address = str(client.base_url).replace("http", "ws").rstrip("/") + SOCKET
        with pytest.raises(Exception, match=r"401|403"):
            async with connect(address):
                pass
        async with asyncio.timeout(20), connect(address, additional_headers=session) as socket:
            await socket.send('{"op": "call", "id": "c", "method": "POST", "path": "/api/_queue/mail/pause"}')
            assert json.loads(await socket.recv())["status"] == 403


async def test_an_app_that_is_not_open_is_an_answer() -> None:
    transport = httpx.ASGITransport(in_starlette(App(":memory:", handlers=())), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:  # no lifespan runs here
        closed = await client.get("/ops/api/_queue")
    assert (closed.status_code, closed.json()["error"]["code"]) == (503, "server_closing")
