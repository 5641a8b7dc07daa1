"""A key that was used before starts nothing, and the answer says so: in the library, over HTTP, and in the client."""

from __future__ import annotations

import asyncio
from typing import Any

from http_server import Serve
from penstock import App, Context, flow, job
from penstock.app.sync import SyncApp
from penstock.client import Client, SyncClient
from penstock.dags import node
from penstock.dags.definition import read_dag


@flow("greet")
async def greet(input: dict, ctx: Context) -> str:
    return f"Hello, {input['name']}!"


@node("double")
async def double(input: Any) -> Any:
    return input


DAG = {"id": "sum", "nodes": [{"id": "one", "type": "double"}]}
ADA, BOB = {"name": "Ada"}, {"name": "Bob"}
STATES = [(ADA, 201, False, False), (ADA, 200, True, False), (BOB, 200, True, True)]


async def test_an_app_says_whether_the_run_is_new(url: str) -> None:
    async with App(url, handlers=[greet]) as app:
        for input, _status, existing, differs in STATES:
            run = await app.start("greet", input, key="r-1")
            assert (run, run.existing, run.differs) == ("r-1", existing, differs)
        again = await app.runs.replay("r-1", key="r-1")
        assert (again.existing, again.differs) == (True, False)
        assert not (await app.start("greet", ADA)).existing


def test_an_app_without_an_event_loop_says_it_too() -> None:
    with SyncApp(":memory:", handlers=[greet]) as app:
        for input, _status, existing, differs in STATES:
            run = app.start("greet", input, key="r-1")
            assert (run.existing, run.differs) == (existing, differs)


async def test_the_status_says_whether_the_run_is_new(serve: Serve, url: str) -> None:
    async with App(url, handlers=[greet]) as app, serve(app) as http:
        for input, status, existing, differs in STATES:
            answer = await http.post("/api/_flow/greet/runs", json={"input": input, "key": "r-1"})
            shown: dict[str, Any] = {"id": "r-1"}
            shown |= {"existing": True} if existing else {}
            shown |= {"differs": True} if differs else {}
            assert (answer.status_code, answer.json()) == (status, shown)
        replayed = await http.post("/api/_run/r-1/replay", json={"key": "r-1"})
        assert (replayed.status_code, replayed.json()) == (200, {"id": "r-1", "existing": True})


async def test_the_status_says_whether_an_event_is_new(serve: Serve) -> None:
    async with App(":memory:", handlers=[greet]) as app, serve(app) as http:
        for status in (201, 200):
            for path in ("/api/_events", "/api/_events/webhook/own/events"):
                answer = await http.post(path, json={"kind": "order.paid", "key": f"e-{len(path)}"})
                assert (answer.status_code, any(answer.json().values())) == (status, status == 201), path
        planned = await http.post("/api/_events", json={"kind": "order.paid"}, params={"dryRun": "1"})
        assert planned.status_code == 200, "nothing was made"


async def test_a_run_of_a_dag_says_it_too(serve: Serve, url: str) -> None:
    async with App(url, handlers=[double]) as app, serve(app) as http:
        await app.dags.register(read_dag(DAG))
        for input, status, existing, differs in STATES:
            answer = await http.post("/api/_dags/sum/start", json={"input": input, "key": "d-1"})
            assert answer.status_code == status
            assert (answer.json().get("existing", False), answer.json().get("differs", False)) == (existing, differs)


async def test_the_client_returns_the_handle_of_app(serve: Serve, url: str) -> None:
    async with App(url, handlers=[greet]) as app, serve(app) as http, Client(str(http.base_url)) as client:
        for input, _status, existing, differs in STATES:
            run = await client.start("greet", input, key="r-1", result=str)
            assert (run, run.existing, run.differs) == ("r-1", existing, differs)
        async with app.workers.background():
            assert await run.result(timeout="20s") == "Hello, Ada!"
        assert (await run.get()).status == (await client.runs.handle("r-1").wait()).status == "completed"
        replayed = await client.runs.replay(run, key="r-2")
        assert (replayed.id, replayed.existing) == ("r-2", False)

        def use() -> tuple[bool, bool, str]:
            with SyncClient(str(http.base_url)) as sync:
                found = sync.start("greet", BOB, key="r-1")
                return found.existing, found.differs, found.result(timeout="20s")

        assert await asyncio.to_thread(use) == (True, True, "Hello, Ada!")


@job(queue="mail", key=lambda letter: letter["to"])
async def mail(letter: dict) -> None: ...


async def test_a_job_says_whether_it_is_new(serve: Serve, url: str) -> None:
    async with App(url, handlers=[mail]) as app, serve(app) as http, Client(str(http.base_url)) as client:
        for existing in (False, True):
            declared = await http.post("/api/_queue/mail/jobs", json={"input": {"to": "ada"}})
            assert (declared.status_code, declared.json()["id"]) == (200 if existing else 201, "ada")
            held = await client.enqueue("mail", {"to": f"eve-{existing}"}, dedupe="welcome")
            assert (held, type(held), type(await app.enqueue(mail, {"to": "ada"}))) == ("eve-False", str, str)
            answer = await http.post("/api/_queue/mail/jobs", json={"input": {"to": "x"}, "key": "j-1"})
            assert (answer.status_code, answer.json().get("existing", False)) == (200 if existing else 201, existing)
        assert (await app.queues.counts("mail"))["waiting"] == 3
