"""Live streams: every event once, in order, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from http_server import Serve
from penstock import App, Context, flow, job
from penstock.errors import Permanent
from penstock.http import shared_reader

STREAM = "nq:entity:e-1"
PATH = "/api/_events/entity/e-1/stream"


class Messages:
    """Reads server-sent events from a response."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()
        self.last_id: str | None = None

    async def next(self) -> tuple[str, Any]:
        """Return the name and the data of the next message. One that only moves the cursor has no data and is skipped."""
        name, data = "message", ""
        async for line in self._lines:
            key, _, value = line.partition(": ")
            if key == "id":
                self.last_id = value
            elif key == "event":
                name = value
            elif key == "data":
                data += value
            elif line == "" and data:
                return name, json.loads(data)
            elif line == "":
                name = "message"
        raise EOFError


async def append(app: App, first: int, count: int, stream: str = STREAM) -> None:
    for n in range(first, first + count):
        await app.events.append(stream, "thing.happened", {"n": n})


async def read(client: httpx.AsyncClient, count: int, path: str = PATH, **headers: str) -> tuple[list[Any], str]:
    """Return the data of the next messages and the cursor to continue after."""
    async with asyncio.timeout(20), client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        messages = Messages(response)
        found = [(await messages.next())[1] for _ in range(count)]
        assert messages.last_id is not None
        return found, messages.last_id


