"""One audit event for each command, in the commit of the command."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from websockets.asyncio.client import connect

from http_server import Serve
from penstock import App, Event, flow
from penstock.commit.attached_events import ATTACHED, AttachedEvents
from penstock.errors import StoreUnavailable
from penstock.ports.unit import CommitReply, NewEvent, Unit


@flow("noop")
async def noop(_input: Any) -> None:
    return None


async def recorded(app: App) -> list[Event]:
    return await app.events.read_all("nq:audit:log")


def count_commits(app: App, monkeypatch: pytest.MonkeyPatch) -> list[list[Unit]]:
    """Return a list that gets the units of every commit from now on."""
    seen: list[list[Unit]] = []
    commit = app.store.commit

    async def count(units: Sequence[Unit], *args: Any) -> CommitReply:
        seen.append(list(units))
        return await commit(units, *args)

    monkeypatch.setattr(app.store, "commit", count)
    return seen


COMMANDS = {
    "start": ("POST", "/api/_flow/noop/runs", {"input": 1}),
    "enqueue": ("POST", "/api/_queue/mail/jobs", {"input": 1}),
    "emit": ("POST", "/api/_events", {"kind": "order.paid"}),
    "set": ("PUT", "/api/_state/a", {"value": 1}),
}


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_command_and_its_record_are_one_unit(
    serve: Serve, url: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    method, path, body = COMMANDS[name]
    async with App(url, handlers=[noop]) as app, serve(app) as client:
        assert await app.tokens.exist() is False
        seen = count_commits(app, monkeypatch)
        assert (await client.request(method, path, json=body)).status_code < 300
        assert sum(map(len, seen)) == 1
        (event,) = await recorded(app)
        assert (event.kind, event.data["ok"], event.data["path"]) == ("audit.command", True, path)


async def test_every_command_at_once_has_its_record(serve: Serve, url: str) -> None:
    async with App(url, handlers=[noop]) as app, serve(app) as client, app.workers.background():

        async def start(n: int) -> int:
            return (await client.post("/api/_flow/noop/runs", json={"input": n, "key": f"r-{n % 20}"})).status_code

        assert Counter(await asyncio.gather(*map(start, range(40)))) == {201: 20, 200: 20}
        events = await recorded(app)
        assert len(events) == 40  # the twenty that started nothing too
        assert [event.seq for event in events] == list(range(1, 41))


async def test_a_command_that_writes_nothing_is_recorded(serve: Serve, url: str) -> None:
    async with App(url, handlers=[noop]) as app, serve(app) as client:
        for _ in range(2):
            await client.post("/api/_flow/noop/runs", json={"key": "one"})
        await client.post("/api/_run/none/cancel")
        assert [event.data["ok"] for event in await recorded(app)] == [True, True, False]
        assert len(await app.runs.list()) == 1


async def test_a_dry_run_is_recorded_as_one(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        id = await app.enqueue("mail", 1, delay="1h")
        await client.post(f"/api/_job/{id}/cancel?dryRun")
        await client.post(f"/api/_job/{id}/cancel?dryRun=false")
        found = await app.events.read_all("nq:audit:log")
        assert [(one.data["action"], one.data.get("dryRun")) for one in found] == [
            ("cancel_job", True),
            ("cancel_job", None),
        ]


async def test_without_the_record_there_is_no_command(serve: Serve, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails with the record fails with the command: nothing is started that nobody recorded."""
    async with App(url, handlers=[noop]) as app, serve(app) as client:
        commit = app.store.commit

        async def refuse_records(units: Sequence[Unit], *args: Any) -> CommitReply:
            if any(event.stream == "nq:audit:log" for unit in units for event in unit.events):
                raise StoreUnavailable("down")
            return await commit(units, *args)

        monkeypatch.setattr(app.store, "commit", refuse_records)
        assert (await client.post("/api/_flow/noop/runs", json={"key": "one"})).status_code == 503
        assert await app.runs.list() == []


async def test_only_an_admin_reads_the_audit_stream(serve: Serve) -> None:
    async with App(":memory:", handlers=[noop]) as app, serve(app) as client:
        await client.post("/api/_flow/noop/runs", json={"key": "one"})
        texts = {role: (await app.tokens.add(role, role))[1] for role in ("viewer", "operator", "admin")}  # type: ignore[arg-type]
        paths = ["/api/_audit", "/api/_events/nq:audit:log", "/api/_events/audit/log/events"]
        live = ["/api/_events/nq:audit:log/tail", "/api/_events/audit/log/stream"]
        for role, text in texts.items():
            headers = {"authorization": f"Bearer {text}"}
            for path in paths + (live if role != "admin" else []):
                status = (await client.get(path, headers=headers)).status_code
                assert status == (200 if role == "admin" else 403), (role, path)
            feed = (await client.get("/api/_events", headers=headers)).json()["items"]
            assert any(one["stream"] == "nq:audit:log" for one in feed) == (role == "admin")
            address = str(client.base_url).replace("http", "ws") + "/api/_events/ws"
            async with connect(address, additional_headers=headers) as socket:
                await socket.send(json.dumps({"op": "subscribe", "id": "a", "stream": "nq:audit:log", "backfill": 5}))
                answer = json.loads(await socket.recv())
                assert answer["op"] == ("subscribed" if role == "admin" else "error"), answer
            async with connect(address, additional_headers=headers) as socket:
                await socket.send(json.dumps({"op": "subscribe", "id": "feed", "after": ""}))
                streams = set()
                while "nq:queue:noop" not in streams and "nq:flow:one" not in streams:
                    streams.add(json.loads(await socket.recv()).get("stream"))
                assert role == "admin" or "nq:audit:log" not in streams


async def test_nobody_appends_to_the_audit_stream(serve: Serve) -> None:
    """It would look like a record of the server."""
    async with App(":memory:", handlers=[noop]) as app, serve(app) as client:
        forged = {"kind": "looks.real", "subject": "ada", "data": {"action": "start_run", "by": "ada"}}
        assert (await client.post("/api/_events/audit/log/events", json=forged)).status_code == 403
        assert [event.kind for event in await recorded(app)] == ["audit.command"]


async def test_work_that_a_command_starts_does_not_record_again() -> None:
    async with App(":memory:", handlers=[noop]) as app:
        attached = AttachedEvents(NewEvent("nq:audit:log", b'{"kind":"audit.command","subject":"x"}'))
        token = ATTACHED.set(attached)
        await asyncio.gather(*(app.start(noop, n) for n in range(5)))
        ATTACHED.reset(token)
        assert attached.is_committed
        assert len(await recorded(app)) == 1
