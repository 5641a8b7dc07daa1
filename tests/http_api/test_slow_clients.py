"""Clients that do not read: bounded, disconnected with a reason, and able to continue."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from http_server import Serve
from penstock import App
from penstock.http import asgi_app, protocol, sockets, sse
from penstock.settings import Settings
from penstock.testing.until import until

STREAM = "nq:entity:e-1"
PATH = "/api/_events/entity/e-1/stream"
EVENTS = 120
LARGE = "x" * 60_000


async def fill(app: App) -> None:
    for n in range(EVENTS):
        await app.events.append(STREAM, "thing.happened", {"n": n, "text": LARGE})


async def open_slowly(client: httpx.AsyncClient) -> socket.socket:
    """Connect a socket with a small buffer: what is not read stays with the server."""
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(slow, (client.base_url.host, client.base_url.port))
    return slow


async def connect_slowly(client: httpx.AsyncClient) -> socket.socket:
    """Ask for the stream, and do not read."""
    slow, loop = await open_slowly(client), asyncio.get_running_loop()
    await loop.sock_sendall(slow, f"GET {PATH}?after= HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return slow


async def read_all(slow: socket.socket) -> bytes:
    parts: list[bytes] = []
    while part := await asyncio.get_running_loop().sock_recv(slow, 2**20):
        parts.append(part)
    return b"".join(parts)


def has_clients(client: httpx.AsyncClient, count: int) -> Callable[[], bool]:
    return lambda: client.services.readers.clients == count  # type: ignore[attr-defined,no-any-return]


@pytest.mark.spec("003-12.2")
async def test_a_client_that_does_not_read_is_disconnected_with_a_reason(
    serve: Serve, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "STALL_TIMEOUT_S", 0.3)
    async with App(url, handlers=()) as app, serve(app, buffer_limit=100_000) as client:
        await fill(app)
        slow = await connect_slowly(client)
        await until(has_clients(client, 1))
        await until(has_clients(client, 0))
        text = (await read_all(slow)).decode()
        slow.close()
        assert json.dumps(sse.STALL_REASON) in text.rpartition("event: close")[2]
        # It continues after the last event that it received in full.
        seen = [line[4:] for line in text.splitlines() if line.startswith("id: ")]
        whole = text[: text.rindex("event: close")].count("\n\n") - 1
        assert 0 < whole < EVENTS
        cursor = seen[whole - 2]
        async with client.stream("GET", PATH, headers={"last-event-id": cursor}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    assert json.loads(line[6:])["data"]["n"] == int(cursor.partition("-")[2])
                    break


async def test_what_is_buffered_for_a_client_that_never_reads_is_thrown_away(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "STALL_TIMEOUT_S", 0.2)
    monkeypatch.setattr(protocol, "DROP_TIMEOUT_S", 0.2)
    async with App(":memory:", handlers=()) as app, serve(app, buffer_limit=100_000) as client:
        await fill(app)
        lost: list[object] = []
        report = protocol.BoundedHttpProtocol.connection_lost

        def connection_lost(self: protocol.BoundedHttpProtocol, problem: Exception | None) -> None:
            lost.append(problem)
            report(self, problem)

        monkeypatch.setattr(protocol.BoundedHttpProtocol, "connection_lost", connection_lost)
        slow = await connect_slowly(client)
        await until(lambda: bool(lost))
        slow.close()


async def test_a_socket_that_does_not_read_is_closed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "STALL_TIMEOUT_S", 0.3)
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        await fill(app)
        address = str(client.base_url).replace("http", "ws").rstrip("/")
        slow = await open_slowly(client)
        async with connect(f"{address}/api/_events/ws", max_queue=1, sock=slow, compression=None) as socket_:
            await socket_.send(json.dumps({"op": "subscribe", "id": "s", "stream": STREAM, "after": ""}))
            await until(has_clients(client, 1))
            await until(has_clients(client, 0))


@pytest.mark.spec("000-3.36")
def test_the_settings_of_live_streams_reach_the_server() -> None:
    defaults = {name: one.default for name, one in inspect.signature(asgi_app).parameters.items()}
    assert defaults["heartbeat_s"] == Settings().heartbeat / 1000 == 15
    assert defaults["buffer_limit"] == Settings().buffer_limit


@pytest.mark.spec("000-3.37")
@pytest.mark.parametrize("limit", [50_000, 1_000_000])
async def test_a_client_that_is_behind_is_sent_no_more_than_the_limit(limit: int) -> None:
    """What is sent and not taken yet is what the server holds for a client: one part, whatever the stream holds."""
    async with App(":memory:", handlers=()) as app:
        for n in range(EVENTS):
            await app.events.append(STREAM, "thing.happened", {"n": n, "text": "x" * 20_000})
        application = asgi_app(app, buffer_limit=limit)
        sent: list[int] = []
        is_behind, forever = asyncio.Event(), asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                sent.append(len(message["body"]))
                if len(sent) == 3:
                    is_behind.set()
                    await forever.wait()  # the client takes nothing more

        async def receive() -> Any:
            await forever.wait()

        scope = {
            "type": "http", "method": "GET", "path": PATH, "raw_path": PATH.encode(), "query_string": b"after=",
            "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "root_path": "",
        }  # fmt: skip
        streaming = asyncio.ensure_future(application(scope, receive, send))
        await is_behind.wait()
        streaming.cancel()
        await asyncio.wait([streaming])
    assert limit / 2 < max(sent) <= limit
