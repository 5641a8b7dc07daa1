"""A real server on a free port of this machine, in the event loop of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx

from penstock import App
from penstock.http import asgi_app
from penstock.http.server import Server, bind

Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@asynccontextmanager
async def serve_app(app: App, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an open App and yield a client of it."""
    application = asgi_app(app, **options)
    async with run_server(application) as client:
        client.services = getattr(application, "_source", None)  # type: ignore[attr-defined]
        yield client


@asynccontextmanager
async def run_server(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an ASGI application, its lifespan included, and yield a client of it."""
    listener = bind("127.0.0.1", 0)
    server = Server(application, listener)
    ready = asyncio.Event()
    serving = asyncio.create_task(server.run(ready.set))
    await ready.wait()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=address, timeout=20) as client:
            yield client
    finally:
        server.stop()
        await serving
