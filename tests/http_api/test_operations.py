"""What the command line can do, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from http_server import Serve
from penstock import App, Context, flow
from penstock.testing.until import until


@flow("approve")
async def approve(_input: Any, ctx: Context) -> Any:
    waiting = await ctx.wait.trigger("approval")
    return await waiting.wait()


async def pending(app: App) -> list[Any]:
    found: list[Any] = []

    async def is_there() -> bool:
        found[:] = await app.waits.list()
        return bool(found)

    await until(is_there)
    return found


async def test_a_wait_is_read_and_resolved_by_hand(serve: Serve, url: str) -> None:
    async with App(url, handlers=[approve]) as app, serve(app) as client, app.workers.background():
        await app.start(approve, key="r-1")
        (wait,) = await pending(app)
        assert (await client.get(f"/api/_waits/{wait.id}")).json()["run"] == "r-1"
        plan = (await client.post(f"/api/_waits/{wait.id}/resolve", json={"data": 7, "dryRun": True})).json()
        assert "run" not in plan
        assert plan["preview"]
        answer = await client.post(f"/api/_waits/{wait.id}/resolve", json={"data": 7, "reason": "by phone"})
        assert answer.json() == {"run": "r-1"}
        await app.result("r-1", timeout=20)
        (recorded,) = [event for event in await app.events.read_all("nq:audit:log") if event.data["ok"]][1:]
        assert recorded.data["action"] == "resolve_wait"


async def test_a_wait_is_cancelled(serve: Serve) -> None:
    async with App(":memory:", handlers=[approve]) as app, serve(app) as client, app.workers.background():
        await app.start(approve, key="r-1")
        (wait,) = await pending(app)
        assert (await client.post(f"/api/_waits/{wait.id}/cancel", json={})).json() == {"run": "r-1"}
        assert (await client.post(f"/api/_waits/{wait.id}/cancel", json={})).status_code in (409, 410)


async def test_a_job_is_cancelled(serve: Serve, url: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as client:
        id = await app.enqueue("mail", 1)
        assert (await client.post(f"/api/_job/{id}/cancel", json={"reason": "not needed"})).json() == {"ok": True}
        assert (await client.get(f"/api/_job/{id}")).json()["state"] == "cancelled"
        assert (await client.post(f"/api/_job/{id}/cancel")).json() == {"ok": False}


@pytest.mark.parametrize("path", ["shop/orders", "shop"])
async def test_a_webhook_starts_a_run_once(serve: Serve, url: str, path: str) -> None:
    async with App(url, handlers=[approve]) as app, serve(app) as client:
        made = await client.put(f"/api/_webhooks/{path}", json={"flow": "approve"})
        assert made.status_code == 200, made.text
        assert [one["path"] for one in (await client.get("/api/_webhooks")).json()] == [path]
        await app.tokens.add("ada", "admin")  # the webhook itself needs none
        headers = {"idempotency-key": "k-1"}
        first = (await client.post(f"/api/webhooks/{path}?source=shop", json={"n": 1}, headers=headers)).json()
        again = (await client.post(f"/api/webhooks/{path}", json={"n": 1}, headers=headers)).json()
        assert (first["isNew"], again["isNew"]) == (True, False)
        assert len(await app.runs.list()) == 1
        assert (await client.post("/api/webhooks/other", json={})).status_code == 404
        assert (await client.get(f"/api/webhooks/{path}")).status_code >= 400


@pytest.mark.parametrize(
    "schema", [{"$ref": "http://127.0.0.1:9/"}, {"$ref": "#"}, {"pattern": "("}, {"pattern": "^(?=a)"}]
)
async def test_an_unsafe_schema_of_a_webhook_is_refused(serve: Serve, schema: dict[str, str]) -> None:
    async with App(":memory:", handlers=[approve]) as app, serve(app) as client:
        made = await client.put("/api/_webhooks/shop", json={"flow": "approve", "schema": schema})
        assert made.status_code == 400, made.text
        assert made.json()["error"]["code"] == "bad_argument"
        listed = await client.get("/api/_webhooks")
        assert (listed.status_code, listed.json()) == (200, [])


async def test_a_diagram_settings_workers_and_commands(serve: Serve) -> None:
    async with App(":memory:", handlers=[approve]) as app, serve(app) as client:
        diagram = (await client.get("/api/_flow/approve/diagram")).json()
        assert [node["id"] for node in diagram["nodes"]] == ["approve"]
        assert "edges" in diagram
        settings = {one["setting"]: one for one in (await client.get("/api/_settings")).json()}
        assert settings["namespace"]["value"] == "nq"
        async with app.workers.background():
            (worker,) = (await client.get("/api/_workers")).json()
            assert worker["slots"] > 0
        for n in range(3):
            await client.post("/api/_events", json={"kind": f"a.b{n}"})
        page = (await client.get("/api/_audit?limit=2")).json()
        assert [one["data"]["action"] for one in page["items"]] == ["emit_event", "emit_event"]
        rest = (await client.get(f"/api/_audit?limit=2&before={page['next']}")).json()
        assert (len(rest["items"]), rest["next"]) == (1, None)


async def test_runs_are_found_by_correlation_and_tag(serve: Serve, url: str) -> None:
    async with App(url, handlers=[approve]) as app, serve(app) as client:
        await app.start(approve, key="r-1", correlation_id="order-7", tags={"shop": "a"})
        await app.start(approve, key="r-2", tags={"shop": "b"})
        for query, expected in (("correlationId=order-7", ["r-1"]), ("tag=shop=b", ["r-2"]), ("error=boom", [])):
            found = (await client.get(f"/api/_run?{query}")).json()
            assert [one["id"] for one in found["items"]] == expected, query
