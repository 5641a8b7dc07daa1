"""Who may call the API."""

from __future__ import annotations

import re

import httpx
import pytest

from http_server import Serve
from penstock import App
from penstock.core.api_errors import ApiError
from penstock.errors import BadAddress, BadArgument
from penstock.http import Caller, asgi_app
from penstock.http.routes import ALL_ROUTES
from penstock.http.server import check_address
from penstock.testing.clock import FakeClock

ENDPOINTS = [endpoint for routes in ALL_ROUTES for endpoint in routes.endpoints]


def path_of(template: str) -> str:
    return re.sub(r"{(\w+)(:path)?}", r"a-\1", template)  # no name of a fixed path, such as "stream"


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@pytest.mark.spec("000-3.38", "000-9.5")
async def test_without_tokens_this_machine_may_do_everything(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        assert (await client.get("/api/_tokens")).status_code == 200


async def test_with_a_token_every_route_needs_one(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        await app.tokens.add("ada", "admin")
        for endpoint in ENDPOINTS:
            answer = await client.request(endpoint.method, path_of(endpoint.path))
            if endpoint.is_public:
                assert answer.status_code not in (401, 403), endpoint.path
            else:
                assert answer.status_code == 401, endpoint.path
                assert answer.json()["error"]["code"] == "unauthorized"
        assert (await client.get("/api/openapi.json")).status_code == 401


async def test_only_these_routes_are_public() -> None:
    assert sorted(endpoint.path for endpoint in ENDPOINTS if endpoint.is_public) == [
        "/api/_flows/triggers/{token}",
        "/api/_triggers/{token}",
        *["/api/blobs/{key:path}"] * 2,
        "/api/triggers/{token}",
        *["/api/webhooks/{path:path}"] * 5,
        "/health",
        "/ready",
    ]


@pytest.mark.spec("000-3.38")
@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
async def test_a_role_allows_what_it_says(serve: Serve, role: str) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        _, text = await app.tokens.add("eve", role)  # type: ignore[arg-type]
        caller = Caller("eve", role)  # type: ignore[arg-type]
        for endpoint in ENDPOINTS:
            if endpoint.is_public or endpoint.is_stream:
                continue
            answer = await client.request(endpoint.method, path_of(endpoint.path), headers=bearer(text))
            assert (answer.status_code == 403) is not caller.may(endpoint.role), (endpoint.path, answer.text)


async def test_a_token_ends_when_it_is_revoked_or_expires(serve: Serve, clock: FakeClock) -> None:
    async with App(":memory:", handlers=(), clock=clock) as app, serve(app) as client:
        token, revoked = await app.tokens.add("ada")
        _, expired = await app.tokens.add("bob", expires="1h")
        for text in (revoked, expired):
            assert (await client.get("/api/_queue", headers=bearer(text))).status_code == 200
        await app.tokens.revoke(token.id)
        assert (await client.get("/api/_queue", headers=bearer(revoked))).status_code == 401
        clock.advance("1h")
        assert (await client.get("/api/_queue", headers=bearer(expired))).status_code == 401


async def test_the_store_has_only_the_hash_of_a_token(url: str) -> None:
    async with App(url, handlers=()) as app:
        token, text = await app.tokens.add("ada")
        row = await app.store.state(f"auth/token/{token.id}")
        assert row is not None
        secret = text.partition(f"{token.id}_")[2]
        assert len(secret) >= 43
        assert secret.encode() not in bytes(row.value)
        assert await app.tokens.check(text) == Caller("ada", "viewer", token.id)
        assert await app.tokens.check(text[:-1] + ("a" if text[-1] != "a" else "b")) is None
        assert [one.name for one in await app.tokens.list()] == ["ada"]


async def test_a_ticket_works_once(serve: Serve, url: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as client:
        token, text = await app.tokens.add("ada")
        ticket = (await client.post("/api/_tickets", headers=bearer(text))).json()["ticket"]
        taken = [await app.tokens.take_ticket(ticket) for _ in range(2)]
        assert taken == [Caller("ada", "viewer", token.id), None]


async def test_wrong_tokens_are_limited(serve: Serve, clock: FakeClock) -> None:
    async with App(":memory:", handlers=(), clock=clock) as app, serve(app) as client:
        _, text = await app.tokens.add("ada")
        codes = [(await client.get("/api/_queue", headers=bearer(f"pst_x{n}_y"))).status_code for n in range(12)]
        assert codes == [401] * 10 + [429] * 2
        assert (await client.get("/api/_queue", headers=bearer(text))).status_code == 429  # the address is blocked
        clock.advance("61s")
        assert (await client.get("/api/_queue", headers=bearer(text))).status_code == 200


@pytest.mark.parametrize(
    ("headers", "client"),
    [
        ({"host": "evil.example"}, ("127.0.0.1", 1)),
        ({"host": "localhost"}, ("10.1.2.3", 1)),
        ({"host": "localhost", "origin": "http://evil.example"}, ("127.0.0.1", 1)),
    ],
    ids=["rebinding", "remote", "cross-origin"],
)
async def test_without_tokens_others_are_refused(headers: dict[str, str], client: tuple[str, int]) -> None:
    async with App(":memory:", handlers=()) as app:
        transport = httpx.ASGITransport(asgi_app(app), client=client)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            answer = await http.get("/api/_queue", headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "forbidden"


async def test_an_allowed_origin_may_call() -> None:
    async with App(":memory:", handlers=()) as app:
        application = asgi_app(app, allowed_origins=["https://ops.example"])
        transport = httpx.ASGITransport(application, client=("127.0.0.1", 1))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            answer = await http.get("/api/_queue", headers={"origin": "https://ops.example"})
    assert answer.status_code == 200


@pytest.mark.spec("000-9.5")
async def test_a_session_of_the_application_is_enough(serve: Serve) -> None:
    async def authenticate(request: object) -> Caller | None:
        name = request.headers.get("x-user")  # type: ignore[attr-defined]
        return Caller(name, "operator") if name else None

    async with App(":memory:", handlers=()) as app, serve(app, authenticate=authenticate) as client:
        assert (await client.get("/api/_queue")).status_code == 401
        assert (await client.get("/api/_queue", headers={"x-user": "ada"})).status_code == 200
        assert (await client.get("/api/_tokens", headers={"x-user": "ada"})).status_code == 403


def test_another_address_requires_a_token() -> None:
    check_address("127.0.0.1", has_tokens=False)
    check_address("::1", has_tokens=False)
    check_address("0.0.0.0", has_tokens=True)
    with pytest.raises(BadAddress, match="penstock tokens add"):
        check_address("0.0.0.0", has_tokens=False)


async def test_a_token_needs_a_role_that_exists() -> None:
    async with App(":memory:", handlers=()) as app:
        with pytest.raises(BadArgument, match="'viewer', 'operator' or 'admin'"):
            await app.tokens.add("ada", "root")  # type: ignore[arg-type]


async def test_commands_are_recorded_with_who_and_from_where(serve: Serve, url: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as client:
        _, text = await app.tokens.add("ada", "admin")
        await client.post("/api/_events", json={"kind": "order.paid", "data": {"a": 1}}, headers=bearer(text))
        await client.post("/api/_run/none/cancel", headers=bearer(text))
        await client.get("/api/_queue", headers=bearer(text))
        recorded = await app.events.read_all("nq:audit:log")
    assert [(e.data["action"], e.data["by"], e.data["ok"], e.data.get("code")) for e in recorded] == [
        ("emit_event", "ada", True, None),
        ("cancel_run", "ada", False, "unknown_run"),
    ]
    assert recorded[0].data["address"] == "127.0.0.1"


def test_every_http_error_has_a_status() -> None:
    assert all(400 <= cls.status < 600 for cls in ApiError.__subclasses__())
