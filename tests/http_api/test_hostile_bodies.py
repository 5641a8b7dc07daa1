"""No route ends in an internal error, whatever its body is: every field of every body with values that nobody expects.

Routes and fields come from the API itself, so a new one is covered.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from penstock import App
from penstock.http import asgi_app
from penstock.http.endpoints import Body, Endpoint
from penstock.http.routes import ALL_ROUTES

sys.path.insert(0, str(Path(__file__).parents[1] / "bounds"))

from hostile import VALUES
from hostile_world import USUAL, send, shop

ENDPOINTS = [endpoint for routes in ALL_ROUTES for endpoint in routes.endpoints]
SHARE = 1 if os.environ.get("PENSTOCK_FAULTS") == "full" else 8
PARTS = {**USUAL, "id": "run-1", "flow": "shop", "token": "t-1.secret", "path": "hook"}
FIELDS = {
    **USUAL,
    "id": "d",
    "nodes": [{"id": "a", "type": "transform"}],
    "confirm": True,
    "handler": "shop",
    "children": [],
}
RAW = [
    b"",
    b"\xff\xfe",
    b"\x00",
    b"{",
    b"[" * 5_000,
    b"null",
    b"7",
    b"[]",
    b"{}",
    b'{"a":1,"a":2}',
    b"\x1f\x8b\x08\x00",
    b'"\\ud800"',
]


def encodable() -> dict[str, bytes]:
    found = {"1e999": b"1e999", "[1e400]": b"[1e400]", "deep": b"[" * 3_000 + b"]" * 3_000, "twice": b'{"a":1,"a":1}'}
    for name, value in VALUES.items():
        try:
            found[name] = json.dumps(value).encode()
        except (TypeError, ValueError, RuntimeError):
            continue
    return found


JSON_VALUES = encodable()


def usual_body(kind: type[Body]) -> dict[str, bytes]:
    """Return the fields that a body needs, with values that get beyond the first checks."""
    names = [
        one
        for one in msgspec.structs.fields(kind)
        if one.required or one.name in ("nodes", "handler", "flow", "timeout")
    ]
    return {one.encode_name: json.dumps(FIELDS.get(one.name, "x")).encode() for one in names}


def bodies(endpoint: Endpoint, n: int) -> Iterator[tuple[str, bytes]]:
    found = endpoint.find(Body)
    if found is not None:
        usual = usual_body(found[1])
        for k, one in enumerate(msgspec.structs.fields(found[1]), n):
            for name, value in list(JSON_VALUES.items())[k % SHARE :: SHARE]:
                fields = {**usual, one.encode_name: value}
                inside = b",".join(b'"%b":%b' % (key.encode(), text) for key, text in fields.items())
                yield f"{one.encode_name}={name}", b"{%b}" % inside
    if found is not None or endpoint.is_command:
        for raw in RAW[n % 2 :: 2]:
            yield ascii(raw[:20]), raw


def fill(endpoint: Endpoint) -> str:
    path = endpoint.path.replace(":path", "")
    for name in endpoint.path_names:
        path = path.replace(f"{{{name}}}", str(PARTS.get(name, "x")))
    return path


async def test_every_field_of_every_body(caplog: pytest.LogCaptureFixture) -> None:
    found, tried, accepted = [], 0, set()
    async with App(":memory:", handlers=[shop, send], blob_url="memory:") as app:
        transport = httpx.ASGITransport(asgi_app(app), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client:
            for n, endpoint in enumerate(ENDPOINTS):
                await app.start("shop", {"order": 1}, key="run-1")
                await app.webhooks.register("hook", event="order.paid")
                for text, body in bodies(endpoint, n):
                    headers = {"content-type": endpoint.body_media}
                    answer = await client.request(endpoint.method, fill(endpoint), content=body, headers=headers)
                    tried += 1
                    if answer.status_code >= 500 and '"code":"wait_timeout"' not in answer.text:
                        found.append(
                            f"{endpoint.method} {endpoint.path} {text}: {answer.status_code} {answer.text[:300]}"
                        )
                    if answer.status_code < 300:
                        accepted.add(endpoint)
            assert (await client.get("/health")).status_code == 200
    errors = [record.getMessage()[:300] for record in caplog.records if record.levelno >= logging.ERROR]
    assert (found, errors) == ([], []), "\n".join(["", *found, *errors])
    assert tried > 500
    assert len(accepted) > 20, "most bodies must get beyond the first checks"
