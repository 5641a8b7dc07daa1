"""The API mounted in other frameworks. The user's lifespan opens the App."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.routing import Mount

from penstock import App
from penstock.http import asgi_app

LOCAL = ("127.0.0.1", 1)


def in_fastapi(app: App) -> Any:
    application = FastAPI()
    application.mount("/ops", asgi_app(app))
    return application


def in_starlette(app: App) -> Any:
    return Starlette(routes=[Mount("/ops", asgi_app(app))])


def in_litestar(app: App) -> Any:
    return Litestar([asgi("/ops", is_mount=True, copy_scope=True)(asgi_app(app))], openapi_config=None)


def in_django(app: App) -> Any:
    import django
    from django.conf import settings
    from django.core.asgi import get_asgi_application

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="x", DATABASES={})
        django.setup()
    site = get_asgi_application()
    return Starlette(routes=[Mount("/ops", asgi_app(app)), Mount("/", site)])


urlpatterns: list[Any] = []


@pytest.mark.parametrize("mount", [in_fastapi, in_starlette, in_litestar, in_django])
async def test_a_mounted_application_serves_an_app_that_the_user_opens(mount: Callable[[App], Any]) -> None:
    app = App(":memory:", handlers=())
    application = mount(app)
    transport = httpx.ASGITransport(application, client=LOCAL)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        closed = await client.get("/ops/api/_queue")
        assert (closed.status_code, closed.json()["error"]["code"]) == (503, "server_closing")
        async with app:
            added = await client.post("/ops/api/_queue/mail/jobs", json={"input": {"to": "ada"}})
            assert added.status_code == 201, added.text
            assert (await client.get(f"/ops/api/_job/{added.json()['id']}")).json()["input"] == {"to": "ada"}
            assert (await client.get("/ops/api/nothing")).json()["error"]["code"] == "no_route"
            assert (await client.get("/ops/api/_queue", headers={"origin": "https://evil.example"})).status_code == 403
            assert (await client.get("/api/_queue")).status_code == 404
