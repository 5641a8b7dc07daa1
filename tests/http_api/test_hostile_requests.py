"""Requests of other sites, injected headers and log lines, paths that try to leave their place, guessed tokens."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from urllib.parse import quote

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect

from http_server import Serve
from penstock import App, Context, flow
from penstock.http import asgi_app
from penstock.http.endpoints import Endpoint, Query
from penstock.http.routes import ALL_ROUTES

ENDPOINTS = [endpoint for routes in ALL_ROUTES for endpoint in routes.endpoints]
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
TRAVERSALS = [
    "..", "../../etc/passwd", "..%2F..%2Fetc%2Fpasswd", "%2e%2e%5c%2e%2e%5cwindows", "%2Fetc%2Fpasswd", "a%00b", "%00",
    "a%0d%0aset-cookie:%20x=1", "%ff%fe", "nq:flow:x", "%E2%80%AE", "a%2500b", "'%20OR%20'1'='1", "a" * 3000,
]  # fmt: skip


def fill(template: str, value: str) -> str:
    """Return a path with every parameter replaced."""
    parts = template.replace(":path", "").split("/")
    return "/".join(value if part.startswith("{") else part for part in parts)


@flow("approve")
async def approve(_input: None, ctx: Context) -> str:
    waiting = await ctx.wait.trigger("approval")
    await waiting.wait()
    return "approved"


async def test_a_preflight_of_another_site_is_refused(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        answer = await client.options("/api/_queue/mail/pause", headers={"origin": "https://evil.example", **PREFLIGHT})
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_preflight_of_an_allowed_site_is_answered(serve: Serve) -> None:
    origin = {"origin": "https://ops.example"}
    async with App(":memory:", handlers=()) as app, serve(app, allowed_origins=["https://ops.example"]) as client:
        preflight = await client.options("/api/_queue/mail/pause", headers={**origin, **PREFLIGHT})
        answer = await client.get("/api/_queue", headers=origin)
        other = await client.get("/api/_queue", headers={"origin": "https://ops.example.evil.example"})
        opaque = await client.get("/api/_queue", headers={"origin": "null"})
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-methods"] == "POST"
    for found in (preflight, answer):
        assert found.headers["access-control-allow-origin"] == "https://ops.example"
    assert "access-control-allow-credentials" not in answer.headers
    for refused in (other, opaque):
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:8765", "[::2]", "0.0.0.0"],
)
async def test_a_name_that_was_rebound_to_this_machine_is_refused(host: str) -> None:
    async with App(":memory:", handlers=()) as app:
        transport = httpx.ASGITransport(asgi_app(app), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for endpoint in ENDPOINTS if host == "evil.example" else ENDPOINTS[:3]:
                if not endpoint.is_public:
                    answer = await client.request(endpoint.method, fill(endpoint.path, "x"), headers={"host": host})
                    assert answer.status_code == 403, endpoint.path


@pytest.mark.parametrize("path", ["/api/_events/ws", "/api/_queue/ws", "/api/_runner/ws"])
@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"origin": "null"}, {"host": "evil.example"}])
async def test_a_socket_of_another_site_is_refused(serve: Serve, path: str, headers: dict[str, str]) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        address = str(client.base_url).replace("http", "ws") + path
        if "host" in headers:
            request = f"GET {path} HTTP/1.1\r\nHost: evil.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            request += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(request.encode())
            assert b" 403 " in await reader.readline()
            writer.close()
            return
        with pytest.raises(Exception, match="403"):
            async with connect(address, origin=headers["origin"]):  # type: ignore[arg-type]
                pass


@pytest.mark.parametrize("path", ["/api/_events/ws", "/api/_queue/ws", "/api/_runner/ws"])
async def test_a_socket_needs_a_token_or_a_ticket(serve: Serve, path: str) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        _, text = await app.tokens.add("ada")
        address = str(client.base_url).replace("http", "ws") + path
        with pytest.raises(Exception, match="401"):
            async with connect(address):
                pass
        headers = {"authorization": f"Bearer {text}"}
        ticket = (await client.post("/api/_tickets", headers=headers)).json()["ticket"]
        async with connect(f"{address}?ticket={ticket}") as socket:
            await socket.send('{"op": "call", "id": "1", "path": "/api/_queue?internal=true"}')
            assert '"status":200' in str(await socket.recv())
        with pytest.raises(Exception, match="401"):
            async with connect(f"{address}?ticket={ticket}"):
                pass


async def test_a_ticket_is_for_streams_only(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        _, text = await app.tokens.add("ada", "admin")
        headers = {"authorization": f"Bearer {text}"}
        ticket = (await client.post("/api/_tickets", headers=headers)).json()["ticket"]
        assert (await client.get(f"/api/_tokens?ticket={ticket}")).status_code == 401


async def test_a_path_parameter_stays_one(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        for n, endpoint in enumerate(one for one in ENDPOINTS if "{" in one.path):
            for value in TRAVERSALS[n % 4 :: 4]:
                # As it is: httpx would resolve `..` itself.
                url = client.base_url.copy_with(raw_path=fill(endpoint.path, value).encode())
                async with client.stream(endpoint.method, url) as answer:
                    assert answer.status_code < 500, endpoint.path
                    assert "set-cookie" not in answer.headers
                    if endpoint.is_stream and answer.status_code == 200:
                        continue  # the name of a stream that does not exist yet
                    assert answer.headers["content-type"] == "application/json"
                    assert b"root:x:" not in await answer.aread()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


ODD_TEXTS = ["%00", "a%00b", "%ff", "%ed%a0%80", "a%0Ab"]


def list_queries(endpoint: Endpoint) -> list[str]:
    """Return the names of an endpoint's query parameters."""
    found = endpoint.find(Query)
    return [one.encode_name for one in msgspec.structs.fields(found[1])] if found is not None else []