@pytest.mark.spec("000-2.1", "000-15.6")
async def test_the_backlog_then_live_events(serve: Serve, url: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as client:
        await append(app, 0, 3)
        reading = asyncio.create_task(read(client, 6))
        await append(app, 3, 3)
        found, last = await reading
        assert [event["data"]["n"] for event in found] == [0, 1, 2, 3, 4, 5]
        await append(app, 6, 2)
        more, _ = await read(client, 2, **{"Last-Event-ID": last})
        assert [event["data"]["n"] for event in more] == [6, 7]


@pytest.mark.spec("003-4.6", "003-11.3", "003-10.4", "003-15.1")
async def test_by_default_the_newest_hundred_come_first(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        await append(app, 0, 130)
        found, _ = await read(client, 100)
        assert [event["data"]["n"] for event in found] == list(range(30, 130))
        everything, _ = await read(client, 130, f"{PATH}?after=")
        assert [event["data"]["n"] for event in everything] == list(range(130))


async def test_clients_that_disconnect_miss_and_repeat_nothing(
    serve: Serve, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_reader, "KEEP_EVENTS", 20)  # most clients fall behind what is kept
    total, rng = 300, random.Random(7)

    async with App(url, handlers=()) as app, serve(app) as client:

        async def follow(seed: int) -> list[int]:
            mine, cursor, found = random.Random(seed), "", []
            while len(found) < total:
                want = min(mine.randint(1, 60), total - len(found))
                events, cursor = await read(client, want, f"{PATH}?after={cursor}")
                found += [event["data"]["n"] for event in events]
            return found

        clients = [asyncio.create_task(follow(seed)) for seed in range(12)]
        written = 0
        while written < total:
            count = min(rng.randint(1, 25), total - written)
            await append(app, written, count)
            written += count
            await asyncio.sleep(0)
        for found in await asyncio.gather(*clients):
            assert found == list(range(total))


async def test_one_reader_serves_all_clients_and_ends_with_the_last(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app:
        reads = 0
        read_store = app.store.read

        async def count(*args: Any, **options: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read_store(*args, **options)

        app.store.read = count  # type: ignore[method-assign]
        async with serve(app) as client:
            await append(app, 0, 1)
            readers = [asyncio.create_task(read(client, 21, f"{PATH}?after=")) for _ in range(30)]
            await append(app, 1, 20)
            for found, _ in await asyncio.gather(*readers):
                assert [event["data"]["n"] for event in found] == list(range(21))
        assert reads < 30 * 20  # each client reads its backlog once; live events come from one reader


@flow("answer")
async def answer(_input: None, ctx: Context) -> str:
    for word in ("one ", "two ", "three "):
        ctx.partial(word)
    return "done"


async def test_a_snapshot_comes_first(serve: Serve, url: str) -> None:
    async with App(url, handlers=[answer]) as app, serve(app) as client:
        run = await app.start(answer, key="r-1")
        working = asyncio.create_task(app.workers.run())
        await app.result(run, timeout=20)
        path = "/api/_events/flow/r-1/stream?snapshot=true"
        async with client.stream("GET", path) as response:
            messages = Messages(response)
            name, view = await messages.next()
        app.workers.stop()
        await working
    assert name == "snapshot"
    assert view["status"] == "completed"
    assert view["steps"]["answer"]["partials"] == ["one ", "two ", "three "]
    assert messages.last_id == view["lastEvent"]


@pytest.mark.spec("001-5.2", "000-7.3", "000-9.7")
async def test_the_feed_with_filters(serve: Serve, url: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as client:
        for n in range(4):
            await app.events.append(f"nq:entity:e-{n % 2}", "a.b" if n < 3 else "c.d", {"n": n})
        async with client.stream("GET", "/api/_events/stream?after=&kind=a.b&stream=nq:entity:e-0") as response:
            messages = Messages(response)
            found = []
            while len(found) < 2:
                found.append((await messages.next())[1])
        assert [(one["v"], one["stream"], one["event"], one["record"]["data"]["n"]) for one in found] == [
            (1, "nq:entity:e-0", "a.b", 0),
            (1, "nq:entity:e-0", "a.b", 2),
        ]


@pytest.mark.spec("000-3.36")
async def test_an_idle_stream_sends_heartbeats(serve: Serve) -> None:
    async with (
        asyncio.timeout(20),
        App(":memory:", handlers=()) as app,
        serve(app, heartbeat_s=0.02) as client,
        client.stream("GET", PATH) as response,
    ):
        async for line in response.aiter_lines():
            if line == ": heartbeat":
                return
    raise AssertionError("the stream ended without a heartbeat")


@pytest.mark.spec("000-2.2", "000-2.5", "000-10.4")
async def test_a_socket_has_many_subscriptions_and_commands(serve: Serve, url: str) -> None:
    async with App(url, handlers=()) as app, serve(app) as client:
        await append(app, 0, 2)
        address = str(client.base_url).replace("http", "ws") + "/api/_events/ws"
        async with asyncio.timeout(20), connect(address) as socket:

            async def send(**message: Any) -> None:
                await socket.send(json.dumps(message))

            async def receive() -> dict[str, Any]:
                return json.loads(await socket.recv())  # type: ignore[no-any-return]

            await send(op="subscribe", id="s1", stream=STREAM, after="")
            assert await receive() == {"op": "subscribed", "id": "s1"}
            assert await receive() == {"op": "cursor", "id": "s1", "cursor": ""}
            first = [await receive() for _ in range(2)]
            assert [(one["v"], one["sub"], one["event"], one["record"]["data"]) for one in first] == [
                (1, "s1", "thing.happened", {"n": 0}),
                (1, "s1", "thing.happened", {"n": 1}),
            ]
            await send(op="call", id="c1", method="POST", path="/api/_events", body={"kind": "x.y"})
            reply = await receive()
            assert reply == {"op": "reply", "id": "c1", "status": 201, "body": {"emitted": True}}
            await send(op="call", id="c2", method="GET", path="/api/_run/none")
            reply = await receive()
            assert (reply["status"], reply["body"]["error"]["code"]) == (404, "unknown_run")
            await send(op="unsubscribe", id="s1")
            assert await receive() == {"op": "unsubscribed", "id": "s1"}
            await send(op="nonsense", id="n")
            assert (await receive())["error"]["code"] == "bad_request"
            await socket.send("{oops")
            assert (await receive())["op"] == "error"
            await send(op="ping", id="p")
            assert await receive() == {"op": "pong", "id": "p"}


async def test_a_socket_sends_a_backlog_or_a_snapshot_first_and_filters(serve: Serve, url: str) -> None:
    async with App(url, handlers=[answer]) as app, serve(app) as client, app.workers.background():
        await append(app, 1, 5)
        await app.start(answer, key="r-1")
        await app.result("r-1", timeout=20)
        address = str(client.base_url).replace("http", "ws").rstrip("/")
        async with asyncio.timeout(20), connect(f"{address}/api/_events/ws") as socket:

            async def subscribe(count: int, **options: Any) -> list[dict[str, Any]]:
                """Subscribe, and return `count` messages and those before the end of the subscription, without cursors."""
                await socket.send(json.dumps({"op": "subscribe", "id": "s", **options}))
                assert json.loads(await socket.recv())["op"] == "subscribed"
                found: list[dict[str, Any]] = []
                while not found or found[-1].get("op") != "unsubscribed":
                    message = json.loads(await socket.recv())
                    if message.get("op") == "cursor":
                        continue
                    found.append(message)
                    if len(found) == count:
                        await socket.send(json.dumps({"op": "unsubscribe", "id": "s"}))
                return found[:-1]

            backlog = await subscribe(2, stream=STREAM, backfill=2)
            assert [one["record"]["data"]["n"] for one in backlog] == [4, 5]
            first, *later = await subscribe(1, stream="nq:flow:r-1", snapshot=True)
            assert (first["op"], first["record"]["status"], later) == ("snapshot", "completed", [])
            steps = await subscribe(1, stream="nq:flow:r-1", after="", steps=["answer"], kinds=["step.completed"])
            assert [one["event"] for one in steps] == ["step.completed"]


async def test_a_socket_of_another_site_is_refused(serve: Serve) -> None:
    async with App(":memory:", handlers=()) as app, serve(app) as client:
        address = str(client.base_url).replace("http", "ws") + "/api/_events/ws"
        with pytest.raises(Exception, match="403"):
            async with connect(address, origin="http://evil.example"):  # type: ignore[arg-type]
                pass


@job(queue="mail")
async def send(to: str, ctx: Context) -> str:
    ctx.log.info("sending", to=to)
    ctx.progress(50)
    if to == "nobody":
        raise Permanent("no address")
    return f"sent to {to}"


@pytest.mark.spec("000-9.1", "000-9.2", "000-9.3", "000-10.3", "000-16.6")
@pytest.mark.parametrize(("path", "word"), [("/api/_queue/ws", "job"), ("/api/_runner/ws", "runner")])
async def test_jobs_on_the_queue_and_runner_sockets(serve: Serve, url: str, path: str, word: str) -> None:
    async with App(url, handlers=[send]) as app, serve(app) as client:
        address = str(client.base_url).replace("http", "ws") + path
        async with asyncio.timeout(20), connect(address) as socket:
            await socket.send(json.dumps({"op": "subscribe", "id": "q", "queue": "mail", "after": ""}))
            await socket.recv()
            ids = [await app.enqueue(send, to) for to in ("ada", "nobody")]
            found: list[dict[str, Any]] = []
            async with app.workers.background():
                while not {"completed", "failed"} <= {one["event"] for one in found}:
                    message = json.loads(await socket.recv())
                    if "event" in message:
                        found.append(message)
    assert {(one["v"], one["stream"], one["queue"]) for one in found} == {(1, word, "mail")}
    events = [(one["jobId"], one["event"]) for one in found]
    wanted = ["added", "started", "log", "progress", "completed"]
    assert [event for id, event in events if id == ids[0] and event in wanted] == wanted
    assert (ids[1], "failed") in events
    (progress,) = [one["data"] for one in found if one["event"] == "progress" and one["jobId"] == ids[0]]
    assert progress == {"progress": 50} or progress == 50
