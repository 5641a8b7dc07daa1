"""Mistakes of new users: the answer says what was wrong and what to write instead."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from http_server import Serve
from penstock import App, flow


@flow("order")
async def order(_input: Any) -> None: ...


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/api/_runs", None, "no path '/api/_runs'; did you mean '_run'?"),
        ("POST", "/api/_run/r-1/cancle", None, "no path '/api/_run/r-1/cancle'; did you mean 'cancel'?"),
        ("GET", "/runs", None, "no path '/runs'; /api/openapi.json lists them"),
        ("POST", "/api/_run", {}, "this path takes GET, HEAD, not POST"),
        ("GET", "/api/_run?stauts=failed", None, "unknown parameter 'stauts'; did you mean 'status'?"),
        ("GET", "/api/_workers?all=true", None, "unknown parameter 'all'; there are reveal"),
        ("POST", "/api/_flow/order/runs", {"inputs": 1}, "unknown field 'inputs'; did you mean 'input'?"),
        ("POST", "/api/_flow/order/runs", {"zzz": 1}, "unknown field 'zzz'; there are input, key, "),
        ("POST", "/api/_flow/ordre/runs", {}, "no flow named 'ordre'; did you mean 'order'?"),
        ("GET", "/api/_run?status=faild", None, "did you mean 'failed'?"),
    ],
)
async def test_a_mistake_is_named_with_what_was_meant(
    serve: Serve, method: str, path: str, body: Any, expected: str
) -> None:
    async with App(":memory:", handlers=[order]) as app, serve(app) as client:
        answer = await client.request(method, path, json=body)
    assert expected in answer.json()["error"]["message"]


async def test_a_body_without_its_type_says_what_to_send(serve: Serve) -> None:
    async with App(":memory:", handlers=[order]) as app, serve(app) as client:
        form = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d sends
        answer = await client.post("/api/_flow/order/runs", content=b'{"input": 1}', headers=form)
    assert answer.status_code == 415
    assert "with curl, --json does" in answer.json()["error"]["message"]


async def test_a_method_that_is_not_allowed_lists_the_others(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        answer = await client.request("DELETE", "/api/_queue/mail/jobs")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")


async def test_no_hint_of_an_error_is_hidden(serve: Serve) -> None:
    """The redactor takes some sentences for credentials."""
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        rebound = await client.get("/api/_run", headers={"host": "evil.example"})
        _, text = await app.tokens.add("ada")
        answers: list[httpx.Response] = [
            rebound,
            await client.get("/api/_run"),
            await client.get("/api/_run", headers={"authorization": "Bearer wrong"}),
            await client.post("/api/_queue/a/pause", headers={"authorization": f"Bearer {text}"}),
            await client.post("/api/triggers/none"),
            await client.get("/api/_run", headers={"origin": "https://evil.example"}),
        ]
    assert [answer.status_code for answer in answers] == [403, 401, 401, 403, 404, 403]
    for answer in answers:
        assert "[redacted]" not in answer.text
    for answer in answers[:2]:
        assert "penstock tokens add" in answer.text
