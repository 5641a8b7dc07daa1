"""Sockets: every operation over `call`, errors with a reply, bounds."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from http_server import Serve
from penstock import App, Context, flow
from penstock.http import protocol, sockets
from penstock.http.routes import ALL_ROUTES
from penstock.testing.until import until

OPERATIONS = [one for routes in ALL_ROUTES for one in routes.endpoints if not one.is_stream]


@flow("order")
async def order(_input: Any, ctx: Context) -> None:
    await ctx.wait.event("order.paid")


@asynccontextmanager
async def open_socket(client: httpx.AsyncClient, path: str = "/api/_events/ws") -> AsyncIterator[ClientConnection]:
    address = str(client.base_url).replace("http", "ws").rstrip("/")
    async with asyncio.timeout(60), connect(f"{address}{path}") as socket:
        yield socket


async def exchange(socket: ClientConnection, **message: Any) -> Any:
    await socket.send(json.dumps(message))
    return json.loads(await socket.recv())


def fill(template: str) -> str:
    return re.sub(r"{(\w+)(:path)?}", r"a-\1", template)


@pytest.mark.parametrize("body", [None, {}, {"nonsense": 1}], ids=["none", "empty", "wrong"])
async def test_every_operation_has_a_reply(serve: Serve, body: Any) -> None:
    async with App(":memory:", handlers=[order]) as app, serve(app) as client, open_socket(client) as socket:
        for endpoint in OPERATIONS:
            query = "?timeout=0" if endpoint.path.endswith(("/result", "/wait")) else ""
            path = fill(endpoint.path) + query
            reply = await exchange(socket, op="call", id="c", method=endpoint.method, path=path, body=body)
            assert reply["op"] == "reply", (endpoint.path, reply)
            assert reply["status"] != 500, (endpoint.path, reply)


async def test_answers_are_those_of_http(serve: Serve, url: str, tmp_path: Path) -> None:
    async with App(url, handlers=[order]) as app, serve(app) as client, open_socket(client) as socket:
        await app.start(order, {"n": 1}, key="r-1")
        await app.webhooks.register("shop", event="shop.called")

        async def call(method: str, path: str, body: Any = None) -> Any:
            reply = await exchange(socket, op="call", id="c", method=method, path=path, body=body)
            assert reply["status"] < 300, reply
            return reply["body"]

        assert (await call("POST", "/api/webhooks/shop", {"a": 1}))["isNew"]
        assert "penstock_" in await call("GET", "/api/_metrics")
        lines = await call("GET", "/api/_run/r-1/export")
        assert lines == (await client.get("/api/_run/r-1/export")).text
        assert await call("GET", "/api/openapi.json") == (await client.get("/api/openapi.json")).json()
        await app.runs.cancel("r-1")
        empty = f"sqlite:///{tmp_path}/other.db"
        async with App(empty, handlers=[order]) as other, serve(other) as there, open_socket(there) as second:
            reply = await exchange(second, op="call", id="c", method="POST", path="/api/_import", body=lines)
            assert reply["body"]["ids"] == ["r-1"], reply


async def test_a_bug_of_an_endpoint_has_a_reply_too(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client, open_socket(client) as socket:

        async def fail(*_: Any, **__: Any) -> Any:
            raise KeyError("hunter2")

        monkeypatch.setattr(app.queues, "list", fail)
        reply = await exchange(socket, op="call", id="c", path="/api/_queue")
    assert (reply["status"], reply["body"]["error"]["code"]) == (500, "internal")
    assert "hunter2" not in str(reply)
    assert "GET /api/_queue failed" in caplog.text


async def test_calls_without_a_reply_are_limited(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MAX_CALLS", 3)
    async with App(":memory:", handlers=[order]) as app, serve(app) as client, open_socket(client) as socket:
        await app.start(order, key="r-1")
        for n in range(3):
            await socket.send(json.dumps({"op": "call", "id": f"w{n}", "path": "/api/_run/r-1/result?timeout=1h"}))
        reply = await exchange(socket, op="call", id="c", path="/api/_queue")
        assert (reply["id"], reply["status"], reply["body"]["error"]["code"]) == ("c", 429, "too_many_requests")
        await app.runs.cancel("r-1")  # now the three have replies
        assert {json.loads(await socket.recv())["id"] for _ in range(3)} == {"w0", "w1", "w2"}
        assert (await exchange(socket, op="call", id="c", path="/api/_queue"))["status"] == 200


async def test_a_binary_frame_is_answered(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client, open_socket(client) as socket:
        await socket.send(b'{"op": "ping"}')
        answer = json.loads(await socket.recv())
        assert (answer["op"], answer["error"]["code"]) == ("error", "bad_request")
        assert (await exchange(socket, op="ping", id="p"))["op"] == "pong"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"stream": "nq:global", "snapshot": True}, "bad_request"),
        ({"stream": "nq:flow:none", "snapshot": True}, "unknown_run"),
        ({"snapshot": True}, "bad_request"),
        ({"backfill": 3}, "bad_request"),
        ({"stream": "nq:entity:e-1", "backfill": -5}, "bad_request"),
        ({"stream": "nq:entity:e-1", "backfill": 1001}, "bad_request"),
        ({"stream": "nq:entity:e-1", "after": "x\nevent: snapshot"}, "bad_id"),
        ({"after": "nonsense"}, "bad_id"),
    ],
)
async def test_a_wrong_subscription_is_answered(serve: Serve, options: dict[str, Any], code: str) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client, open_socket(client) as socket:
        answer = await exchange(socket, op="subscribe", id="s", **options)
        if answer["op"] == "subscribed":
            answer = json.loads(await socket.recv())
        assert (answer["op"], answer["id"], answer["error"]["code"]) == ("error", "s", code)
        await until(lambda: client.services.readers.clients == 0)  # type: ignore[attr-defined]


async def test_a_queue_sends_its_backlog(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client, open_socket(client) as socket:
        ids = [await app.enqueue("mail", n) for n in range(4)]
        await socket.send(json.dumps({"op": "subscribe", "id": "s", "queue": "mail", "backfill": 2}))
        found: list[str] = []
        while len(found) < 2:
            message = json.loads(await socket.recv())
            if "record" in message:
                found.append(message["record"]["subject"])
    assert found == ids[2:]


async def test_secrets_in_errors_are_redacted(serve: Serve) -> None:
    secret = "canary0123456789abcdef"
    text = f"password={secret}"
    async with App(":memory:", handlers=()) as app, serve(app) as client, open_socket(client) as socket:
        answers = [
            await exchange(socket, op=text, id="a"),
            await exchange(socket, op="subscribe", id="b", stream=f"nq:x:{text}"),
            await exchange(socket, op="call", id="c", path=f"/api/_run/{text}"),
            await exchange(socket, op="call", id="d", path=f"/{text}"),
        ]
        await socket.send(json.dumps({"op": "subscribe", "id": "e", "stream": f"nq:flow:{text}", "snapshot": True}))
        answers += [json.loads(await socket.recv()) for _ in range(2)]
        with pytest.raises(Exception, match="404") as refused:
            async with open_socket(client, f"/api/{text}"):
                pass
    assert secret not in json.dumps(answers) + str(refused.value)
    assert json.dumps(answers).count("[redacted]") >= 3


async def open_raw(client: httpx.AsyncClient) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a socket whose frames are written by hand."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    writer.write(
        b"GET /api/_events/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


async def test_a_message_of_endless_fragments_ends_the_connection(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client, asyncio.timeout(20):
        reader, writer = await open_raw(client)
        writer.write(b"\x01\x80abcd" + b"\x00\x80abcd" * 2 * protocol.MAX_FRAGMENTS)
        answer = await reader.read(200)
        writer.close()
    assert int.from_bytes(answer[2:4]) == 1009
    assert b"fragments" in answer


async def test_pings_of_a_client_that_does_not_read_fill_no_memory(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets_: list[Any] = []
    made = protocol.BoundedSocketProtocol.connection_made

    def connection_made(self: Any, transport: Any) -> None:
        sockets_.append(self)
        made(self, transport)

    monkeypatch.setattr(protocol.BoundedSocketProtocol, "connection_made", connection_made)
    async with App(":memory:", handlers=()) as app, serve(app) as client, asyncio.timeout(20):
        _, writer = await open_raw(client)
        writer.transport.pause_reading()
        pings = (b"\x89\xfdabcd" + b"y" * 125) * 10_000
        for _ in range(10):
            writer.write(pings)
            await writer.drain()
        await until(lambda: not sockets_[0].writable.is_set())
        assert sockets_[0].transport.get_write_buffer_size() < 2**20
        writer.transport.abort()


async def test_a_refused_socket_has_the_error_of_a_request(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        await app.tokens.add("ada")
        for path, status, code in [("/api/_events/ws", 401, "unauthorized"), ("/api/_other/ws", 404, "no_route")]:
            with pytest.raises(InvalidStatus) as refused:
                async with open_socket(client, path):
                    pass
            assert refused.value.response.status_code == status
            assert json.loads(refused.value.response.body)["error"]["code"] == code
    assert not caplog.records


async def test_a_stream_that_the_caller_may_not_read_leaves_the_connection_open(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        _, text = await app.tokens.add("ada", "viewer")
        ticket = (await client.post("/api/_tickets", headers={"authorization": f"Bearer {text}"})).json()["ticket"]
        async with open_socket(client, f"/api/_events/ws?ticket={ticket}") as socket:
            answer = await exchange(socket, op="subscribe", id="s", stream="nq:audit:log")
            assert (answer["id"], answer["error"]["code"]) == ("s", "forbidden")
            assert (await exchange(socket, op="ping", id="p"))["op"] == "pong"


async def test_a_path_of_a_call_is_decoded_as_in_a_request(serve: Serve) -> None:
    async with App(":memory:", handlers=[order]) as app, serve(app) as client, open_socket(client) as socket:
        await app.start(order, key="r-1")
        reply = await exchange(socket, op="call", id="c", path="/api/_run/r%2D1")
        assert reply["body"]["id"] == "r-1", reply


async def test_a_wrong_message_is_answered_with_its_id(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client, open_socket(client) as socket:
        for wrong in ({"backfill": 1.5}, {"nonsense": 1}, {"kinds": ["x" * 20_000]}, {"stream": "nq:x", "queue": "q"}):
            answer = await exchange(socket, op="subscribe", id="s", **wrong)
            assert (answer["op"], answer["id"], answer["error"]["code"]) == ("error", "s", "bad_request")
        answer = await exchange(socket, op="ping", id="x" * 201)
        assert (answer["id"], "200" in answer["error"]["message"]) == ("", True)


async def test_bodies_of_calls_without_a_reply_are_limited(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MAX_CALL_BYTES", 1000)
    async with App(":memory:", handlers=[order]) as app, serve(app) as client, open_socket(client) as socket:
        await app.start(order, key="r-1")
        path = "/api/_run/r-1/result?timeout=1h"
        await socket.send(json.dumps({"op": "call", "id": "w", "path": path, "body": "x" * 1000}))
        reply = await exchange(socket, op="call", id="c", path="/api/_queue")
        assert (reply["id"], reply["status"], reply["body"]["error"]["code"]) == ("c", 429, "too_many_requests")
        await app.runs.cancel("r-1")
        assert json.loads(await socket.recv())["id"] == "w"
        assert (await exchange(socket, op="call", id="c", path="/api/_queue"))["status"] == 200


async def test_a_bug_of_a_subscription_is_answered(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client, open_socket(client) as socket:

        async def fail(*_: Any) -> Any:
            raise KeyError("hunter2")

        monkeypatch.setattr(sockets.SocketSession, "_find_start", fail)
        await exchange(socket, op="subscribe", id="s")
        answer = json.loads(await socket.recv())
    assert (answer["op"], answer["id"], answer["error"]["code"]) == ("error", "s", "internal")
    assert "hunter2" not in str(answer)
    assert "a subscription of a socket failed" in caplog.text


async def test_a_server_that_stops_says_so(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, AsyncExitStack() as stack:
        async with serve(app) as client:
            socket = await stack.enter_async_context(open_socket(client))
            await exchange(socket, op="ping")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1012, protocol.SHUTDOWN_REASON)


async def test_the_cursor_of_another_stream_is_refused(serve: Serve, url: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as client, open_socket(client) as socket:
        for n in range(3):
            await app.events.append("nq:entity:e-1", "thing.happened", {"n": n})
        ids = [event.id for event in await app.events.read("nq:entity:e-1")]
        answer = await exchange(socket, op="subscribe", id="s", stream="nq:entity:e-1", after="1000-2")
        assert (answer["error"]["code"], ids[1] in answer["error"]["message"]) == ("bad_request", True)
        path = "/api/_events/entity/e-1/stream"
        assert (await client.get(path, params={"after": "1000-2"})).status_code == 400
        for after, rest in ((ids[1], 1), ("0-2", 1), ("0-0", 3), ("", 3)):
            await socket.send(json.dumps({"op": "subscribe", "id": after, "stream": "nq:entity:e-1", "after": after}))
            found: list[int] = []
            while len(found) < rest:
                message = json.loads(await socket.recv())
                found += [message["record"]["data"]["n"]] if message.get("sub") == after else []
            assert found == list(range(3))[-rest:]


async def test_every_subscription_is_answered_in_order(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client, open_socket(client) as socket:
        for op in ("subscribe", "unsubscribe", "subscribe", "subscribe", "unsubscribe"):
            await socket.send(json.dumps({"op": op, "id": "s"}))
        await socket.send(json.dumps({"op": "ping"}))
        found: list[str] = []
        while "pong" not in found:
            found.append(json.loads(await socket.recv())["op"])
        answers = [op for op in found if op != "cursor"]
        assert answers == ["subscribed", "unsubscribed", "subscribed", "error", "unsubscribed", "pong"]
        await until(lambda: client.services.readers.clients == 0)  # type: ignore[attr-defined]
