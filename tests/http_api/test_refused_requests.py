"""Requests that the server refuses, with what was wrong: filters, schemas, headers, cursors, lifetimes of tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from http_server import Serve
from penstock import App, Context, flow
from penstock.client import Client
from penstock.core.events import Event
from penstock.errors import BadArgument, ConfigError, StoreUnavailable


@flow("greet")
async def greet(_input: Any, ctx: Context) -> None: ...


@pytest.mark.parametrize("query", ["tag=billing", "tag==billing", "attribute=7", "tag=a=1&tag=a=2"])
async def test_a_filter_without_a_name_or_a_value_is_refused(serve: Serve, query: str) -> None:
    async with App(":memory:", handlers=[greet]) as app, serve(app) as http:
        for path in ("/api/_run", "/api/_flow/greet/runs"):
            answer = await http.get(f"{path}?{query}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")
            assert query.partition("=")[0] in answer.json()["error"]["message"]
        assert (await http.get("/api/_run?tag=a=b=c&tag=d=")).status_code == 200


@pytest.mark.parametrize("schema", [{"type": "nope"}, {"$ref": "http://elsewhere/x"}, {"pattern": "("}])
async def test_a_bad_schema_is_the_callers_mistake(serve: Serve, schema: dict[str, Any]) -> None:
    async with App(":memory:", handlers=[greet]) as app, serve(app) as http:
        answer = await http.put("/api/_webhooks/shop", json={"flow": "greet", "schema": schema})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_argument")
        with pytest.raises(BadArgument, match="not a valid JSON schema"):
            await app.webhooks.register("shop", flow="greet", schema=schema)


@pytest.mark.parametrize("expires", ["0s", 0, 0.5])
async def test_a_token_that_is_never_valid_is_refused(serve: Serve, expires: Any) -> None:
    """It would lock everybody out: with any token in the store, every request needs one."""
    async with App(":memory:", handlers=()) as app, serve(app) as http:
        answer = await http.post("/api/_tokens", json={"name": "ada", "expires": expires})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_argument")
        assert (await http.get("/api/_session")).status_code == 200
        with pytest.raises(BadArgument, match="at least 1s"):
            await app.tokens.add("ada", expires=expires)


HOST, TOKEN = "Host: localhost", "Authorization: Bearer pst_wrong"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], "no header Host"),
        (["Host:"], "no header Host"),
        ([HOST, "Host: evil.example"], "2 headers Host"),
        (["Host: evil.example", HOST], "2 headers Host"),
        ([HOST, TOKEN, TOKEN], "2 headers Authorization"),
        ([HOST, "Origin: http://localhost", "Origin: http://evil.example"], "2 headers Origin"),
        ([HOST, "Penstock-Namespace: a", "Penstock-Namespace: b"], "2 headers Penstock-Namespace"),
    ],
)
async def test_a_request_that_says_two_things_is_refused(serve: Serve, headers: list[str], expected: str) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as http:
        for path in ("/api/_session", "/health", "/api/triggers/x"):
            method = "POST" if "triggers" in path else "GET"
            answer = await send_raw(http, [f"{method} {path} HTTP/1.1", *headers, "Connection: close"])
            assert answer.startswith("HTTP/1.1 400 "), answer
            assert expected in answer


async def take_first(events: AsyncIterator[Event]) -> Event:
    async with aclosing(events):  # type: ignore[type-var]
        return await anext(events)


@pytest.mark.parametrize(
    "header",
    [
        "Host: [::1",
        "Host: evil@localhost",
        "Host: localhost/x",
        "Host: localhost:x",
        "Host: localhost#",
        "Origin: http://[::1",
    ],
)
async def test_a_malformed_host_or_origin_is_no_name_of_this_machine(serve: Serve, header: str) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as http:
        headers = [header] if header.startswith("Host") else [HOST, header]
        answer = await send_raw(http, ["GET /api/_session HTTP/1.1", *headers, "Connection: close"])
        assert answer.startswith("HTTP/1.1 403 "), answer
        for good in ("localhost", "localhost:99", "127.0.0.1:8765", "[::1]:8765", "[::1]"):
            answer = await send_raw(http, ["GET /api/_session HTTP/1.1", f"Host: {good}", "Connection: close"])
            assert answer.startswith("HTTP/1.1 200 "), (good, answer)


@pytest.mark.parametrize("name", ["flow", "correlationId", "step", "error", "parent"])
async def test_an_empty_filter_selects_no_run_at_all(serve: Serve, url: str, name: str) -> None:
    """`{"action": "cancel", "flow": ""}`, from an unset variable, cancelled every run."""
    async with App(url, handlers=[greet]) as app, serve(app) as http:
        await app.start("greet", key="r-1")
        body = {"action": "cancel", name: "", "confirm": True}
        for answer in (await http.get(f"/api/_run?{name}="), await http.post("/api/_run/bulk", json=body)):
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_argument")
            assert "must not be empty" in answer.json()["error"]["message"]
        assert (await http.get("/api/_run?where=null")).status_code == 400
        assert (await app.runs.get("r-1")).status == "running"


async def send_raw(http: httpx.AsyncClient, lines: list[str]) -> str:
    reader, writer = await asyncio.open_connection(http.base_url.host, http.base_url.port)
    writer.write("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_a_cursor_after_the_end_is_refused(serve: Serve, url: str) -> None:
    async with App(url, handlers=[greet]) as app, serve(app) as http:
        await app.start("greet", key="r-1")
        (event,) = await app.events.read("nq:flow:r-1")
        beyond = f"{event.id.partition('-')[0]}-9"
        for path in ("flow/r-1/stream", "nq:flow:r-1/tail"):
            answer = await http.get(f"/api/_events/{path}", headers={"last-event-id": beyond})
            assert answer.status_code == 400
            assert f"after the newest event, {event.id}" in answer.json()["error"]["message"]
        assert (await http.get("/api/_events/stream", params={"after": "999999999999999"})).status_code == 400
        address = f"ws://127.0.0.1:{http.base_url.port}/api/_events/ws"
        async with connect(address) as socket:
            await socket.send(json.dumps({"op": "subscribe", "id": "1", "stream": "nq:flow:r-1", "after": beyond}))
            assert "after the newest event" in str(await socket.recv())
        async with Client(str(http.base_url)) as client:
            assert (await take_first(client.events.subscribe("nq:flow:r-1"))).id == event.id
        params = {"after": event.id}  # the end itself is a place to continue
        async with http.stream("GET", "/api/_events/flow/r-1/stream", params=params) as answer:
            assert answer.status_code == 200


@pytest.mark.parametrize("path", ["shop/orders", "list/a/stream"])
async def test_the_stream_of_a_webhook_with_a_slash_is_read(serve: Serve, url: str, path: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as http, Client(str(http.base_url)) as client:
        await client.webhooks.register(path, event="order.paid")
        receipt = await client.webhooks.receive(path, "POST", {"idempotency-key": "k-1"}, b'{"n": 1}')
        assert receipt.is_new
        assert not (await client.webhooks.receive(path, headers={"idempotency-key": "k-1"}, body=b'{"n": 1}')).is_new
        stream = f"nq:webhook:{path}"
        assert [one.kind for one in await client.events.read(stream)] == ["webhook.received"]
        assert (await take_first(client.events.subscribe(stream))).data["payload"] == {"n": 1}
        await client.events.append(stream, "order.noted")
        plain = await http.get(f"/api/_events/webhook/{path}/events")
        assert [one["kind"] for one in plain.json()["items"]] == ["webhook.received", "order.noted"]
        for address in (f"webhook/{path}/stream", f"{stream}/tail"):
            async with http.stream("GET", f"/api/_events/{address}") as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        break
        assert [one.id for one in await app.events.streams("webhook")] == [path]


@pytest.mark.parametrize("token", ["se\ncret", "se cret", "s\u00e9cret", "se\rcret", "secret\n"])
async def test_a_token_that_no_header_can_hold_is_not_shown(serve: Serve, token: str) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as http:
        with pytest.raises(ConfigError) as found:
            Client(str(http.base_url), token=token)
        assert "cret" not in str(found.value)


@pytest.mark.parametrize("url", ["http://ada:se\ncret@127.0.0.1:1", "http://ada:secret@127.0.0.1:1", "http://[secret"])
async def test_the_password_of_a_server_is_not_shown(url: str) -> None:
    with pytest.raises((ConfigError, StoreUnavailable)) as found:
        async with Client(url) as client:
            await client.runs.list()
    assert ":secret" not in str(found.value)
    assert "se\ncret" not in str(found.value)
    assert "ada:***" in str(found.value) or "[" in url


async def test_worker_files_that_are_not_loaded_are_in_the_check(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import a_module_that_does_not_exist\n")
    async with App(":memory:", tmp_path) as app, serve(app) as http, Client(str(http.base_url)) as client:
        for report in (await app.runs.preflight(), await client.runs.preflight()):
            assert not report.is_ok
            assert "a_module_that_does_not_exist" in report.files[0]


async def test_roles_and_counts_are_named_in_whole_sentences(serve: Serve) -> None:
    async with App(":memory:", handlers=[greet]) as app, serve(app) as http:
        one = await http.post("/api/_dlq/mail/redrive", json={"confirm": 3})
        assert "there are 0 dead letters now, not 3" in one.json()["error"]["message"]
        for body, passed in (
            ({"flow": "greet"}, "none of them"),
            ({"flow": "greet", "every": "1m", "cron": "* * * * *"}, "every and cron"),
            ({"every": "1m"}, "neither"),
            ({"every": "1m", "flow": "greet", "queue": "mail"}, "both"),
        ):
            refused = await http.put("/api/_schedules/s", json=body)
            assert (refused.status_code, f"got {passed}" in refused.json()["error"]["message"]) == (400, True)
        _, text = await app.tokens.add("ops", "operator")
        answer = await http.get("/api/_tokens", headers={"authorization": f"Bearer {text}"})
        assert "'ops' has the role operator; this request needs admin" in answer.json()["error"]["message"]