async def test_text_that_a_store_cannot_hold_is_refused(serve: Serve, url: str) -> None:
    async with App(url, handlers=[approve]) as app, serve(app) as client:
        await app.start(approve, key="x")
        for endpoint in (one for one in ENDPOINTS if not one.is_stream):
            paths = [fill(endpoint.path, value) for value in ODD_TEXTS if "{" in endpoint.path]
            for names in itertools.product(list_queries(endpoint), ODD_TEXTS[:2]):
                paths.append(f"{fill(endpoint.path, 'x')}?{'='.join(names)}")
            for path in paths:
                answer = await client.request(endpoint.method, client.base_url.copy_with(raw_path=path.encode()))
                assert answer.status_code < 500, (endpoint.method, path, answer.text)


async def test_headers_and_log_lines_cannot_be_injected(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock")
    forged = "x\r\nset-cookie: a=1\r\n\r\nERROR forged line"
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        answers = [
            await client.get(f"/api/_queue/{quote(forged)}"),
            await client.get("/api/_run", params={"status": forged}),
            await client.post("/api/_events", json={"kind": forged}),
            await client.post("/api/_tokens", json={"name": forged}),
            await client.get("/api/_events/entity/e-1/events", params={"after": forged}),
        ]
        recorded = await app.events.read_all("nq:audit:log")
    for answer in answers:
        assert 400 <= answer.status_code < 500, answer.text
        assert "set-cookie" not in answer.headers
        assert "\n" not in answer.text
    assert [event.data["code"] for event in recorded if not event.data["ok"]]
    for record in caplog.records:
        assert "forged" not in record.getMessage() or record.name.startswith("httpx")


@pytest.mark.parametrize(
    "path", ["/api/_events/stream", "/api/_events/entity/e-1/stream", "/api/_events/nq:global/tail"]
)
@pytest.mark.parametrize("cursor", ["x\nevent: snapshot\ndata: {}", "nonsense", "1-2-3", "٣-٣", "1-1\r\n\r\n"])
async def test_messages_cannot_be_injected_by_a_cursor(
    serve: Serve, path: str, cursor: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        answers = [await client.get(f"{path}?after={quote(cursor)}")]
        if cursor.isascii() and "\n" not in cursor:
            answers.append(await client.get(path, headers={"last-event-id": cursor}))
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_id")
        assert "\n" not in answer.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("backfill", [-5, 1001])
async def test_a_backfill_has_bounds(serve: Serve, backfill: int) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        answer = await client.get(f"/api/_events/entity/e-1/stream?backfill={backfill}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


async def test_random_trigger_tokens_are_refused(serve: Serve) -> None:
    """10,000 tokens, with the ids of pending triggers and with others: none is accepted."""
    async with App(":memory:", handlers=[approve]) as app:
        await app.start(approve, key="r-1")
        working = asyncio.create_task(app.workers.run())
        while not (pending := await app.waits.list()):
            await asyncio.sleep(0)
        id, accepted = pending[0].id, 0
        transport = httpx.ASGITransport(asgi_app(app), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            codes = {
                (await client.post(f"/api/triggers/{id}.{secrets.token_urlsafe(32)}")).status_code for _ in range(110)
            }
            assert codes == {404, 429}  # guessing is limited
        for n in range(10_000):
            guess = secrets.token_urlsafe(32)
            try:
                await app.waits.fire(f"{id}.{guess}" if n % 2 else guess)
                accepted += 1
            except Exception as problem:
                assert type(problem).__name__ == "UnknownTrigger"
        token = await app.waits.token(id)
        assert not accepted
        for cut in (token[:-1], token + "A", token.upper(), token[::-1], token.replace(".", "")):
            with pytest.raises(Exception, match=r"no trigger|not its token"):
                await app.waits.fire(cut)
        assert await app.waits.fire(token) == "r-1"
        assert await app.result("r-1", timeout=20) == "approved"
        app.workers.stop()
        await working


async def test_an_error_of_the_server_shows_nothing(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:

        async def fail(_token: str, *_args: object, **_options: object) -> None:
            raise ZeroDivisionError("password=hunter2hunter2")

        app.waits.fire = fail  # type: ignore[method-assign,assignment]
        answer = await client.post("/api/triggers/secret-token-of-a-trigger")
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert (error["code"], error["message"]) == ("internal", "the server failed; its log has the reason")
    assert "hunter2" not in answer.text
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage() == "POST /api/triggers/{token} failed"
    assert "secret-token" not in caplog.text
