"""Requests that are too large, too deep, too slow or never end are refused within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.asyncio.client import connect

from http_server import Serve
from penstock import App
from penstock.http import dispatch, protocol, sse
from penstock.http.dispatch import MAX_BODY_BYTES
from penstock.http.openapi import build_openapi
from penstock.http.protocol import MAX_HEADER_BYTES
from penstock.http.routes import ALL_ROUTES
from penstock.testing.until import until


@contextlib.asynccontextmanager
async def raw(client: httpx.AsyncClient) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_page_has_at_most_a_thousand_items(serve: Serve) -> None:
    """A reader with the least rights must not make the server load a million rows of 64 KB."""
    document = build_openapi([endpoint for routes in ALL_ROUTES for endpoint in routes.endpoints])
    pages = {
        path: parameter["schema"]
        for path, methods in document["paths"].items()
        for operation in methods.values()
        for parameter in operation.get("parameters", [])
        if parameter["name"] == "limit"
    }
    assert len(pages) > 15
    assert {
        path for path, schema in pages.items() if (schema.get("minimum"), schema.get("maximum")) != (1, 1000)
    } == set()
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        for limit, why in ((1001, "at most 1,000"), (0, "at least 1")):
            answer = await client.get("/api/_run", params={"limit": limit})
            assert (answer.status_code, why in answer.json()["error"]["message"]) == (400, True)
        assert (await client.get("/api/_run", params={"limit": 1000})).status_code == 200


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Return what the server sends until it closes the connection."""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
    return b""


async def test_a_body_that_is_too_large_is_not_read(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client, raw(client) as (reader, writer):
        head = f"POST /api/_events HTTP/1.1\r\nhost: localhost\r\ncontent-length: {MAX_BODY_BYTES + 1}\r\n\r\n"
        writer.write(head.encode())
        answer = await read_to_end(reader)  # without one byte of the body
    assert answer.startswith(b"HTTP/1.1 413")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_large"


async def test_a_chunked_body_is_counted(serve: Serve) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 2**20 + 1):
            yield b"x" * 2**20

    async with App(":memory:", handlers=()) as app, serve(app) as client:
        answer = await client.post("/api/_events", content=chunks(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize("opening", ["[", '{"a":'])
async def test_a_deeply_nested_body_is_refused(serve: Serve, opening: str) -> None:
    body = '{"kind": "a.b", "data": ' + opening * 100_000
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        answer = await client.post("/api/_events", content=body, headers={"content-type": "application/json"})
        assert (await client.get("/health")).status_code == 200
    assert answer.status_code == 400


@pytest.mark.parametrize("body", ["NaN", '{"a":1,"a":2}', '"\\ud800"', "1e999", "\x00", '{"kind": 1}'])
async def test_json_that_others_cannot_read_is_refused(serve: Serve, body: str) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        content = f'{{"kind": "a.b", "data": {body}}}' if body != '{"kind": 1}' else body
        answer = await client.post("/api/_events", content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text


async def test_a_slow_body_is_refused(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "BODY_TIMEOUT_S", 0.1)
    async with App(":memory:", handlers=()) as app, serve(app) as client, raw(client) as (reader, writer):
        writer.write(b'POST /api/_events HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{"kind"')
        answer = await read_to_end(reader)
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-a: "],
    ids=["none", "line", "header"],
)
async def test_headers_that_do_not_arrive_end_the_connection(
    serve: Serve, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", 0.1)
    async with App(":memory:", handlers=()) as app, serve(app) as client, raw(client) as (reader, writer):
        writer.write(sent)
        assert await read_to_end(reader) == b""


async def test_a_second_request_that_stops_ends_the_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", 0.1)
    async with App(":memory:", handlers=()) as app, serve(app) as client, raw(client) as (reader, writer):
        writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"}")
        writer.write(b"GET /health HTTP/1.1\r\nx-slow: ")
        assert await read_to_end(reader) == b""


@pytest.mark.parametrize("where", ["header", "address"])
async def test_headers_that_are_too_large_are_refused(serve: Serve, where: str) -> None:
    filler = b"a" * (MAX_HEADER_BYTES + 10)
    path, header = (b"/" + filler, b"a") if where == "address" else (b"/health", filler)
    async with App(":memory:", handlers=()) as app, serve(app) as client, raw(client) as (reader, writer):
        writer.write(b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\nx-a: " + header)
        answer = await read_to_end(reader)
        assert (await client.get("/health")).status_code == 200
    assert answer.startswith(b"HTTP/1.1 400")


async def test_a_large_body_is_not_taken_for_headers(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        inputs = ["x" * 60_000] * 5
        for _ in range(3):  # on one connection
            assert (await client.post("/api/_queue/mail/jobs/bulk", json={"inputs": inputs})).status_code == 201


async def test_a_stream_whose_client_leaves_is_released(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        readers = client.services.readers  # type: ignore[attr-defined]
        async with client.stream("GET", "/api/_events/entity/e-1/stream"):
            await until(lambda: readers.clients == 1)
        await until(lambda: readers.clients == 0)


async def test_a_client_that_reads_nothing_is_disconnected(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "STALL_TIMEOUT_S", 0.2)
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        readers = client.services.readers  # type: ignore[attr-defined]
        for _ in range(250):  # more than the buffers of the two sockets take
            await app.events.append("nq:entity:e-1", "thing.happened", {"text": "x" * 60_000})
        async with raw(client) as (_reader, writer):
            writer.write(b"GET /api/_events/entity/e-1/stream?after= HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await until(lambda: readers.clients == 1)
            await until(lambda: readers.clients == 0)


@pytest.mark.parametrize(
    "message", ["[" * 100_000, '{"op": "subscribe", "id": "a", "stream": "' + "x" * 100_000 + '"}', "null", "\x00"]
)
async def test_a_message_that_is_none_is_answered(serve: Serve, message: str) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        address = str(client.base_url).replace("http", "ws") + "/api/_events/ws"
        async with asyncio.timeout(20), connect(address) as socket:
            await socket.send(message)
            assert json.loads(await socket.recv())["op"] == "error"
            await socket.send('{"op": "ping"}')
            assert json.loads(await socket.recv())["op"] == "pong"


async def test_a_message_that_is_too_large_ends_the_socket(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        address = str(client.base_url).replace("http", "ws") + "/api/_events/ws"
        async with asyncio.timeout(20), connect(address) as socket:
            await socket.send("x" * (2**20 + 1))
            await socket.wait_closed()
            assert socket.close_code == 1009
