"""Secrets that pass through every door of an App are found behind none of them."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from http_server import Serve
from penstock import App, Context, flow, job
from penstock.testing.until import until

FORMS = ("key", "nested", "text", "url", "jwt")
PLACES = ("payload", "result", "error", "log", "state", "emitted", "progress", "partial", "reason", "request")


def canaries() -> dict[str, dict[str, str]]:
    """Return a secret for every place and form: 50."""
    return {place: {form: f"canary{secrets.token_hex(12)}" for form in FORMS} for place in PLACES}


def disguise(secret: str, form: str) -> Any:
    """Return a value as programs carry secrets."""
    match form:
        case "key":
            return {"password": secret}
        case "nested":
            return {"headers": [{"X-Api-Key": secret}, {"deep": {"clientSecret": [secret]}}]}
        case "text":
            return f"retry with password={secret} and Authorization: Bearer {secret}"
        case "url":
            return f"postgresql://app:{secret}@db.example/orders"
        case _:
            head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
            return f"{head}.{secret}.{secret}"


def values(place: dict[str, str]) -> list[Any]:
    return [disguise(secret, form) for form, secret in place.items()]


def line(place: dict[str, str]) -> str:
    return " ".join(str(disguise(secret, form)) for form, secret in place.items())


found: dict[str, dict[str, str]] = {}


@flow("leaky", retry={"attempts": 1})
async def leaky(_input: Any, ctx: Context) -> None:
    ctx.log.info(line(found["log"]), values=values(found["log"]))
    logging.getLogger("penstock.user").warning("%s", line(found["log"]))
    ctx.emit("order.leaked", {"values": values(found["emitted"])})
    ctx.progress(0.5, line(found["progress"]))
    ctx.partial(line(found["partial"]))
    raise RuntimeError(line(found["error"]))


@job(queue="mail")
async def mail(_input: Any) -> Any:
    return {"values": values(found["result"])}


async def collect(client: httpx.AsyncClient, app: App, run: str, added: str) -> dict[str, str]:
    """Return everything that somebody outside can read, by where it was read."""
    paths = [
        "/api/_queue", "/api/_queue/mail", "/api/_queue/mail/jobs?state=completed", "/api/_queue/leaky/jobs?state=failed",
        f"/api/_job/{added}", f"/api/_job/{added}/result", "/api/_run", f"/api/_run/{run}", f"/api/_run/{run}/why",
        f"/api/_run/{run}/result", f"/api/_flow/leaky/runs/{run}", "/api/_dlq", "/api/_dlq/leaky/letters",
        f"/api/_dlq/letters/{run}.leaky.1", "/api/_state", f"/api/_state?run={run}", "/api/_state/note",
        f"/api/_state/password?run={run}", f"/api/_state/card/token?run={run}", "/api/_events?limit=1000",
        f"/api/_events/flow/{run}", f"/api/_events/flow/{run}/events?limit=1000", "/api/_events/queue/mail/events",
        "/api/_waits", "/api/_schedules", "/api/_registry", "/api/_doctor", "/api/_tokens", "/health", "/ready", "/api/_metrics", "/api/_audit", "/api/_workers", "/api/_settings", "/api/_webhooks",
        "/api/_events/audit/log/events", "/api/_schedules/hourly",
    ]  # fmt: skip
    texts = {path: (await client.get(path)).text for path in paths}
    feed = await app.store.feed("", 5000)
    texts["streams"] = json.dumps([[item.stream, item.event.kind, item.event.data, item.event.meta] for item in feed])
    last = feed[-1].cursor
    for path in ("/api/_events/stream?after=", f"/api/_events/flow/{run}/stream?after="):
        async with client.stream("GET", path) as response:
            text = ""
            async for part in response.aiter_text():
                text += part
                if f"id: {last}" in text or "flow.failed" in text:
                    break
            texts[path] = text
    address = str(client.base_url).replace("http", "ws") + "/api/_events/ws"
    async with connect(address) as socket:
        await socket.send('{"op": "subscribe", "id": "s", "after": ""}')
        text = ""
        while f'"cursor":"{last}"' not in text:
            text += str(await socket.recv())
        await socket.send(json.dumps({"op": "call", "id": "c", "path": f"/api/_run/{run}"}))
        texts["socket"] = text + str(await socket.recv())
        texts["socket errors"] = ""
        for form, secret in found["request"].items():  # the answers to wrong messages
            shown = json.dumps(disguise(secret, form))
            for message in (
                {"op": shown, "id": "e"},
                {"op": "subscribe", "id": "e", "stream": f"nq:none:{shown}"},
                {"op": "call", "id": "e", "path": f"/api/_run/{shown}"},
                {"op": "call", "id": "e", "path": "/api/_events", "method": "POST", "body": {"kind": shown}},
            ):
                await socket.send(json.dumps(message))
                texts["socket errors"] += str(await socket.recv())
    return texts


async def test_fifty_secrets_are_found_nowhere(serve: Serve, url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    found.update(canaries())
    async with App(url, handlers=[leaky, mail]) as app, serve(app) as client, asyncio.timeout(60):
        body = {"input": values(found["payload"]), "key": "run-1", "tags": {"a": "b"}}
        assert (await client.post("/api/_flow/leaky/runs", json=body)).status_code == 201
        added = (await client.post("/api/_queue/mail/jobs", json={"input": values(found["payload"])})).json()["id"]
        schedule = {"queue": "mail", "every": "1h", "input": values(found["payload"])}
        assert (await client.put("/api/_schedules/hourly", json=schedule)).status_code == 200
        working = asyncio.create_task(app.workers.run())

        async def has_ended() -> bool:
            return (await app.runs.get("run-1")).status == "failed" and (await app.jobs.get(added)).state == "completed"

        await until(has_ended)
        app.workers.stop()
        await working
        await client.post("/api/_run/run-1/cancel", json={"reason": line(found["reason"])})
        await client.post("/api/_events", json={"kind": "a.b", "data": values(found["reason"])})
        await app.state.of_run("run-1").set("password", found["state"]["key"])
        await app.state.of_run("run-1").set("card/token", {"n": found["state"]["nested"]})
        await client.put("/api/_state/note", json={"value": values(found["state"])})
        requests = list(found["request"].values())
        answers = [
            await client.get(f"/api/_queue?ticket={requests[0]}"),
            await client.post(f"/api/triggers/{requests[1]}"),
            await client.get(f"/api/_run?where=%7B%22password%22:%22{requests[2]}%22%7D"),
            await client.get("/api/_queue", headers={"authorization": f"Bearer {requests[3]}"}),
            await client.get("/api/_queue", headers={"cookie": f"session={requests[4]}"}),
        ]
        texts = await collect(client, app, "run-1", added)
        texts["answers"] = "".join(answer.text for answer in answers)
    texts["log"] = "\n".join(
        f"{record.getMessage()} {record.exc_text or ''}"
        for record in caplog.records
        if record.name.startswith(("penstock", "uvicorn")) and record.name != "penstock.user"
    )
    hidden = [secret for place in found.values() for secret in place.values()]
    assert len(hidden) == 50
    leaks = [
        (place, form, where)
        for place, forms in found.items()
        for form, secret in forms.items()
        for where, text in texts.items()
        if secret in text
    ]
    assert not leaks
    shown = ("streams", "socket", "/api/_state/note", "/api/_state/password?run=run-1", f"/api/_job/{added}")
    assert [where for where in shown if "[redacted]" not in texts[where]] == []


async def test_an_admin_may_see_secrets_and_it_is_recorded(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        _, admin = await app.tokens.add("ada", "admin")
        _, operator = await app.tokens.add("bob", "operator")
        await app.state.set("db/password", "hunter2hunter2")
        answers = {}
        for text in (admin, operator):
            headers = {"authorization": f"Bearer {text}"}
            for path in ("/api/_state/db/password", "/api/_state"):
                answers[text, path] = await client.get(f"{path}?reveal=true", headers=headers)
        assert "hunter2hunter2" in answers[admin, "/api/_state"].text
        assert answers[admin, "/api/_state/db/password"].json()["value"] == "hunter2hunter2"
        assert answers[operator, "/api/_state"].status_code == 403
        recorded = await app.events.read_all("nq:audit:log")
    assert [(event.data["by"], event.data.get("reveal")) for event in recorded] == [("ada", True), ("ada", True)]
