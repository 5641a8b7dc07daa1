"""The HTTP addresses of the specifications, on every store."""

from __future__ import annotations

from typing import Any

import pytest

from http_server import Serve, serve_app
from penstock import App, Context, flow
from penstock.core.errors import StoreUnavailable

HANDLED = "/api/_triggers", "/api/_flows/triggers", "/api/triggers"


@pytest.fixture
def serve() -> Serve:
    return serve_app


@flow("approve")
async def approve(ctx: Context) -> Any:
    trigger = await ctx.wait.trigger("approval")
    return await trigger.wait()


@pytest.mark.parametrize("path", HANDLED)
@pytest.mark.spec("003-7.9", "003-11.4", "003-11.5")
async def test_a_call_of_a_triggers_address_resumes_its_run_once(serve: Serve, url: str, path: str) -> None:
    async with App(url, handlers=[approve]) as app, app.workers.background(), serve(app) as client:
        run = await app.start(approve)
        wait = await wait_of(app, run)
        token = await app.waits.token(wait)
        answer = await client.post(f"{path}/{token}", json={"approved": True})
        assert (answer.status_code, answer.json()) == (200, {"run": run})
        assert await run.result() == {"approved": True}
        fired = [event for event in await app.events.read_all(f"nq:trigger:{wait}") if event.kind == "trigger.fired"]
        assert [event.data["payload"] for event in fired] == [{"approved": True}]
        assert (await client.post(f"{path}/{token}", json={"approved": False})).status_code in (404, 409, 410)


@pytest.mark.spec("002-8.9")
async def test_health_says_whether_the_store_answers(serve: Serve, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with App(url, handlers=[]) as app, serve(app) as client:
        assert (await client.get("/health")).status_code == (await client.get("/ready")).status_code == 200

        async def fail() -> Any:
            raise StoreUnavailable("away")

        monkeypatch.setattr(app.store, "queues", fail)
        assert (await client.get("/health")).status_code == 200  # the process is alive
        assert (await client.get("/ready")).status_code == 503


async def wait_of(app: App, run: str) -> str:
    with app.store.signals.listen(f"stream:nq:flow:{run}") as listener:
        while not (found := await app.waits.list(run=run)):
            await listener.wait(1.0)
        return found[0].id
