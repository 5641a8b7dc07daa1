"""Behind a proxy on the same machine: the caller is the one that the proxy names, not the proxy."""

from __future__ import annotations

from http_server import Serve
from penstock import App

CLIENT = "203.0.113.9"
PROXIED = {"x-forwarded-for": CLIENT, "x-forwarded-proto": "https"}


async def test_without_tokens_a_proxy_lets_nobody_in(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        assert (await client.get("/api/_queue")).status_code == 200
        answer = await client.get("/api/_queue", headers=PROXIED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


async def test_commands_and_wrong_tokens_belong_to_the_client_of_the_proxy(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        _, text = await app.tokens.add("ada", "operator")
        for _ in range(11):
            last = await client.get("/api/_queue", headers={**PROXIED, "authorization": "Bearer pst_x_y"})
        assert last.status_code == 429
        # What the client sent, then what nginx adds: only the last one can be trusted.
        other = {"x-forwarded-for": f"{CLIENT}, 203.0.113.10", "authorization": f"Bearer {text}"}
        assert (await client.post("/api/_events", json={"kind": "a.b"}, headers=other)).status_code == 201
        (recorded,) = await app.events.read_all("nq:audit:log")
    assert (recorded.data["by"], recorded.data["address"]) == ("ada", "203.0.113.10")
