"""A connection that stays open ends when its caller may no longer call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from http_server import Serve
from penstock import App
from penstock.http import Caller, admission
from penstock.http.auth import MAX_SESSION_TICKET_MS
from penstock.testing.clock import FakeClock

STREAM = "/api/_events/entity/e-1/stream"


@pytest.fixture(autouse=True)
def check_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "RECHECK_INTERVAL_S", 0.02)


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@asynccontextmanager
async def open_socket(client: httpx.AsyncClient, query: str = "", **headers: str) -> AsyncIterator[ClientConnection]:
    address = str(client.base_url).replace("http", "ws").rstrip("/")
    async with asyncio.timeout(20), connect(f"{address}/api/_events/ws{query}", additional_headers=headers) as socket:
        yield socket


async def call(socket: ClientConnection, method: str, path: str, body: Any = None) -> Any:
    await socket.send(json.dumps({"op": "call", "id": "c", "method": method, "path": path, "body": body}))
    while True:
        message = json.loads(await socket.recv())
        if message["op"] == "reply":
            return message


async def read_close(response: httpx.Response) -> str:
    """Return why the server ended a stream."""
    async with asyncio.timeout(20):
        lines = [line async for line in response.aiter_lines()]
    assert "event: close" in lines, lines
    return str(json.loads(lines[lines.index("event: close") + 1].removeprefix("data: "))["reason"])


async def end_token(app: App, clock: FakeClock, id: str, how: str) -> None:
    if how == "revoked":
        await app.tokens.revoke(id)
    else:
        clock.advance("2h")


@pytest.mark.parametrize("how", ["revoked", "expired"])
@pytest.mark.parametrize("opened_by", ["token", "ticket"])
async def test_a_stream_ends_with_its_token(serve: Serve, clock: FakeClock, how: str, opened_by: str) -> None:
    async with App(":memory:", handlers=(), clock=clock) as app, serve(app) as client:
        await app.tokens.add("other", "admin")
        token, text = await app.tokens.add("ada", "admin", expires="1h")
        headers, query = bearer(text), ""
        if opened_by == "ticket":
            ticket = (await client.post("/api/_tickets", headers=headers)).json()["ticket"]
            headers, query = {}, f"?ticket={ticket}"
        async with client.stream("GET", STREAM + query, headers=headers) as response:
            assert response.status_code == 200
            await end_token(app, clock, token.id, how)
            assert "has ended" in await read_close(response)


@pytest.mark.parametrize("how", ["revoked", "expired"])
@pytest.mark.parametrize("opened_by", ["token", "ticket"])
async def test_a_socket_ends_with_its_token(serve: Serve, clock: FakeClock, how: str, opened_by: str) -> None:
    async with App(":memory:", handlers=(), clock=clock) as app, serve(app) as client:
        await app.tokens.add("other", "admin")
        token, text = await app.tokens.add("ada", "admin", expires="1h")
        headers, query = bearer(text), ""
        if opened_by == "ticket":
            ticket = (await client.post("/api/_tickets", headers=headers)).json()["ticket"]
            headers, query = {}, f"?ticket={ticket}"
        async with open_socket(client, query, **headers) as socket:
            assert (await call(socket, "GET", "/api/_tokens"))["status"] == 200
            await end_token(app, clock, token.id, how)
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, "has ended" in closed.value.rcvd.reason) == (1008, True)


@pytest.mark.parametrize("op", ["call", "subscribe"])
async def test_a_socket_checks_its_token_before_each_command(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    monkeypatch.setattr(admission, "RECHECK_INTERVAL_S", 3600)
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        await app.tokens.add("other", "admin")
        token, text = await app.tokens.add("ada", "admin")
        async with open_socket(client, **bearer(text)) as socket:
            await app.tokens.revoke(token.id)
            if op == "call":
                reply = await call(socket, "POST", "/api/_tokens", {"name": "eve", "role": "admin"})
                assert (reply["status"], reply["body"]["error"]["code"]) == (401, "unauthorized")
            else:
                await socket.send(json.dumps({"op": "subscribe", "id": "s"}))
                assert json.loads(await socket.recv())["error"]["code"] == "unauthorized"
        assert {one.name for one in await app.tokens.list()} == {"other"}


async def test_connections_without_a_token_end_with_the_first_token(serve: Serve, clock: FakeClock) -> None:
    async with (
        App(":memory:", handlers=(), clock=clock) as app,
        serve(app) as client,
        open_socket(client) as socket,
        client.stream("GET", STREAM) as response,
    ):
        await app.tokens.add("ada", "admin")
        assert "has ended" in await read_close(response)
        with pytest.raises(ConnectionClosed):
            await socket.recv()


async def test_a_session_of_the_application_is_checked_again(serve: Serve) -> None:
    sessions = {"s-1"}

    async def authenticate(request: Any) -> Caller | None:
        return Caller("ada", "admin") if request.headers.get("x-session") in sessions else None

    async with (
        App(":memory:", handlers=()) as app,
        serve(app, authenticate=authenticate) as client,
        open_socket(client, **{"x-session": "s-1"}) as socket,
    ):
        assert (await call(socket, "GET", "/api/_tokens"))["status"] == 200
        sessions.clear()
        with pytest.raises(ConnectionClosed):
            await socket.recv()


async def test_a_ticket_of_a_session_opens_an_hour(serve: Serve, clock: FakeClock) -> None:
    async def authenticate(request: Any) -> Caller | None:
        return Caller("ada") if request.headers.get("x-session") else None

    async with App(":memory:", handlers=(), clock=clock) as app, serve(app, authenticate=authenticate) as client:
        ticket = (await client.post("/api/_tickets", headers={"x-session": "s"})).json()["ticket"]
        async with client.stream("GET", f"{STREAM}?ticket={ticket}") as response:
            assert response.status_code == 200
            clock.advance(f"{MAX_SESSION_TICKET_MS}ms")
            assert "has ended" in await read_close(response)


async def test_a_store_that_does_not_answer_ends_no_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.errors import StoreUnavailable

    async with App(":memory:", handlers=()) as app, serve(app) as client:
        _, text = await app.tokens.add("ada")
        asked = asyncio.Event()

        async def check_id(_id: str) -> Caller | None:
            asked.set()
            raise StoreUnavailable("the store is away")

        async with client.stream("GET", STREAM, headers=bearer(text)) as response:
            monkeypatch.setattr(app.tokens, "check_id", check_id)
            async with asyncio.timeout(20):
                await asked.wait()
            asked.clear()
            async with asyncio.timeout(20):
                await asked.wait()  # it asks again: the stream is open
            assert not response.is_closed
